"""What a run that does not complete does with its effects: undone, the latest first, or an operator is told."""

import asyncio

import pytest
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError

from activities.tooling import tool
from contracts.runs import AgentRunResult
from contracts.search_attributes import AGENT_NEEDS_OPERATOR
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Harness,
    calls,
    event_of,
    event_types,
    events_of,
    failure_of,
    says,
    script,
    state_of,
)
from tests.support.hotel import FAIL_RUN, Hotel, failing_after, hotel_agent


async def test_a_failed_run_undoes_its_effects_the_latest_first(harness: Harness) -> None:
    hotel = Hotel()
    async with harness.worker(hotel_agent(hotel), scripts={"main": failing_after(1, 2, 3)}):
        run = await harness.start({**FAIL_RUN, "context": {"tenant_id": "acme"}})
        error, partial = await failure_of(run)
        types = await event_types(run)
        state = await state_of(run)
    assert hotel.log == ["book 1", "book 2", "book 3", "give back 3", "give back 2", "give back 1"]
    assert error.type == "ToolFailed"
    assert [effect.state for effect in partial.effects] == ["compensated"] * 3
    assert [effect.compensation.text for effect in partial.effects if effect.compensation] == [
        "room 1 is free",
        "room 2 is free",
        "room 3 is free",
    ]
    assert types[-7:] == [*["compensation_started", "compensation_completed"] * 3, "run_failed"]
    assert state.status == "failed"
    # The original call, its outcome and its context are handed over.
    latest = hotel.undone[0]
    assert (latest.invocation.call_id, latest.outcome.text) == ("call_3", "booked 3")
    assert latest.invocation.context.tenant_id == "acme"
    assert latest.invocation.idempotency_key == partial.tool_results[2].idempotency_key


@pytest.mark.parametrize(("compensate_on", "added"), [((), []), (("cancelled", "timed_out"), [])])
async def test_effects_stay_where_nobody_wants_them_undone(
    harness: Harness, compensate_on: tuple[str, ...], added: list[str]
) -> None:
    hotel = Hotel()
    replies = failing_after(1)
    async with harness.worker(hotel_agent(hotel, compensate_on=compensate_on), scripts={"main": replies}):
        _, partial = await failure_of(await harness.start(FAIL_RUN))
    assert hotel.log == ["book 1"]
    assert [effect.state for effect in partial.effects] == ["done"]


async def test_the_options_of_a_run_may_add_an_end_to_compensate_on(harness: Harness) -> None:
    hotel = Hotel()
    options = {"on_tool_error": "fail_run", "compensate_on": ["failed"]}
    async with harness.worker(hotel_agent(hotel, compensate_on=()), scripts={"main": failing_after(1)}):
        await failure_of(await harness.start({**PROMPT, "options": options}))
    assert hotel.log == ["book 1", "give back 1"]


async def test_an_undo_that_fails_for_good_is_told_and_the_others_go_on(harness: Harness) -> None:
    hotel = Hotel(undo_fails=2)
    async with harness.worker(hotel_agent(hotel), scripts={"main": failing_after(1, 2)}):
        run = await harness.start(FAIL_RUN)
        error, partial = await failure_of(run)
        failed = await event_of(run, "compensation_failed")
        described = await run.describe()
    assert described.typed_search_attributes.get(AGENT_NEEDS_OPERATOR) is True
    assert hotel.log == ["book 1", "book 2", "give back 1"]
    assert [effect.state for effect in partial.effects] == ["compensated", "compensation_failed"]
    left = partial.effects[1].compensation
    assert left is not None
    assert left.attempts == 2
    assert failed.data["call_id"] == "call_2"
    assert error.type == "ToolFailed"


async def test_a_cancelled_run_undoes_its_effects_whatever_comes_meanwhile(harness: Harness) -> None:
    hotel = Hotel()
    hotel.go_on.clear()

    @tool(side_effect="read")
    async def wait_for_ever() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return "never"

    spec = scripted_agent(hotel.book, wait_for_ever).model_copy(update={"compensate_on": ("cancelled",)})
    replies = script(calls(("book", {"room": 1})), calls(("wait_for_ever", {})), says("-"))
    async with harness.worker(spec, scripts={"main": replies}):
        run = await harness.start(PROMPT)
        await event_of(run, "tool_started", lambda event: event.data["tool"] == "wait_for_ever")
        await run.cancel()
        await hotel.undoing.wait()
        assert (await state_of(run)).status == "running"
        await run.cancel()
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.execute_update("cancel_run", {"reason": "again"})
        assert "ending already" in str(refused.value.cause)
        hotel.go_on.set()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        state = await state_of(run)
        result: AgentRunResult = await run.query("result", result_type=AgentRunResult)
        types = await event_types(run)
    assert hotel.log == ["book 1", "give back 1"]
    assert state.status == result.status == "cancelled"
    assert [effect.state for effect in result.effects] == ["compensated"]
    assert types.count("compensation_started") == 1
    assert types[-1] == "run_cancelled"


async def test_a_run_past_its_deadline_ends_as_timed_out_and_undoes_its_effects(harness: Harness) -> None:
    hotel = Hotel()

    @tool(side_effect="read", lost_after=1)
    async def wait_for_ever() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return "never"

    spec = scripted_agent(hotel.book, wait_for_ever).model_copy(update={"compensate_on": ("timed_out",)})
    replies = script(calls(("book", {"room": 1})), calls(("wait_for_ever", {}), text="Let me see."), says("-"))
    async with harness.worker(spec, scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": {"deadline_seconds": 5}})
        error, partial = await failure_of(run)
        state = await state_of(run)
        events = await events_of(run)
    assert error.type == "DeadlineExceeded"
    assert (state.status, partial.status, partial.text) == ("timed_out", "timed_out", "Let me see.")
    assert partial.error is not None
    assert (partial.error.type, partial.error.message) == (error.type, error.message)
    assert [record.call_id for record in partial.tool_results] == ["call_1", "call_2"]
    assert hotel.log == ["book 1", "give back 1"]
    assert events[-1].type == "run_timed_out"
    assert state.limits["deadline_seconds"].max == 5
