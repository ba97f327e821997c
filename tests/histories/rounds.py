"""Scenarios of replies, rounds and ends: what a run may meet between its prompt and its result."""

import asyncio

import pytest
from temporalio.client import WorkflowFailureError

from activities.providers.interface import Completion, CompletionRequest, ModelFailure
from activities.tooling import ToolError, tool
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, calls, event_types, failure_of, says, script

DONE = says("Done.")


@tool(side_effect="read")
def look(item: str) -> str:
    """Look."""
    if item == "nothing":
        raise ToolError("not_found", "there is nothing")
    return f"seen {item}"


@tool(side_effect="write")
def note(text: str) -> str:
    """Write it down."""
    return f"noted {text}"


async def show(run: Handle, *types: str) -> None:
    """See that the run has met what its scenario is for."""
    missing = set(types) - set(await event_types(run))
    assert not missing, f"{run.id} has no {', '.join(sorted(missing))}"


# -- replies


async def plain_answer(harness: Harness) -> Handle:
    async with harness.worker(scripted_agent(), scripts={"main": script(says("Hello."))}):
        run = await harness.start(PROMPT)
        assert (await run.result()).text == "Hello."
    return run


EARLIER: list[dict[str, object]] = [
    {"role": "user", "text": "Look at z."},
    {"role": "assistant", "tool_calls": [{"call_id": "call_1", "tool": "look", "arguments": {"item": "z"}}]},
    {"role": "tool", "call_id": "call_1", "text": "seen z"},
    {"role": "assistant", "text": "I saw it."},
]


async def parallel_reads(harness: Harness) -> Handle:
    """Goes on with the transcript of another run, whose call ids are not given again."""
    wanted = calls(*(("look", {"item": item}) for item in "ab"), text="Two first.")
    replies = script(says("-"), says("-"), wanted, calls(("look", {"item": "nothing"})), DONE)
    async with harness.worker(scripted_agent(look), scripts={"main": replies}):
        run = await harness.start({**PROMPT, "messages": EARLIER, "context": {"tenant_id": "acme"}})
        ids = [record.call_id for record in (await run.result()).tool_results]
        assert ids == ["call_2", "call_3", "call_4"]
        await show(run, "tool_completed", "tool_failed")
    return run


async def invalid_calls(harness: Harness) -> Handle:
    wrong = calls(("look", {"item": 7}), ("peek", {}), ("look", {"item": "a"}))
    async with harness.worker(scripted_agent(look), scripts={"main": script(wrong, DONE)}):
        run = await harness.start(PROMPT)
        assert [record.ok for record in (await run.result()).tool_results] == [False, False, True]
        await show(run, "tool_invalid")
    return run


async def empty_replies(harness: Harness) -> Handle:
    async with harness.worker(scripted_agent(), scripts={"main": script(says(""))}):
        run = await harness.start(PROMPT)
        assert (await failure_of(run))[0].type == "ModelBehaviour"
    return run


class Moody:
    """A model with these ends to its requests, in order."""

    def __init__(self, *ends: ModelFailure | Completion) -> None:
        self._ends = list(ends)

    async def complete(self, request: CompletionRequest) -> Completion:
        end = self._ends.pop(0)
        if isinstance(end, ModelFailure):
            raise end
        return end


OVERLOADED = ModelFailure("ModelUnavailable", "overloaded", retryable=True, retry_after=0.01)
MOODY = scripted_agent().model_copy(update={"model": "moody:main"})


async def model_failure(harness: Harness) -> Handle:
    """The second attempt fails for good."""
    refused = ModelFailure("ModelAuthentication", "the key is refused")
    async with harness.worker(MOODY, providers={"moody": Moody(OVERLOADED, refused)}):
        run = await harness.start(PROMPT)
        assert (await failure_of(run))[0].type == "ModelAuthentication"
        await show(run, "model_failed", "run_failed")
    return run


# -- ends and options


async def max_rounds(harness: Harness) -> Handle:
    """The one round that is allowed is of a reply that was cut off, so that none of it ran."""
    cut_off = {**calls(("look", {"item": "a"})), "truncated": True}
    replies = script(cut_off, calls(("look", {"item": "a"})), DONE)
    async with harness.worker(scripted_agent(look, max_rounds=1), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        assert (await failure_of(run))[0].type == "MaxRoundsExceeded"
        await show(run, "tool_invalid", "run_failed")
    return run


async def refused_input(harness: Harness) -> Handle:
    async with harness.worker(scripted_agent()):
        run = await harness.start({"agent": "tester"})
        assert (await failure_of(run))[0].type == "InvalidInput"
    return run


async def fail_run(harness: Harness) -> Handle:
    """Side by side, a read fails and a write is done; the round after it is not begun."""
    replies = script(calls(("look", {"item": "nothing"}), ("note", {"text": "a"})), DONE)
    options = {"on_tool_error": "fail_run", "tool_concurrency": "parallel"}
    async with harness.worker(scripted_agent(look, note), scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": options})
        error, partial = await failure_of(run)
        assert (error.type, [effect.state for effect in partial.effects]) == ("ToolFailed", ["done"])
    return run


async def sequential_calls(harness: Harness) -> Handle:
    """One call after the other, though reads could go side by side."""
    replies = script(calls(("look", {"item": "a"}), ("look", {"item": "b"})), DONE)
    options = {"tool_concurrency": "sequential", "tool_output": {"max_bytes": 256, "max_tokens": 64}}
    async with harness.worker(scripted_agent(look), scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": options})
        assert len((await run.result()).tool_results) == 2
    return run


async def cancelled_in_flight(harness: Harness) -> Handle:
    """A write finishes all the same, and the call after it is not begun."""
    started = asyncio.Event()

    @tool(side_effect="write", lost_after=1)
    async def finish() -> str:
        """Finish even when asked to stop."""
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done anyway"
        return "never"

    replies = script(calls(("finish", {}), ("note", {"text": "a"})), DONE)
    async with harness.worker(scripted_agent(finish, note), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        await started.wait()
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        await show(run, "tool_completed", "run_cancelled")
    return run


SCENARIOS = (
    plain_answer,
    parallel_reads,
    invalid_calls,
    empty_replies,
    model_failure,
    max_rounds,
    refused_input,
    fail_run,
    sequential_calls,
    cancelled_in_flight,
)
