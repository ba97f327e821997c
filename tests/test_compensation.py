"""Effects that went half way: undone once before they are tried again, looked up where nobody saw their end, and never
silent when neither works."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHistory

from activities.tooling import ToolError, tool
from contracts.events import Event
from contracts.outcomes import ToolOutcome
from contracts.policies import CompensationRule, Idempotency, RetryRule
from contracts.runs import ToolResultsPage
from contracts.tools import Reconciliation, ToolInvocation, UndoOutcome, UndoRequest
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Handle,
    Harness,
    attempts,
    calls,
    event_of,
    event_types,
    events_of,
    histories,
    says,
    script,
    state_of,
    transcript_of,
)

TWICE = RetryRule(max_attempts=2, initial_interval=0.01, max_interval=0.02)
THREE_TIMES = TWICE.model_copy(update={"max_attempts": 3})
ONCE = RetryRule()
FOR_EVER = "for ever"
REPLIES = {"main": script(calls(("book", {"seat": "1A"})), says("Seen."))}


def left_behind(token: str = "undo-1", message: str = "half booked") -> ToolError:
    """The failure of an attempt that left something to undo."""
    return ToolError(
        "unavailable", message, code="half", retryable=True, compensation_required=True, compensation_token=token
    )


class Desk:
    """Books seats at a system that knows no keys. What each attempt, undo and question comes to is given in order; what
    they were given is kept."""

    def __init__(
        self,
        *attempts: BaseException | str,
        undos: Sequence[BaseException | UndoOutcome | str | None] | None = None,
        finds: Sequence[BaseException | Reconciliation] | None = None,
        retry: RetryRule = ONCE,
        undo_attempts: int = 1,
        undo_timeout: float = 60,
        idempotency: Idempotency = "non_idempotent",
        name: str = "book",
    ) -> None:
        self.log: list[str] = []
        self.made: list[ToolInvocation] = []
        self.undone: list[UndoRequest] = []
        ends, undo_ends, answers = list(attempts), list(undos or ()), list(finds or ())

        @tool(
            name=name,
            side_effect="write",
            idempotency=idempotency,
            retry=retry,
            timeout=0.2 if FOR_EVER in attempts else 60,
            lost_after=1,
            compensation=None if undos is None else CompensationRule(max_attempts=undo_attempts, timeout=undo_timeout),
            reconciles=finds is not None,
        )
        async def book(seat: str, invocation: ToolInvocation) -> str:
            """Book a seat."""
            self.log.append(f"book {invocation.attempt}")
            self.made.append(invocation)
            return await _end(ends.pop(0))

        if undos is not None:

            @book.undo
            async def unbook(request: UndoRequest) -> UndoOutcome | str | None:
                self.log.append(f"undo {request.invocation.attempt}")
                self.undone.append(request)
                end = undo_ends.pop(0)
                return await _end(end) if isinstance(end, BaseException | str) else end

        if finds is not None:

            @book.reconcile
            def look_up(invocation: ToolInvocation) -> Reconciliation:
                self.log.append("look up")
                answer = answers.pop(0)
                if isinstance(answer, BaseException):
                    raise answer
                return answer

        self.book = book


async def _end(end: BaseException | str) -> str:
    if isinstance(end, BaseException):
        raise end
    if end == FOR_EVER:
        await asyncio.Event().wait()
    return end


@dataclass(frozen=True)
class Seen:
    """What one call came to, for the world, the model and the record. `events` are those of the call, from its start to
    its end."""

    outcome: ToolOutcome
    events: tuple[Event, ...]
    effect: str
    attempts: int
    text: str

    @property
    def category(self) -> str | None:
        return self.outcome.error.category if self.outcome.error else None

    @property
    def story(self) -> list[str]:
        return [event.type for event in self.events]

    def event(self, type: str) -> Event:
        (found,) = [event for event in self.events if event.type == type]
        return found


async def outcomes_of(run: Handle) -> list[ToolOutcome]:
    """The complete outcomes of the run's calls."""
    page: ToolResultsPage = await run.query("tool_results", result_type=ToolResultsPage)
    return [record.outcome for record in page.records]


