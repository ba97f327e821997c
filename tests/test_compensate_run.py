"""An operator has the effects of a closed run undone: whatever closed it, as often as it takes."""

import asyncio
from collections.abc import Mapping

import pytest
from pydantic import JsonValue
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError, WorkflowHandle, WorkflowHistory
from temporalio.exceptions import ApplicationError, CancelledError

from activities.tooling import tool
from contracts.effects import CompensateRunResult, LedgerPage, LedgerQuery
from contracts.policies import CompensationRule
from contracts.tools import UndoOutcome, UndoRequest
from runtime.dev_server import DevServer
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Handle,
    Harness,
    calls,
    event_of,
    failure_of,
    histories,
    says,
    script,
)
from tests.support.hotel import FAIL_RUN, Hotel, failing_after, hotel_agent
from tests.support.waiting import eventually

Undoing = WorkflowHandle[object, CompensateRunResult]


async def refused(undoing: Undoing) -> tuple[ApplicationError, CompensateRunResult]:
    """What a `CompensateRun` fails with, and the result that comes with it."""
    with pytest.raises(WorkflowFailureError) as failed:
        await undoing.result()
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    return cause, CompensateRunResult.model_validate(cause.details[0])


def undone(result: CompensateRunResult) -> list[tuple[str, str, str]]:
    return [
        (effect.call_id, effect.state, effect.compensation.state if effect.compensation else "-")
        for effect in result.effects
    ]


def first_run_id(history: WorkflowHistory) -> str:
    """The id of the first execution of the chain that this one is part of."""
    return history.events[0].workflow_execution_started_event_attributes.first_execution_run_id


async def cancel_is_recorded(undoing: Undoing) -> bool:
    history = await undoing.fetch_history()
    return any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED for event in history.events)


async def ledger_of(run: Handle) -> LedgerPage:
    page: LedgerPage = await run.query("ledger", LedgerQuery(), result_type=LedgerPage)
    return page


def _without_deadline(request: UndoRequest) -> UndoRequest:
    invocation = request.invocation.model_copy(update={"deadline": None})
    return request.model_copy(update={"invocation": invocation})


async def test_an_operator_undoes_these_calls_or_all_and_again(harness: Harness) -> None:
    hotel = Hotel()
    async with harness.worker(hotel_agent(hotel, compensate_on=()), scripts={"main": failing_after(1, 2, 3)}):
        run = await harness.start({**FAIL_RUN, "context": {"tenant_id": "acme"}})
        _, partial = await failure_of(run)
        named = {"workflow_id": run.id, "run_id": partial.run_id, "call_ids": ["call_2", "call_9"]}
        error, some = await refused(await harness.compensate(named))
        everything = await (await harness.compensate({"workflow_id": run.id})).result()
        kept = await ledger_of(run)
    assert hotel.log[3:] == ["give back 2", "give back 3", "give back 1"]
    assert (some.workflow_id, some.run_id) == (run.id, partial.run_id)
    assert undone(some) == [("call_2", "compensated", "compensated")]
    # The other named call is none of this run's, which must not look like success.
    assert (error.type, error.message) == ("InvalidInput", "1 named calls with nothing to undo: call_9")
    # The closed run stays as it is: what was undone before is for the undo to tell.
    assert undone(everything) == [
        ("call_3", "compensated", "compensated"),
        ("call_2", "compensated", "nothing_to_undo"),
        ("call_1", "compensated", "compensated"),
    ]
    assert everything.run_id == partial.run_id
    assert [entry.effect.state for entry in kept.entries] == ["done"] * 3
    # Call, key, outcome and context are those of the run.
    first, again = (request for request in hotel.undone if request.invocation.call_id == "call_2")
    # A deadline is each attempt's own.
    assert _without_deadline(first).model_dump() == _without_deadline(again).model_dump()
    assert first.invocation.idempotency_key == partial.tool_results[1].idempotency_key
    assert (first.outcome.text, first.invocation.context.tenant_id) == ("booked 2", "acme")


async def test_an_undo_that_had_failed_is_made_again_and_what_is_left_is_told(harness: Harness) -> None:
    hotel = Hotel(undo_fails=4)
    async with harness.worker(hotel_agent(hotel), scripts={"main": failing_after(1, 2, 3)}):
        run = await harness.start(FAIL_RUN)
        _, partial = await failure_of(run)
        assert [effect.state for effect in partial.effects] == ["compensated", *["compensation_failed"] * 2]
        hotel.break_for(2)
        error, result = await refused(await harness.compensate({"workflow_id": run.id}))
    assert error.type == "CompensationFailed"
    assert error.message == "1 effects could not be undone: call_3 (book)"
    # The other one was tried all the same.
    assert undone(result) == [("call_3", "compensation_failed", "failed"), ("call_2", "compensated", "compensated")]
    left = result.effects[0].compensation
    assert left is not None
    assert left.attempts == 2
    assert left.text.startswith("RuntimeError: the desk is closed")


