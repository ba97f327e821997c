"""R-18. Whatever is wrong in workflow code, no workflow task is tried again and again: what was asked fails by name."""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from pydantic import ValidationError
from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.tooling import tool
from contracts.agents import AgentSpec
from contracts.runs import AgentRunResult
from tests.support.agents import PROMPT, scripted_agent
from tests.support.faults import faulty_worker
from tests.support.harness import (
    Handle,
    Harness,
    calls,
    events_of,
    failure_of,
    pending_approval,
    says,
    script,
    state_of,
)
from tests.support.other_runs import Locked, other_worker
from tests.support.waiting import eventually


@tool(side_effect="write", approval="always")
def transfer(amount: int) -> str:
    """Move money."""
    return f"moved {amount}"


AGENT = scripted_agent(transfer)
REPLIES = script(calls(("transfer", {"amount": 50})), says("Done."))
# The modules that call all others, or are called by Temporal: in these it matters where a bug is.
FRAME = ("agent_run", "doors", "endings", "interruption", "compensation")
QUERIES = ("state", "agent", "result", "ledger", "events", "transcript", "tool_results")


def invalid() -> ValidationError:
    try:
        AgentSpec.model_validate({})
    except ValidationError as error:
        return error
    raise AssertionError("an agent without a name is one")


class Unheard(Exception):
    """Of a class that no list of exceptions names."""


# A new one each time: an exception that is raised keeps its traceback.
BUGS: dict[str, Callable[[], Exception]] = {
    "ValueError": lambda: ValueError("a bug"),
    "TypeError": lambda: TypeError("a bug"),
    "KeyError": lambda: KeyError("a bug"),
    "AttributeError": lambda: AttributeError("a bug"),
    "AssertionError": lambda: AssertionError("a bug"),
    "RuntimeError": lambda: RuntimeError("a bug"),
    "ZeroDivisionError": lambda: ZeroDivisionError("a bug"),
    "OSError": lambda: OSError("a bug"),
    "ValidationError": invalid,
}
# What is sent, and where the bug in taking it is.
SIGNALS = {"resolve_approval": "approval_gate.ApprovalGate.decide", "add_message": "inbox.Inbox.take"}
UPDATES = {"decide": "approval_gate.ApprovalGate.decide", "cancel_run": "doors.Doors._cancel"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Each bug is logged with its traceback, and there are many of them here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def workflow_id(harness: Harness, bug: str) -> str:
    return f"{harness.task_queue}/{bug}"


async def start(harness: Harness, bug: str) -> Handle:
    """A run that the harness does not replay: with the right code its history is another."""
    return await harness.client.start_workflow(
        "AgentRun",
        PROMPT,
        id=workflow_id(harness, bug),
        task_queue=harness.task_queue,
        result_type=AgentRunResult,
    )


async def tasks_tried_again(run: Handle) -> list[str]:
    """The workflow tasks that failed or were given up: each would be tried again for as long as the bug is there."""
    return [
        str(event)
        for event in (await run.fetch_history()).events
        if event.event_type in (EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT)
    ]


async def used(run: Handle) -> str:
    """What people send to a run, whatever comes of it. How it ends: "completed" or the type of its error."""
    refused = (WorkflowQueryFailedError, WorkflowUpdateFailedError, RPCError)

    async def waits_or_is_closed() -> bool:
        with suppress(*refused):
            if (await state_of(run)).pending_approvals:
                return True
        return (await run.describe()).status != WorkflowExecutionStatus.RUNNING

    await eventually(waits_or_is_closed)
    for _ in range(2):
        with suppress(*refused):
            await run.signal("open_sesame")
            for request in (await state_of(run)).pending_approvals:
                decision = {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"}
                await run.execute_update("decide", decision)
    try:
        return (await run.result()).status
    except WorkflowFailureError as error:
        return (error.cause.type if isinstance(error.cause, ApplicationError) else None) or repr(error.cause)


# A bug whose function was to await another leaves that one behind, to be collected before the next test.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_bug_in_any_function_of_the_workflow_ends_the_run_by_name_or_fails_what_was_asked(
    harness: Harness,
) -> None:
    """Each function that a run enters raises in a run of its own, each time an exception of another class."""
    async with faulty_worker(harness, AGENT, REPLIES) as faults:
        model = await start(harness, "no bug")
        assert await used(model) == "completed"
        entered = faults.entered[model.id]
        # What is built before `run` begins depends on nothing that could be wrong only sometimes.
        since_run = list(entered)[list(entered).index("agent_run.AgentRun.run") :]
        places = [place for place in since_run if place.split(".")[0] in FRAME]

        async def end_of(number: int, place: str) -> tuple[str, str, str, list[str]]:
            kind, bug = list(BUGS.items())[number % len(BUGS)]
            faults.wanted[workflow_id(harness, place)][place] = bug()
            run = await start(harness, place)
            return place, kind, await used(run), await tasks_tried_again(run)

        ends = await asyncio.gather(*(end_of(number, place) for number, place in enumerate(places)))
    gc.collect()
    assert [end for end in ends if end[3]] == []
    # Where Temporal enters what is wrong, a second net catches it and names the exception's class.
    by_second_net = [place for place, kind, end, _ in ends if end == kind]
    assert {end for place, _, end, _ in ends if place not in by_second_net} == {"completed", "InternalError"}
    assert {"agent_run.AgentRun.run", "agent_run.AgentRun.receive"} <= set(by_second_net)
    assert "agent_run.AgentRun._end" not in by_second_net
    assert len(by_second_net) < len(places) / 4


@pytest.mark.parametrize("kind", [*BUGS, "Unheard"])
async def test_a_bug_in_a_handler_fails_what_was_asked_and_one_in_the_story_the_run(
    harness: Harness, kind: str
) -> None:
    bug = BUGS.get(kind, Unheard)
    async with faulty_worker(harness, AGENT, REPLIES) as faults:
        run = await start(harness, kind)
        request = await pending_approval(run)
        decision = {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"}
        wanted = faults.wanted[run.id]
        for query in QUERIES:
            wanted[f"agent_run.AgentRun.{query}"] = bug()
            with pytest.raises(WorkflowQueryFailedError):
                await run.query(query)
        for signal, place in SIGNALS.items():
            wanted[place] = bug()
            await run.signal(signal, decision)
            event = (await events_of(run))[-1]
            assert (event.type, event.data) == ("signal_refused", {"name": signal, "reason": f"InternalError: {kind}"})
        for update, place in UPDATES.items():
            wanted[place] = bug()
            with pytest.raises(WorkflowUpdateFailedError) as failed:
                await run.execute_update(update, decision)
            assert isinstance(failed.value.cause, ApplicationError)
            assert failed.value.cause.type == "InternalError"
        assert (await state_of(run)).pending_approvals == (request,)
        wanted["tool_round.ToolRound.execute"] = bug()
        await run.execute_update("decide", decision)
        error, partial = await failure_of(run)
        assert wanted == {}
    assert error.type == "InternalError"
    assert error.message.startswith(f"{kind}: ")
    assert (partial.status, partial.rounds, partial.effects) == ("failed", 1, ())
    assert await tasks_tried_again(run) == []


async def test_an_argument_that_no_payload_can_hold_ends_the_run_by_name(harness: Harness) -> None:
    async with other_worker(harness, Locked, AGENT, REPLIES):
        run = await start(harness, "locked")
        error, _ = await failure_of(run)
    assert error.type == "InternalError"
    assert "lock" in error.message
    assert await tasks_tried_again(run) == []