async def runs_of(harness: Harness, *desks: Desk) -> tuple[WorkflowHistory, list[Seen]]:
    """Play a run to its end that calls each of these desks once, side by side."""
    replies = {"main": script(calls(*((desk.book.name, {"seat": "1A"}) for desk in desks)), says("Seen."))}
    async with harness.worker(scripted_agent(*(desk.book for desk in desks)), scripts=replies):
        run = await harness.start({**PROMPT, "options": {"tool_concurrency": "parallel"}})
        result = await run.result()
        outcomes, events = await outcomes_of(run), await events_of(run)
    (history,) = await histories(harness.client, run.id)
    seen = []
    for record, effect, outcome in zip(result.tool_results, result.effects, outcomes, strict=True):
        own = tuple(
            event
            for event in events
            if event.data.get("call_id") == record.call_id
            and event.type.startswith(("tool_started", "tool_completed", "tool_failed", "effect", "compensation"))
        )
        seen.append(Seen(outcome, own, effect.state, record.attempts, record.text))
    return history, seen


async def run_of(harness: Harness, desk: Desk) -> tuple[WorkflowHistory, Seen]:
    """Play a run to its end that calls this desk once."""
    history, (seen,) = await runs_of(harness, desk)
    return history, seen


# -- undo between attempts


async def test_an_attempt_that_left_something_is_undone_once_and_then_made_again(harness: Harness) -> None:
    """C05."""
    desk = Desk(left_behind("undo-1"), "booked", undos=[None], retry=TWICE)
    history, seen = await run_of(harness, desk)
    assert desk.log == ["book 1", "undo 1", "book 2"]
    (request,) = desk.undone
    assert request.compensation_token == "undo-1"
    error = request.outcome.error
    assert error is not None
    assert (error.category, error.code, error.message) == ("unavailable", "half", "half booked")
    assert request.outcome.compensation_token == "undo-1"
    assert request.invocation.arguments == {"seat": "1A"}
    assert len({made.idempotency_key for made in (*desk.made, request.invocation)}) == 1
    assert len({made.call_id for made in (*desk.made, request.invocation)}) == 1
    assert seen.outcome.ok
    assert (seen.text, seen.attempts, seen.effect) == ("booked", 2, "done")
    assert seen.story == ["tool_started", "compensation_started", "compensation_completed", "tool_completed"]
    # Temporal repeated nothing: each attempt is an activity of its own.
    assert attempts(history, "book") == [1, 1]
    assert attempts(history, "book.undo") == [1]


async def test_each_undo_is_given_the_failure_and_the_token_of_its_own_attempt(harness: Harness) -> None:
    ends = [left_behind("a", "first"), left_behind("b", "second"), left_behind("c", "third")]
    desk = Desk(*ends, undos=[None] * 3, retry=THREE_TIMES)
    _, seen = await run_of(harness, desk)
    assert desk.log == ["book 1", "undo 1", "book 2", "undo 2", "book 3", "undo 3"]
    assert [request.compensation_token for request in desk.undone] == ["a", "b", "c"]
    failures = [request.outcome.error for request in desk.undone]
    assert [error.message for error in failures if error] == ["first", "second", "third"]
    # The last attempt leaves nothing behind either.
    assert (seen.effect, seen.attempts, seen.category) == ("compensated", 3, "unavailable")
    assert seen.outcome.metadata["compensation_succeeded"] is True


