"""What a run that does not complete does with its effects: undone, the latest first, or an operator is told."""

import asyncio

import pytest
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from activities.providers.scripted import Script
from activities.tooling import Tool, tool
from contracts.agents import AgentSpec
from contracts.policies import CompensationRule
from contracts.runs import AgentRunResult
from contracts.tools import UndoOutcome, UndoRequest
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


class Hotel:
    """Rooms that are booked and given back, and a desk that fails on request."""

    def __init__(self, undo_fails: int = 0) -> None:
        self.log: list[str] = []
        self.undone: list[UndoRequest] = []
        self.undoing = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self._undo_fails = undo_fails

    @property
    def book(self) -> Tool:
        @tool(side_effect="write", compensation=CompensationRule(timeout=30, max_attempts=2))
        def book(room: int) -> str:
            """Book a room."""
            self.log.append(f"book {room}")
            return f"booked {room}"

        @book.undo
        async def give_back(request: UndoRequest) -> UndoOutcome:
            self.undone.append(request)
            self.undoing.set()
            await self.go_on.wait()
            room = request.invocation.arguments["room"]
            if self._undo_fails:
                self._undo_fails -= 1
                raise RuntimeError("the desk is closed")
            self.log.append(f"give back {room}")
            return UndoOutcome(text=f"room {room} is free")

        return book


def failing_after(*rooms: int) -> Script:
    """Replies that book rooms and then ask for a tool that fails."""
    return script(*(calls(("book", {"room": room})) for room in rooms), calls(("fail", {})), says("-"))


@tool(side_effect="read")
def fail() -> str:
    """Fail."""
    raise RuntimeError("no")


def agent(hotel: Hotel, **settings: object) -> AgentSpec:
    return scripted_agent(hotel.book, fail).model_copy(update={"compensate_on": ("failed",), **settings})


FAIL_RUN = {**PROMPT, "options": {"on_tool_error": "fail_run"}}


async def test_a_failed_run_undoes_its_effects_the_latest_first(harness: Harness) -> None:
    hotel = Hotel()
    async with harness.worker(agent(hotel), scripts={"main": failing_after(1, 2, 3)}):
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
    async with harness.worker(agent(hotel, compensate_on=compensate_on), scripts={"main": replies}):
        _, partial = await failure_of(await harness.start(FAIL_RUN))
    assert hotel.log == ["book 1"]
    assert [effect.state for effect in partial.effects] == ["done"]


async def test_the_options_of_a_run_may_add_an_end_to_compensate_on(harness: Harness) -> None:
    hotel = Hotel()
    options = {"on_tool_error": "fail_run", "compensate_on": ["failed"]}
    async with harness.worker(agent(hotel, compensate_on=()), scripts={"main": failing_after(1)}):
        await failure_of(await harness.start({**PROMPT, "options": options}))
    assert hotel.log == ["book 1", "give back 1"]


async def test_an_undo_that_fails_for_good_is_told_and_the_others_go_on(harness: Harness) -> None:
    hotel = Hotel(undo_fails=2)
    async with harness.worker(agent(hotel), scripts={"main": failing_after(1, 2)}):
        run = await harness.start(FAIL_RUN)
        error, partial = await failure_of(run)
        failed = await event_of(run, "compensation_failed")
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
        run = await harness.start({**PROMPT, "options": {"deadline_seconds": 2}})
        error, partial = await failure_of(run)
        state = await state_of(run)
        events = await events_of(run)
    assert error.type == "DeadlineExceeded"
    assert (state.status, partial.status, partial.text) == ("timed_out", "timed_out", "Let me see.")
    assert [record.call_id for record in partial.tool_results] == ["call_1", "call_2"]
    assert hotel.log == ["book 1", "give back 1"]
    assert events[-1].type == "run_timed_out"
    assert state.limits["deadline_seconds"].max == 2


async def test_an_operator_undoes_what_a_closed_run_left(harness: Harness) -> None:
    hotel = Hotel(undo_fails=2)
    async with harness.worker(agent(hotel), scripts={"main": failing_after(1, 2)}):
        run = await harness.start(FAIL_RUN)
        _, partial = await failure_of(run)
        assert [effect.state for effect in partial.effects] == ["compensated", "compensation_failed"]
        undoing = await harness.client.start_workflow(
            "CompensateRun", {"workflow_id": run.id}, id=f"compensate-{run.id}", task_queue=harness.task_queue
        )
        result = await undoing.result()
    assert hotel.log[-1] == "give back 2"
    assert result["run_id"] == partial.run_id
    assert [(effect["call_id"], effect["state"]) for effect in result["effects"]] == [("call_2", "compensated")]


async def test_a_running_run_is_not_compensated_from_outside(harness: Harness) -> None:
    run = await harness.start(PROMPT)
    hotel = Hotel()
    undoing = await harness.client.start_workflow(
        "CompensateRun", {"workflow_id": run.id}, id=f"compensate-{run.id}", task_queue=harness.task_queue
    )

    @tool(side_effect="write", approval="always")
    def never() -> str:
        """Wait for a person."""
        return "-"

    async with harness.worker(scripted_agent(hotel.book, never), scripts={"main": script(calls(("never", {})))}):
        with pytest.raises(WorkflowFailureError) as failed:
            await undoing.result()
        await run.cancel()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "InvalidInput"
    assert "cancel it first" in failed.value.cause.message
