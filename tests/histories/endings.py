"""Scenarios of the ways a run ends, of what is undone then, and of what users say meanwhile."""

import asyncio
from collections.abc import Sequence

import pytest
from temporalio.client import WorkflowFailureError

from activities.hooks import Hooks, Proposed
from activities.providers.scripted import Script
from activities.tooling import Tool, ToolError, tool
from contracts.agents import AgentSpec, Unfinished
from contracts.context import ExecutionContext
from contracts.policies import CompensationRule
from contracts.tools import UndoOutcome, UndoRequest
from tests.histories.rounds import DONE, look, show
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, calls, event_of, failure_of, script


class Seats:
    """A tool that books seats. Its undo finds nothing to undo of 1B, and fails for 1C."""

    def __init__(self) -> None:
        @tool(side_effect="write", compensation=CompensationRule())
        def book(seat: str) -> str:
            """Book a seat."""
            return f"booked {seat}"

        @book.undo
        def unbook(request: UndoRequest) -> UndoOutcome:
            match request.invocation.arguments["seat"]:
                case "1B":
                    return UndoOutcome(state="nothing_to_undo")
                case "1C":
                    raise ToolError("conflict", "it stays booked")
            return UndoOutcome(text="free again")

        self.book: Tool = book


@tool(side_effect="read", lost_after=1)
async def wait_for_ever() -> str:
    """Wait."""
    await asyncio.Event().wait()
    return "never"


@tool(side_effect="read")
def fail() -> str:
    """Fail."""
    raise ToolError("not_found", "there is none")


def booking_agent(*compensate_on: Unfinished) -> AgentSpec:
    return scripted_agent(Seats().book, wait_for_ever, fail).model_copy(update={"compensate_on": compensate_on})


def booking(last: str, seats: Sequence[str] = ("1A",)) -> dict[str, Script]:
    """Replies that book seats and then call the tool `last`."""
    return {"main": script(calls(*(("book", {"seat": seat}) for seat in seats)), calls((last, {})), DONE)}


async def failed_and_compensated(harness: Harness) -> Handle:
    """Of three effects one is undone, one has nothing to undo, and one cannot be undone."""
    async with harness.worker(booking_agent("failed"), scripts=booking("fail", ("1A", "1B", "1C"))):
        run = await harness.start({**PROMPT, "options": {"on_tool_error": "fail_run"}})
        _, partial = await failure_of(run)
        states = [effect.state for effect in partial.effects]
        assert states == ["compensated", "compensated", "compensation_failed"]
        await show(run, "compensation_completed", "compensation_failed", "run_failed")
    return run


async def cancelled_and_compensated(harness: Harness) -> Handle:
    """By the update `cancel_run`; a stale one is refused before."""
    async with harness.worker(booking_agent("cancelled"), scripts=booking("wait_for_ever")):
        run = await harness.start(PROMPT)
        await event_of(run, "tool_started", lambda event: event.data["tool"] == "wait_for_ever")
        with pytest.raises(Exception, match="failed"):
            await run.execute_update("cancel_run", {"reason": "too early", "expected_revision": 1})
        await run.execute_update("cancel_run", {"reason": "not wanted any more"})
        with pytest.raises(WorkflowFailureError):
            await run.result()
        await show(run, "cancel_refused", "cancel_accepted", "compensation_completed", "run_cancelled")
    return run


async def timed_out_and_compensated(harness: Harness) -> Handle:
    async with harness.worker(booking_agent("timed_out"), scripts=booking("wait_for_ever")):
        run = await harness.start({**PROMPT, "options": {"deadline_seconds": 2}})
        assert (await failure_of(run))[0].type == "DeadlineExceeded"
        await show(run, "compensation_completed", "run_timed_out")
    return run


async def stopped_by_a_tool(harness: Harness) -> Handle:
    agent = scripted_agent(look, fail).model_copy(update={"stop_on_tools": ("fail",)})
    replies = script(calls(("look", {"item": "a"})), calls(("look", {"item": "b"}), ("fail", {})), DONE)
    async with harness.worker(agent, scripts={"main": replies}):
        run = await harness.start(PROMPT)
        stop = (await run.result()).stop
        assert stop is not None
        assert stop.reason == "stop_on_tools: fail"
    return run


async def stopped_by_a_hook(harness: Harness) -> Handle:
    def should_stop(proposed: Proposed, context: ExecutionContext) -> str | bool:
        return "seen enough" if proposed.text == "Enough?" else False

    replies = script(calls(("look", {"item": "a"})), calls(("look", {"item": "b"}), text="Enough?"), DONE)
    hooks = (Hooks("tester", should_stop=should_stop),)
    async with harness.worker(scripted_agent(look), scripts={"main": replies}, hooks=hooks):
        run = await harness.start(PROMPT)
        stop = (await run.result()).stop
        assert stop is not None
        assert stop.reason == "should_stop: seen enough"
    return run


async def messages_added(harness: Harness) -> Handle:
    """Before the first step, one of them twice."""
    run = await harness.start(PROMPT)
    for number in (1, 2, 1):
        await run.signal("add_message", {"id": f"m{number}", "text": f"And {number}."})
    async with harness.worker(scripted_agent(look), scripts={"main": script(calls(("look", {"item": "a"})), DONE)}):
        await run.result()
        await show(run, "message_added")
    return run


async def failures_spent(harness: Harness) -> Handle:
    """A tool fails more often than the agent allows."""
    agent = scripted_agent(fail).model_copy(update={"max_failures_per_tool": 1})
    async with harness.worker(agent, scripts={"main": script(calls(("fail", {})), calls(("fail", {})), DONE)}):
        run = await harness.start(PROMPT)
        assert (await failure_of(run))[0].type == "ToolFailed"
    return run


async def calls_continued(harness: Harness) -> Handle:
    """A round of many calls that goes on over several executions, with messages and effects to carry along."""
    seats = [f"{number}A" for number in range(12)]
    async with harness.worker(booking_agent("failed"), scripts=booking("fail", seats)):
        run = await harness.start({**PROMPT, "options": {"on_tool_error": "fail_run"}})
        await event_of(run, "tool_completed")
        await run.signal("add_message", {"id": "m1", "text": "Quickly, please."})
        _, partial = await failure_of(run)
        assert [effect.state for effect in partial.effects] == ["compensated"] * 12
    return run


async def compensated_later(harness: Harness) -> Handle:
    """An operator has the effects of a closed run undone: this is the history of `CompensateRun`."""
    async with harness.worker(booking_agent(), scripts=booking("fail", ("1A", "1C"))):
        run = await harness.start({**PROMPT, "options": {"on_tool_error": "fail_run"}})
        await failure_of(run)
        await harness.client.start_workflow(
            "CompensateRun", {"workflow_id": run.id}, id=f"compensate-{run.id}", task_queue=harness.task_queue
        )
        undoing = harness.track(f"compensate-{run.id}")
        with pytest.raises(WorkflowFailureError) as failed:
            await undoing.result()
        assert "could not be undone" in str(failed.value.cause)
    return undoing


SCENARIOS = (
    failed_and_compensated,
    cancelled_and_compensated,
    timed_out_and_compensated,
    stopped_by_a_tool,
    stopped_by_a_hook,
    messages_added,
    failures_spent,
    compensated_later,
)
CHAINS = (calls_continued,)