async def test_without_an_undo_that_was_asked_for_and_succeeded_there_is_no_further_attempt(harness: Harness) -> None:
    closed = ToolError("unavailable", "closed", retryable=True)
    odd = ToolError("internal", "odd", retryable=True)
    cases: list[tuple[list[ToolError], int, str]] = [
        # Nothing was left behind, or nobody says so: one attempt, though the failure calls itself retryable.
        ([closed], 0, "failed"),
        ([odd], 0, "unknown"),
        # The undo of an earlier attempt allows no further one after the next.
        ([left_behind(), closed], 1, "compensated"),
        ([left_behind(), odd], 1, "unknown"),
        # Undone, but of a kind that another attempt does not mend.
        ([ToolError("conflict", "taken", compensation_required=True)], 1, "compensated"),
    ]
    desks = [
        Desk(*ends, undos=[None, None], retry=THREE_TIMES, name=f"book{number}")
        for number, (ends, _, _) in enumerate(cases)
    ]
    _, all_seen = await runs_of(harness, *desks)
    for desk, seen, (ends, undone, effect) in zip(desks, all_seen, cases, strict=True):
        assert (len(desk.made), len(desk.undone)) == (len(ends), undone)
        assert (seen.effect, seen.attempts, seen.story[-1]) == (effect, len(ends), "tool_failed")


async def test_an_exception_may_have_left_something_so_it_is_undone_before_the_next_attempt(harness: Harness) -> None:
    lost = Desk(RuntimeError("the line went dead"), "booked", undos=["cancelled it"], retry=TWICE)
    nothing = UndoOutcome(state="nothing_to_undo", text="no such seat")
    harmless = Desk(RuntimeError("the line went dead"), "booked", undos=[nothing], retry=TWICE, name="book2")
    _, all_seen = await runs_of(harness, lost, harmless)
    told = []
    for desk, seen in zip((lost, harmless), all_seen, strict=True):
        assert desk.log == ["book 1", "undo 1", "book 2"]
        (request,) = desk.undone
        assert request.compensation_token is None
        assert request.outcome.error is not None
        assert request.outcome.error.category == "unknown_outcome"
        # Finding nothing to undo is no failure.
        assert (seen.text, seen.effect) == ("booked", "done")
        told.append(seen.event("compensation_completed").data)
    assert [(data["state"], data["text"]) for data in told] == [
        ("compensated", "cancelled it"),
        ("nothing_to_undo", "no such seat"),
    ]


async def test_a_keyed_write_is_repeated_by_temporal_and_undone_after_its_last_attempt(harness: Harness) -> None:
    desk = Desk(left_behind("a"), left_behind("b"), undos=[None], retry=TWICE, idempotency="idempotent_with_key")
    history, seen = await run_of(harness, desk)
    assert desk.log == ["book 1", "book 2", "undo 2"]
    assert desk.undone[0].compensation_token == "b"
    assert (seen.effect, seen.attempts) == ("compensated", 2)
    assert attempts(history, "book") == [2]


# -- undo that fails


async def test_an_undo_that_fails_for_good_ends_the_attempts_and_is_never_silent(harness: Harness) -> None:
    cases: list[tuple[int, BaseException | str, int, str]] = [
        # C15.
        (2, ToolError("conflict", "seat is locked", retryable=True), 2, "conflict"),
        (1, ToolError("unavailable", "closed", retryable=True), 1, "unavailable"),
        # One that says that trying again cannot help is believed, and counted as it was.
        (3, ToolError("not_found", "no such seat"), 1, "not_found"),
        (1, RuntimeError("postgres://desk:secret@db is gone"), 1, "unknown_outcome"),
        # Its own timeout, and a late result does not count.
        (1, FOR_EVER, 1, "timeout"),
    ]
    desks = [
        Desk(
            left_behind(),
            "never",
            undos=[end] * 3,
            retry=TWICE,
            undo_attempts=most,
            undo_timeout=0.2 if end == FOR_EVER else 60,
            name=f"book{number}",
        )
        for number, (most, end, _, _) in enumerate(cases)
    ]
    _, all_seen = await runs_of(harness, *desks)
    for desk, seen, (_, _, made, category) in zip(desks, all_seen, cases, strict=True):
        assert (len(desk.made), len(desk.undone)) == (1, made)
        error = seen.outcome.error
        assert error is not None
        assert (error.category, error.message, error.retryable) == ("unavailable", "half booked", False)
        told = seen.outcome.metadata
        assert told["compensation_succeeded"] is False
        assert told["compensation_attempts"] == made
        assert told["compensation_error_category"] == category
        assert told["tool_attempt"] == seen.attempts == 1
        error_told = str(told["compensation_error"])
        assert "secret" not in error_told
        assert ("no result within 0.2 s" in error_told) == (category == "timeout")
        assert seen.effect == "compensation_failed"
        assert seen.story == ["tool_started", "compensation_started", "compensation_failed", "tool_failed"]
        assert seen.event("compensation_failed").data["message"] == told["compensation_error"]
        assert not any(request.invocation.still_mine() for request in desk.undone)


