"""A wrong worker pauses runs and ends none: once the right one is back, they go on as if nothing had been."""

import pytest
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from activities.tooling import tool
from contracts.policies import CompensationRule
from contracts.runs import AgentRunResult
from contracts.tools import UndoOutcome, UndoRequest
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, attempts, calls, failure_of, pending_approval, says, script, state_of
from tests.support.other_runs import Redeployed, other_worker
from tests.support.waiting import eventually
from workflows.agent_run import AgentRun

NONDETERMINISM = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR


@tool(side_effect="write", approval="always")
def transfer(amount: int) -> str:
    """Move money."""
    return f"moved {amount}"


AGENT = scripted_agent(transfer)
REPLIES = script(calls(("transfer", {"amount": 50})), says("Done."))


async def approve(run: Handle) -> None:
    request = await pending_approval(run)
    await run.signal("resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"})


async def test_a_deploy_that_replays_otherwise_pauses_waiting_runs_and_the_right_code_lets_them_go_on(
    harness: Harness,
) -> None:
    async with harness.worker(AGENT, scripts={"main": REPLIES}):
        # Not by harness.start: here a workflow task is meant to fail.
        run = await harness.client.start_workflow(
            "AgentRun", PROMPT, id=harness.task_queue, task_queue=harness.task_queue, result_type=AgentRunResult
        )
        request = await pending_approval(run)
    decision = {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"}
    async with other_worker(harness, Redeployed, AGENT, REPLIES):
        await run.signal("resolve_approval", decision)

        async def refused() -> bool:
            failures = [event.workflow_task_failed_event_attributes for event in (await run.fetch_history()).events]
            return NONDETERMINISM in [failure.cause for failure in failures]

        await eventually(refused)
        assert (await run.describe()).status == WorkflowExecutionStatus.RUNNING
    async with harness.worker(AGENT, scripts={"main": REPLIES}):
        result = await run.result()
    assert (result.status, result.text) == ("completed", "Done.")
    assert [effect.state for effect in result.effects] == ["done"]
    assert attempts(await run.fetch_history(), "transfer") == [1]


async def test_a_worker_that_lacks_a_tool_spends_none_of_its_attempts(harness: Harness) -> None:
    run = await harness.start(PROMPT)
    async with harness.worker(AGENT, scripts={"main": REPLIES}):
        await pending_approval(run)
    async with harness.worker(scripted_agent(), scripts={"main": REPLIES}):
        await approve(run)

        async def refused() -> bool:
            return any(
                event.HasField("activity_task_failed_event_attributes") for event in (await run.fetch_history()).events
            )

        await eventually(refused)
        assert (await state_of(run)).status == "running"
    async with harness.worker(AGENT, scripts={"main": REPLIES}):
        result = await run.result()
    assert [(record.text, record.attempts) for record in result.tool_results] == [("moved 50", 1)]
    assert [effect.state for effect in result.effects] == ["done"]


async def test_a_worker_that_lacks_an_undo_spends_none_of_its_attempts(harness: Harness) -> None:
    @tool(side_effect="write", compensation=CompensationRule(max_attempts=1))
    def book() -> str:
        """Book a seat."""
        return "booked"

    @book.undo
    def give_back(request: UndoRequest) -> UndoOutcome:
        return UndoOutcome(state="compensated")

    replies = script(calls(("book", {})), calls(("transfer", {"amount": 50})), says("-"))
    agent = scripted_agent(book, transfer).model_copy(update={"compensate_on": ("cancelled",)})
    run = await harness.start(PROMPT)
    async with harness.worker(agent, scripts={"main": replies}):
        await pending_approval(run)
    async with harness.worker(AGENT, scripts={"main": replies}):
        await run.cancel()

        async def refused() -> bool:
            return any(
                event.HasField("activity_task_failed_event_attributes") for event in (await run.fetch_history()).events
            )

        await eventually(refused)
        assert (await state_of(run)).effects[0].state == "done"
    async with harness.worker(agent, scripts={"main": replies}):
        with pytest.raises(WorkflowFailureError):
            await run.result()
        (effect,) = (await state_of(run)).effects
    assert effect.state == "compensated"


async def test_a_worker_that_lacks_an_activity_of_the_runtime_delays_a_run(harness: Harness) -> None:
    run = await harness.start(PROMPT)
    async with other_worker(harness, AgentRun, AGENT, REPLIES, lacking=["call_model"]):

        async def refused() -> bool:
            pending = (await run.describe()).raw_description.pending_activities
            return any(each.last_failure.application_failure_info.type == "NotFoundError" for each in pending)

        await eventually(refused)
        assert (await state_of(run)).status == "running"
    async with harness.worker(AGENT, scripts={"main": REPLIES}):
        await approve(run)
        assert (await run.result()).text == "Done."


@pytest.mark.parametrize(("lacking", "error_type"), [("load_agent", "InternalError"), ("call_model", "InternalError")])
async def test_an_activity_that_no_worker_ever_has_ends_the_run_by_name(
    skipping: WorkflowEnvironment, lacking: str, error_type: str
) -> None:
    harness = Harness(skipping.client)
    async with other_worker(harness, AgentRun, AGENT, REPLIES, lacking=[lacking]):
        error, _ = await failure_of(await harness.start(PROMPT))
    assert error.type == error_type
    assert lacking in error.message
    await harness.check_histories()
