"""Cancelling a run: it stops wherever it is, every call has an answer, and what an effect came to is still recorded."""

import asyncio

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError

from activities.hooks import Hooks
from activities.providers.interface import Completion, CompletionRequest, Publish, to_nobody
from activities.tooling import tool
from contracts.context import ExecutionContext
from contracts.messages import ToolCall
from contracts.runs import AgentRunState
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Handle,
    Harness,
    calls,
    event_of,
    event_types,
    pending_approval,
    says,
    script,
    state_of,
    transcript_of,
)


async def cancelled_state(run: Handle) -> AgentRunState:
    """The state of a run that ended as Canceled, its transcript checked."""
    with pytest.raises(WorkflowFailureError) as ended:
        await run.result()
    assert isinstance(ended.value.cause, CancelledError)
    assert (await run.describe()).status == WorkflowExecutionStatus.CANCELED
    page = await transcript_of(run)
    asked = [call.call_id for message in page.messages for call in message.tool_calls]
    assert asked == [message.call_id for message in page.messages if message.role == "tool"]
    state = await state_of(run)
    assert state.status == "cancelled"
    assert state.pending_approvals == ()
    assert (await event_types(run))[-1] == "run_cancelled"
    return state


async def test_a_run_that_waits_for_approval(harness: Harness) -> None:
    ran: list[int] = []

    @tool(side_effect="write", approval="always")
    def transfer(amount: int) -> None:
        """Move money."""
        ran.append(amount)

    async with harness.worker(
        scripted_agent(transfer), scripts={"main": script(calls(("transfer", {"amount": 1})), says("-"))}
    ):
        run = await harness.start(PROMPT)
        await pending_approval(run)
        await run.cancel()
        state = await cancelled_state(run)
    assert ran == []
    assert state.effects == ()


class HangingModel:
    """A model that never answers and notes when its caller goes away."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.left = asyncio.Event()

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        self.called.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        raise AssertionError


async def test_a_run_that_waits_for_the_model(harness: Harness) -> None:
    model = HangingModel()
    agent = scripted_agent().model_copy(update={"model": "hanging:main"})
    async with harness.worker(agent, providers={"hanging": model}):
        run = await harness.start(PROMPT)
        await model.called.wait()
        await run.cancel()
        await cancelled_state(run)
        await model.left.wait()


async def test_a_read_in_flight_is_stopped(harness: Harness) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @tool(side_effect="read", lost_after=1)
    async def wait_for_ever() -> None:
        """Wait."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with harness.worker(
        scripted_agent(wait_for_ever), scripts={"main": script(calls(("wait_for_ever", {})), says("-"))}
    ):
        run = await harness.start(PROMPT)
        await started.wait()
        await run.cancel()
        await cancelled_state(run)
        await stopped.wait()
        (answer,) = [message for message in (await transcript_of(run)).messages if message.role == "tool"]
    # It had begun, so nothing says that it had not.
    assert '"category": "cancelled"' in answer.text
    assert "not_started" not in answer.text


async def test_a_write_that_completes_all_the_same_is_recorded_as_done(harness: Harness) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @tool(side_effect="write", lost_after=1)
    async def stubborn() -> str:
        """Finish even when asked to stop."""
        started.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                go_on.set()
        return "done anyway"

    @tool(side_effect="write")
    async def later() -> str:
        """Never start."""
        raise AssertionError("started after the cancellation")

    replies = script(calls(("stubborn", {}), ("later", {})), says("-"))
    async with harness.worker(scripted_agent(stubborn, later), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        await started.wait()
        await run.cancel()
        state = await cancelled_state(run)
        answers = [message.text for message in (await transcript_of(run)).messages if message.role == "tool"]
    assert [(effect.tool, effect.state) for effect in state.effects] == [("stubborn", "done")]
    assert answers[0] == "done anyway"
    assert "not run" in answers[1]


async def test_a_write_that_stops_is_unknown_not_undone(harness: Harness) -> None:
    started = asyncio.Event()

    @tool(side_effect="write", lost_after=1)
    async def obedient() -> str:
        """Stop when asked."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    async with harness.worker(scripted_agent(obedient), scripts={"main": script(calls(("obedient", {})), says("-"))}):
        run = await harness.start(PROMPT)
        await started.wait()
        await run.cancel()
        state = await cancelled_state(run)
        await event_of(run, "effect_unknown")
    assert [effect.state for effect in state.effects] == ["unknown"]


async def test_a_run_cancelled_before_its_first_step(harness: Harness) -> None:
    run = await harness.start(PROMPT)
    await run.cancel()
    async with harness.worker(scripted_agent(), scripts={"main": script(says("never"))}):
        with pytest.raises(WorkflowFailureError) as ended:
            await run.result()
    assert isinstance(ended.value.cause, CancelledError)


async def test_a_run_whose_calls_are_looked_at(harness: Harness) -> None:
    """The hook is asked to stop, too."""
    looking, stopped = asyncio.Event(), asyncio.Event()

    @tool(side_effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    async def ponder(call: ToolCall, context: ExecutionContext) -> ToolCall:
        looking.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return call

    hooks = [Hooks("tester", prepare_tool_call=ponder)]
    replies = script(calls(("look", {})), says("never"))
    async with harness.worker(scripted_agent(look), scripts={"main": replies}, hooks=hooks):
        run = await harness.start(PROMPT)
        await looking.wait()
        await run.cancel()
        await cancelled_state(run)
        async with asyncio.timeout(10):
            await stopped.wait()
        assert [message.role for message in (await transcript_of(run)).messages] == ["user"]
