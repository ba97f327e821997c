"""A view of a reply that is being written: whatever gets lost, repeated or late, it ends with what was recorded."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.deltas import BuildingCall, DeltaBatch, DeltaEvent, DeltaType, DeltaView, ReadyCall
from contracts.messages import Usage


def told(type: DeltaType, sequence: int, text: str = "", *, attempt: int = 1, **more: object) -> DeltaEvent:
    fields = {"workflow_id": "w", "run_id": "r", "key": "k", "attempt": attempt, "sequence": sequence}
    return DeltaEvent.model_validate({**fields, "type": type, "text": text, **more})


def viewed(events: Iterable[DeltaEvent]) -> DeltaView:
    view = DeltaView("r", "k")
    for event in events:
        view = view.after(event)
    return view


PIECES: tuple[DeltaType, ...] = ("model_content_delta", "model_reasoning_delta", "tool_call_building")


@st.composite
def attempt_of(draw: st.DrawFn, number: int) -> list[DeltaEvent]:
    """The pieces of one attempt, as they were told."""
    pieces = draw(st.lists(st.tuples(st.sampled_from(PIECES), st.text(max_size=4), st.integers(0, 2)), max_size=8))
    return [
        told(kind, sequence, text, attempt=number, call=call if kind == "tool_call_building" else None)
        for sequence, (kind, text, call) in enumerate(pieces, start=1)
    ]


@given(st.data())
def test_whatever_is_lost_repeated_or_late_the_text_is_the_recorded_one(data: st.DataObject) -> None:
    attempts = data.draw(st.integers(1, 3))
    events = [event for number in range(1, attempts + 1) for event in data.draw(attempt_of(number))]
    recorded = data.draw(st.text())
    last = max((event.sequence for event in events if event.attempt == attempts), default=0) + 1
    end = told("model_completed", last, recorded, attempt=attempts, finish_reason="stop")
    seen = data.draw(st.lists(st.sampled_from([*events, end]), max_size=40))
    view = viewed(data.draw(st.permutations([*seen, end])))
    assert (view.text, view.complete, view.building) == (recorded, True, ())
    assert view.attempt == attempts


@given(st.data())
def test_events_in_any_order_make_the_same_view(data: st.DataObject) -> None:
    events = [*data.draw(attempt_of(1)), *(attempt := data.draw(attempt_of(2)))]
    repeated = [*events, *(data.draw(st.lists(st.sampled_from(events))) if events else [])]
    view = viewed(data.draw(st.permutations(repeated)))
    assert view == viewed(events)
    assert not view.gap
    if attempt:
        assert view.text == "".join(event.text for event in attempt if event.type == "model_content_delta")
        assert view.position == (2, len(attempt))


def test_a_higher_attempt_takes_the_place_of_what_was_shown_and_a_lower_one_changes_nothing() -> None:
    first = [told("model_first_event", 1), told("model_content_delta", 2, "The harbour op")]
    failed = told("model_failed", 3, error="ModelUnavailable", retried=True)
    second = [told("model_first_event", 1, attempt=2), told("model_content_delta", 2, "The", attempt=2)]
    view = viewed([*first, failed])
    assert (view.text, view.failed, view.complete) == ("The harbour op", True, False)
    view = viewed([*first, failed, second[0]])
    assert (view.text, view.failed) == ("", False)
    assert viewed([*first, *second, failed, *first]).text == "The"


def test_half_a_call_is_building_and_never_ready() -> None:
    half = [
        told("tool_call_building", 1, '{"amount"', call=0, tool="refund"),
        told("tool_call_building", 2, "", call=1, tool="look"),
        told("tool_call_building", 3, ": 8", call=0),
    ]
    view = viewed(half)
    assert view.building == (BuildingCall(0, "refund", '{"amount": 8'), BuildingCall(1, "look"))
    assert view.ready == ()
    over = viewed([*half, told("model_failed", 4, error="ModelUnavailable")])
    assert (over.building, over.ready) == ((), ())
    ready = told("tool_call_ready", 4, call=1, call_id="call_2", tool="look")
    done = viewed([*half, ready, told("model_completed", 5)])
    # The first call was invalid: it does not become ready.
    assert (done.building, done.ready) == ((), (ReadyCall("call_2", "look"),))


def test_a_gap_is_known_until_it_is_filled() -> None:
    pieces = [told("model_content_delta", number, str(number)) for number in range(1, 6)]
    view = viewed([pieces[0], pieces[3], pieces[2]])
    assert (view.text, view.gap, view.complete, view.position) == ("134", True, False, (1, 1))
    view = view.after(pieces[1])
    assert (view.text, view.gap, view.position) == ("1234", False, (1, 4))
    ended = viewed([pieces[0], told("model_completed", 7, "the whole")])
    assert (ended.text, ended.gap, ended.complete) == ("the whole", True, True)


def test_reasoning_and_refusal_are_kept_apart_from_the_text() -> None:
    view = viewed(
        [
            told("model_reasoning_delta", 1, "Hm. "),
            told("model_reasoning_completed", 2),
            told("model_content_delta", 3, "No"),
            told("model_refusal_delta", 4, "I must not."),
            told("model_reasoning_delta", 5, "So be it."),
        ]
    )
    assert (view.reasoning, view.text, view.refusal) == ("Hm. So be it.", "No", "I must not.")


@pytest.mark.parametrize("other", [{"key": "another"}, {"run_id": "another"}])
def test_events_of_other_calls_and_other_runs_change_nothing(other: dict[str, str]) -> None:
    view = viewed([told("model_content_delta", 1, "mine")])
    assert view.after(told("model_completed", 2, "theirs", attempt=2).model_copy(update=other)) is view


def test_the_public_json_of_an_event() -> None:
    """These names are other people's code: see docs/protocol.md."""
    names = "workflow_id run_id key attempt sequence type text call call_id tool finish_reason usage error retried"
    assert " ".join(DeltaEvent.model_fields) == names
    event = told("tool_call_building", 3, "{", call=0, tool="look", attempt=2)
    sent = {"workflow_id": "w", "run_id": "r", "key": "k", "attempt": 2, "sequence": 3, "type": "tool_call_building"}
    assert json.loads(event.model_dump_json()) == {**sent, "text": "{", "call": 0, "tool": "look"}
    end = told("model_completed", 9, "Hi", finish_reason="stop", usage=Usage(input_tokens=2))
    received = DeltaBatch.from_wire(DeltaBatch(events=(event, end)).model_dump_json().encode())
    assert received.events == (event, end)