async def test_what_a_terminated_run_had_begun_is_undone(harness: Harness) -> None:
    """Nobody saw how its last call ended: the undo is told so, and the key."""
    hotel, seen = Hotel(), list[UndoRequest]()

    @tool(side_effect="write", compensation=CompensationRule())
    async def hold() -> str:
        """Hold the line."""
        await asyncio.Event().wait()
        return "never"

    @hold.undo
    async def let_go(request: UndoRequest) -> UndoOutcome:
        seen.append(request)
        return UndoOutcome()

    replies = script(calls(("book", {"room": 1})), calls(("hold", {})), says("-"))
    async with harness.worker(scripted_agent(hotel.book, hold), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        await event_of(run, "tool_started", lambda event: event.data["tool"] == "hold")
        await run.terminate("the machine room is on fire")
        result = await (await harness.compensate({"workflow_id": run.id})).result()
    assert undone(result) == [("call_2", "compensated", "compensated"), ("call_1", "compensated", "compensated")]
    assert seen[0].outcome.error is not None
    assert seen[0].outcome.error.category == "unknown_outcome"
    assert seen[0].invocation.idempotency_key
    assert hotel.log == ["book 1", "give back 1"]


async def test_one_that_is_cancelled_finishes_what_it_has_begun_and_begins_nothing_more(harness: Harness) -> None:
    hotel = Hotel()
    hotel.go_on.clear()
    async with harness.worker(hotel_agent(hotel, compensate_on=()), scripts={"main": failing_after(1, 2)}):
        run = await harness.start(FAIL_RUN)
        await failure_of(run)
        undoing = await harness.compensate({"workflow_id": run.id})
        await hotel.undoing.wait()
        await undoing.cancel()
        await eventually(lambda: cancel_is_recorded(undoing))
        hotel.go_on.set()
        with pytest.raises(WorkflowFailureError) as ended:
            await undoing.result()
        assert isinstance(ended.value.cause, CancelledError)
        rest = await (await harness.compensate({"workflow_id": run.id})).result()
    assert hotel.log[2:] == ["give back 2", "give back 1"]
    assert undone(rest)[0] == ("call_2", "compensated", "nothing_to_undo")


async def test_what_cannot_be_compensated_is_refused_by_name(harness: Harness) -> None:
    @tool(side_effect="write", approval="always")
    def never() -> str:
        """Wait for a person."""
        return "-"

    carried = {"before": 1, "effects": [], "effects_omitted": 0, "effects_left": 0}
    async with harness.worker(scripted_agent(never), scripts={"main": script(calls(("never", {})))}):
        run = await harness.start(PROMPT)
        first = await harness.compensate({"workflow_id": "no-such-run"})
        for undoing, reason in (
            (first, "there is no run 'no-such-run'"),
            (await harness.compensate({"workflow_id": run.id}), "cancel it first"),
            (await harness.compensate({"workflow_id": run.id, "run_id": "no-id"}), "there is no run"),
            (await harness.compensate({"workflow_id": first.id}), f"'{first.id}' is a CompensateRun, and no AgentRun"),
            (await harness.compensate(), "the input is not a CompensateRunInput"),
            (await harness.compensate(7), "the input is not a CompensateRunInput"),
            (await harness.compensate({"workflow_id": ""}), "workflow_id: String should have at least 1 character"),
            (await harness.compensate({"workflow_id": "x", "call_ids": "call_1"}), "call_ids: "),
            (await harness.compensate({"workflow_id": "x", "carried": carried}), "leave it out"),
        ):
            error, result = await refused(undoing)
            assert error.type == "InvalidInput"
            assert reason in error.message
            assert result.effects == ()
        await run.cancel()


async def test_a_run_that_had_nothing_to_undo_is_compensated_at_once(harness: Harness) -> None:
    """Not even an agent: it is asked for only where there is something to undo."""
    async with harness.worker(scripted_agent(), scripts={"main": script(says("-"))}):
        run = await harness.start({"agent": "nobody", "prompt": "Go."})
        await failure_of(run)
        result = await (await harness.compensate({"workflow_id": run.id})).result()
    assert (result.workflow_id, result.effects) == (run.id, ())


@pytest.mark.long
async def test_a_long_ledger_is_undone_page_by_page_and_execution_by_execution(impatient: DevServer) -> None:
    """40 effects with 30 KB of arguments each: three pages, and more than one history of this server takes."""
    harness, hotel = Harness(impatient.client), Hotel(undo_fails=2)

    def bookings(rooms: range) -> Mapping[str, object]:
        return calls(*(("book", dict[str, JsonValue](room=room, notes="n" * 30_000)) for room in rooms))

    replies = script(bookings(range(20)), bookings(range(20, 40)), calls(("fail", {})))
    agent = hotel_agent(hotel, compensate_on=())
    async with harness.worker(agent, scripts={"main": replies}):
        run = await harness.start(FAIL_RUN)
        await failure_of(run)
        chain = await histories(harness.client, run.id)
        undoing = await harness.compensate({"workflow_id": run.id})
        error, result = await refused(undoing)
        error_of_first, _ = await refused(
            await harness.compensate({"workflow_id": run.id, "run_id": first_run_id(chain[0])})
        )
        undoings = await histories(harness.client, undoing.id)
        named = [f"call_{number}" for number in range(1, 41)]
        await (await harness.compensate({"workflow_id": run.id, "call_ids": named})).result()
        error_of_named, _ = await refused(
            await harness.compensate({"workflow_id": run.id, "call_ids": ["call_0", *named]})
        )
    assert error_of_named.message == "1 named calls with nothing to undo: call_0"
    assert len(chain) > 1
    assert "name its last execution" in error_of_first.message
    assert len(undoings) > 1
    assert error.message == "1 effects could not be undone: call_40 (book)"
    assert [effect.call_id for effect in result.effects] == [f"call_{number}" for number in range(40, 0, -1)]
    assert [effect.state for effect in result.effects] == ["compensation_failed", *["compensated"] * 39]
    assert hotel.log[40:79] == [f"give back {room}" for room in range(38, -1, -1)]
    await harness.check_histories()