async def test_an_undo_is_repeated_by_its_own_rule(harness: Harness) -> None:
    desk = Desk(left_behind(), "booked", undos=[RuntimeError("locked"), None], retry=TWICE, undo_attempts=2)
    history, seen = await run_of(harness, desk)
    assert desk.log == ["book 1", "undo 1", "undo 1", "book 2"]
    assert (seen.text, seen.effect) == ("booked", "done")
    assert attempts(history, "book.undo") == [2]


# -- an outcome that nobody saw

FOUND = Reconciliation(state="done", outcome=ToolOutcome(ok=True, text="seat 1A, found afterwards"))
NOT_DONE = Reconciliation(state="not_done")
UNKNOWN = Reconciliation(state="unknown")
BROKEN = ToolError("unavailable", "the registry is closed")


async def test_a_timed_out_write_is_looked_up_and_is_what_was_found(harness: Harness) -> None:
    answers: list[Reconciliation | ToolError] = [FOUND, Reconciliation(state="done"), NOT_DONE, UNKNOWN, BROKEN]
    desks = [Desk(FOR_EVER, finds=[answer], name=f"book{number}") for number, answer in enumerate(answers)]
    _, all_seen = await runs_of(harness, *desks)
    done, done_without, not_done, unknown, broken = all_seen
    assert [desk.log for desk in desks] == [["book 1", "look up"]] * 5
    assert [seen.attempts for seen in all_seen] == [1] * 5
    assert (done.text, done.effect) == ("seat 1A, found afterwards", "done")
    assert (done_without.outcome.ok, done_without.effect) == (True, "done")
    assert done.story == ["tool_started", "effect_reconciled", "tool_completed"]

    assert not_done.outcome.error is not None
    told = not_done.outcome.error
    assert (told.category, told.code, told.retryable) == ("unavailable", "not_done", True)
    assert not_done.effect == "failed"
    assert not_done.story == ["tool_started", "effect_reconciled", "tool_failed"]

    for seen in (unknown, broken):
        assert (seen.category, seen.effect) == ("unknown_outcome", "unknown")
        assert "do not repeat it blindly" in seen.text
        assert seen.story == ["tool_started", "effect_reconciled", "effect_unknown", "tool_failed"]
    states = [seen.event("effect_reconciled").data["state"] for seen in all_seen]
    assert states == ["done", "done", "not_done", "unknown", "unknown"]
    assert "registry is closed" in str(broken.event("effect_reconciled").data["message"])


async def test_where_both_are_declared_it_is_looked_up_first_and_undone_if_nobody_knows(harness: Harness) -> None:
    looked_up, undone = ["book 1", "look up"], ["book 1", "look up", "undo 1", "book 2"]
    cases: list[tuple[Reconciliation | ToolError, list[str], str]] = [
        (FOUND, looked_up, "done"),
        (NOT_DONE, looked_up, "failed"),
        (UNKNOWN, undone, "done"),
        (BROKEN, undone, "done"),
    ]
    desks = [
        Desk(FOR_EVER, "booked", finds=[answer], undos=[None], retry=TWICE, name=f"book{number}")
        for number, (answer, _, _) in enumerate(cases)
    ]
    _, all_seen = await runs_of(harness, *desks)
    assert [desk.log for desk in desks] == [log for _, log, _ in cases]
    assert [seen.effect for seen in all_seen] == [effect for _, _, effect in cases]
    assert [seen.attempts for seen in all_seen] == [len(desk.made) for desk in desks]


