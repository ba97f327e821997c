"""The deadline of a run: a timer of its own, whatever the run waits for, and a story with an end."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from activities.providers.interface import Completion, CompletionRequest, ModelFailure, Publish, to_nobody
from activities.tooling import tool
from contracts.approvals import ApprovalRequest
from contracts.messages import Usage, illegality
from contracts.policies import CompensationRule
from contracts.tools import UndoRequest
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Harness,
    calls,
    event_types,
    events_of,
    failure_of,
    pending_approval,
    says,
    script,
    state_of,
    transcript_of,
)
from tests.support.waiting import eventually

HOUR = 3_600


@tool(side_effect="write", approval="always")
def pay(amount: int) -> str:
    """Pay."""
    raise AssertionError("paid without an approval")


async def test_it_counts_from_the_start_though_no_worker_was_there(harness: Harness) -> None:
    run = await harness.start({**PROMPT, "options": {"deadline_seconds": 1}})
    deadline = (await run.describe()).start_time + timedelta(seconds=1)

    async def passed() -> bool:
        return datetime.now(UTC) > deadline

    await eventually(passed)
    async with harness.worker(scripted_agent(), scripts={"main": script(says("never"))}):
        error, partial = await failure_of(run)
        types = await event_types(run)
        state = await state_of(run)
    assert (error.type, partial.status) == ("DeadlineExceeded", "timed_out")
    assert types == ["run_started", "run_timed_out"]
    assert state.limits["deadline_seconds"].used >= 1


@pytest.mark.parametrize("on_expired", ["tell_model", "fail_run"])
@pytest.mark.parametrize("source", ["options", "context"])
async def test_a_run_that_waits_for_a_person_ends_by_it(
    skipping: WorkflowEnvironment, source: str, on_expired: str
) -> None:
    """The request ends at the same moment. What ends the run is its deadline, not that nobody has answered."""
    harness = Harness(skipping.client)
    deadline = (await skipping.get_current_time()) + timedelta(seconds=HOUR)
    within = {"options": {"deadline_seconds": HOUR}, "context": {"deadline": deadline.isoformat()}}
    agent = scripted_agent(pay).model_copy(update={"on_approval_expired": on_expired})
    replies = script(calls(("pay", {"amount": 1}), text="May I?"), says("never"))
    async with harness.worker(agent, scripts={"main": replies}):
        run = await harness.start({**PROMPT, source: within[source]})
        asked: ApprovalRequest = await pending_approval(run)
        error, partial = await failure_of(run)
        state = await state_of(run)
        events = await events_of(run)
        messages = (await transcript_of(run)).messages
    assert (error.type, state.status, partial.text) == ("DeadlineExceeded", "timed_out", "May I?")
    assert state.pending_approvals == ()
    assert asked.expires_at.isoformat() in error.message
    assert [event.type for event in events].count("model_started") == 1
    assert events[-1].at - events[0].at < timedelta(seconds=HOUR + 60)
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    assert illegality(messages) is None
    await harness.check_histories()


class OutOfQuota:
    """A model whose provider asks to wait for five hours."""

    def __init__(self) -> None:
        self.calls = 0

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        self.calls += 1
        raise ModelFailure(
            "ModelUnavailable", "out of quota", retryable=True, retry_after=5.0 * HOUR, usage=Usage(input_tokens=7)
        )


async def test_a_run_whose_model_is_to_be_asked_again_later_ends_by_it(skipping: WorkflowEnvironment) -> None:
    harness, model = Harness(skipping.client), OutOfQuota()
    agent = scripted_agent().model_copy(update={"model": "quota:main"})
    async with harness.worker(agent, providers={"quota": model}):
        run = await harness.start({**PROMPT, "options": {"deadline_seconds": HOUR}})
        error, partial = await failure_of(run)
        events = await events_of(run)
    assert (error.type, partial.status, model.calls) == ("DeadlineExceeded", "timed_out", 1)
    assert partial.usage.input_tokens == 7
    assert timedelta(seconds=HOUR - 60) < events[-1].at - events[0].at < timedelta(seconds=HOUR + 60)
    await harness.check_histories()


async def test_a_write_in_flight_is_seen_to_its_end_and_then_undone(harness: Harness) -> None:
    log: list[str] = []

    @tool(side_effect="write", lost_after=1, compensation=CompensationRule())
    async def stubborn() -> str:
        """Finish even when asked to stop."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.append("written")
        return "done anyway"

    @stubborn.undo
    def take_back(request: UndoRequest) -> str:
        log.append(f"taken back: {request.outcome.text}")
        return "taken back"

    agent = scripted_agent(stubborn, pay).model_copy(update={"compensate_on": ("timed_out",)})
    replies = script(calls(("stubborn", {}), ("pay", {"amount": "x"})), says("never"))
    async with harness.worker(agent, scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": {"deadline_seconds": 2}})
        error, partial = await failure_of(run)
        messages = (await transcript_of(run)).messages
    assert error.type == "DeadlineExceeded"
    # The model would read that it was done: that is what the call came to. What became of the effect is the ledger's.
    assert next(message.text for message in messages if message.role == "tool") == "done anyway"
    assert [(record.call_id, record.ok) for record in partial.tool_results] == [("call_1", True), ("call_2", False)]
    assert log == ["written", "taken back: done anyway"]
    assert [effect.state for effect in partial.effects] == ["compensated"]
