"""An effect that may have happened is never called "not done", whatever the last attempt says."""

import asyncio

import pytest
from temporalio.client import WorkflowFailureError

from activities.tooling import ToolError, tool
from contracts.policies import RetryRule
from contracts.tools import ToolInvocation
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, event_types, pending_approval, says, script, state_of
from tests.support.waiting import eventually

QUICK = RetryRule(max_attempts=3, initial_interval=0.01, max_interval=0.02)


class Till:
    """A keyed write that does what each attempt is told: commit or not, then raise or return."""

    def __init__(self, *script: tuple[bool, BaseException | str], version: str = "1") -> None:
        rows: set[str] = set()
        steps = list(script)

        @tool(side_effect="write", idempotency="idempotent_with_key", retry=QUICK, version=version)
        def pay(invocation: ToolInvocation) -> str:
            """Pay."""
            commits, end = steps.pop(0)
            if commits:
                rows.add(invocation.idempotency_key)
            if isinstance(end, BaseException):
                raise end
            return end

        self.rows = rows
        self.pay = pay


REPLIES = {"main": script(calls(("pay", {})), says("Done."))}
REFUSED = ToolError("unavailable", "the bank is closed", retryable=True)


@pytest.mark.parametrize(
    ("steps", "state", "category"),
    [
        # A commit, then a crash; a later refusal says nothing about the first attempt.
        ([(True, RuntimeError("lost")), (False, ToolError("conflict", "no"))], "unknown", "unknown_outcome"),
        ([(True, RuntimeError("lost")), (False, REFUSED), (False, REFUSED)], "unknown", "unknown_outcome"),
        # Every attempt says that nothing happened: then nothing happened.
        ([(False, REFUSED), (False, REFUSED), (False, REFUSED)], "failed", "unavailable"),
        ([(False, REFUSED), (False, ToolError("conflict", "no"))], "failed", "conflict"),
        ([(False, ToolError("invalid_input", "no"))], "failed", "invalid_input"),
        # A later attempt that succeeds settles it.
        ([(True, RuntimeError("lost")), (True, "paid")], "done", None),
    ],
)
async def test_the_last_attempt_does_not_speak_for_the_earlier_ones(
    harness: Harness, steps: list[tuple[bool, BaseException | str]], state: str, category: str | None
) -> None:
    till = Till(*steps)
    async with harness.worker(scripted_agent(till.pay), scripts=REPLIES):
        result = await (await harness.start(PROMPT)).result()
    assert [effect.state for effect in result.effects] == [state]
    error = result.tool_results[0].error
    assert (error.category if error else None) == category
    assert result.tool_results[0].attempts == len(steps)
    assert len(till.rows) <= 1


async def test_a_tool_error_that_is_none_fails_where_it_is_raised_and_says_why(harness: Harness) -> None:
    """What the model, the history and the log then say is the mistake, and not that nobody saw the end."""

    @tool(side_effect="write")
    def pay(how: int) -> None:
        """Pay."""
        match how:
            case 0:
                raise ToolError("not_payed", "no")  # type: ignore[arg-type]
            case 1:
                raise ToolError("conflict", KeyError("no"))  # type: ignore[arg-type]
            case 2:
                raise ToolError("conflict", "no", code=409)  # type: ignore[arg-type]
            case _:
                raise ToolError("conflict", "no", retry_after="5")  # type: ignore[arg-type]

    replies = script(calls(*(("pay", {"how": how}) for how in range(4))), says("Done."))
    async with harness.worker(scripted_agent(pay), scripts={"main": replies}):
        result = await (await harness.start(PROMPT)).result()
    assert [effect.state for effect in result.effects] == ["unknown"] * 4
    errors = [record.error for record in result.tool_results]
    assert [error.code for error in errors if error] == ["ValueError", "TypeError", "TypeError", "TypeError"]
    assert errors[0]
    assert "'not_payed' is no category of ToolError; there are: invalid_input," in errors[0].message
    assert all(error and "(reference " in error.message for error in errors)


async def test_a_deploy_between_two_attempts_does_not_make_it_not_done(harness: Harness) -> None:
    """Attempt 1 commits and fails on version 1; the worker that comes next has version 2 only."""
    first_attempt = asyncio.Event()
    rows: list[int] = []

    @tool(side_effect="write", idempotency="idempotent_with_key", name="pay", retry=RetryRule(max_attempts=2))
    def pay_v1(invocation: ToolInvocation) -> str:
        """Pay."""
        rows.append(invocation.attempt)
        if not first_attempt.is_set():
            first_attempt.set()
            raise RuntimeError("lost")
        return "paid"

    @tool(side_effect="write", idempotency="idempotent_with_key", name="pay", version="2")
    def pay_v2(invocation: ToolInvocation) -> str:
        """Pay."""
        raise AssertionError("ran under an old consent")

    async with harness.worker(scripted_agent(pay_v1), scripts=REPLIES):
        run = await harness.start(PROMPT)
        await first_attempt.wait()
    async with harness.worker(scripted_agent(pay_v2), scripts=REPLIES):

        async def refused() -> bool:
            return any(
                event.activity_task_failed_event_attributes.failure.application_failure_info.type
                == "ToolVersionMismatch"
                for event in (await run.fetch_history()).events
            )

        await eventually(refused)
        assert [effect.state for effect in (await state_of(run)).effects] == ["unknown"]
    async with harness.worker(scripted_agent(pay_v1), scripts=REPLIES):
        result = await run.result()
    assert (result.tool_results[0].text, rows) == ("paid", [1, 1])
    assert [effect.state for effect in result.effects] == ["done"]


async def test_approved_and_cancelled_at_once_is_known_not_to_have_begun(harness: Harness) -> None:
    @tool(side_effect="write", approval="always", idempotency="idempotent_with_key")
    def pay(invocation: ToolInvocation) -> str:
        """Pay."""
        raise AssertionError("began after the cancellation")

    async with harness.worker(scripted_agent(pay), scripts=REPLIES):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
    # Nobody serves the run: decision and cancellation will be read in one task.
    await run.signal("resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"})
    await run.cancel()
    async with harness.worker(scripted_agent(pay), scripts=REPLIES):
        with pytest.raises(WorkflowFailureError):
            await run.result()
        assert "effect_unknown" not in await event_types(run)
        assert [effect.state for effect in (await state_of(run)).effects] in ([], ["failed"])


async def test_a_cron_schedule_is_refused_since_its_runs_would_share_keys(harness: Harness) -> None:
    till = Till((True, "paid"))
    async with harness.worker(scripted_agent(till.pay), scripts=REPLIES):
        run = await harness.client.start_workflow(
            "AgentRun",
            PROMPT,
            id=f"{harness.task_queue}-cron",
            task_queue=harness.task_queue,
            cron_schedule="@every 1s",
        )

        async def failed() -> bool:
            events = await harness.client.get_workflow_handle(run.id, run_id=run.first_execution_run_id).fetch_history()
            closing = events.events[-1]
            info = closing.workflow_execution_failed_event_attributes.failure.application_failure_info
            return info.type == "InvalidInput"

        await eventually(failed)
        await harness.client.get_workflow_handle(run.id).terminate()
    assert till.rows == set()