async def test_an_unknown_outcome_that_was_undone_is_as_if_it_had_not_been_made(harness: Harness) -> None:
    desk = Desk(FOR_EVER, undos=[None])
    _, seen = await run_of(harness, desk)
    error = seen.outcome.error
    assert error is not None
    assert (error.category, error.code, error.retryable) == ("unavailable", "undone", True)
    assert (seen.effect, seen.attempts) == ("compensated", 1)
    assert "effect_unknown" not in seen.story


async def test_what_was_found_afterwards_is_bounded_as_any_result_is(harness: Harness) -> None:
    found = Reconciliation(state="done", outcome=ToolOutcome(ok=True, text="x" * 1_000_000))
    _, seen = await run_of(harness, Desk(FOR_EVER, finds=[found]))
    assert len(seen.text.encode()) <= 65_536
    assert seen.text.startswith("Warning: tool output truncated (original bytes: 1000000,")


# -- cancellation


async def answer_of(run: Handle) -> str:
    """What the run's one call was answered with."""
    (answer,) = [message.text for message in (await transcript_of(run)).messages if message.role == "tool"]
    return answer


async def test_a_cancelled_run_lets_a_running_undo_finish_and_begins_nothing_after_it(harness: Harness) -> None:
    undoing, go_on = asyncio.Event(), asyncio.Event()

    @tool(side_effect="write", retry=TWICE, compensation=CompensationRule(), lost_after=1)
    def book(seat: str, invocation: ToolInvocation) -> str:
        """Book."""
        assert invocation.attempt == 1
        raise left_behind()

    @book.undo
    async def unbook(request: UndoRequest) -> str:
        undoing.set()
        await go_on.wait()
        return "seat 1A is free"

    async with harness.worker(scripted_agent(book), scripts=REPLIES):
        run = await harness.start(PROMPT)
        await undoing.wait()
        await run.cancel()
        await _cancel_is_read(run)
        go_on.set()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        state = await state_of(run)
        undone = await event_of(run, "compensation_completed")
        types = await event_types(run)
        (history,) = await histories(harness.client, run.id)
        assert "half booked" in await answer_of(run)
    assert (state.status, [effect.state for effect in state.effects]) == ("cancelled", ["compensated"])
    assert undone.data["text"] == "seat 1A is free"
    assert types[-1] == "run_cancelled"
    assert attempts(history, "book") == [1]


async def _cancel_is_read(run: Handle) -> None:
    """A query is answered after the tasks before it: the workflow has seen the cancellation."""
    await state_of(run)


LONG = RetryRule(max_attempts=2, initial_interval=600, max_interval=600)


async def test_no_attempt_is_waited_for_that_would_begin_after_the_deadline(harness: Harness) -> None:
    desk = Desk(left_behind(), "never", undos=[None], retry=LONG)
    soon = (datetime.now(UTC) + timedelta(seconds=300)).isoformat()
    async with harness.worker(scripted_agent(desk.book), scripts=REPLIES):
        async with asyncio.timeout(30):
            result = await (await harness.start({**PROMPT, "context": {"deadline": soon}})).result()
    (record,) = result.tool_results
    assert record.error is not None
    assert (record.error.category, record.error.message) == ("timeout", "tool retry exceeded its deadline")
    assert (record.attempts, [effect.state for effect in result.effects]) == (1, ["compensated"])


async def test_a_run_cancelled_between_two_attempts_makes_no_second_one(harness: Harness) -> None:
    desk = Desk(left_behind(), "never", undos=[None], retry=LONG)
    async with harness.worker(scripted_agent(desk.book), scripts=REPLIES):
        run = await harness.start(PROMPT)
        await event_of(run, "compensation_completed")
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            async with asyncio.timeout(20):
                await run.result()
        state = await state_of(run)
        (outcome,) = await outcomes_of(run)
        assert "tool retry cancelled during backoff" in await answer_of(run)
    assert desk.log == ["book 1", "undo 1"]
    assert [effect.state for effect in state.effects] == ["compensated"]
    assert (outcome.metadata["tool_attempt"], outcome.metadata["compensation_succeeded"]) == (1, True)
