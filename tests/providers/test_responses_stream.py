"""Streams of the Responses API: what ends one, what is shown of it, and what it folds to."""

import pytest
from pydantic import JsonValue

from activities.providers.interface import Delta, ModelErrorType
from contracts.messages import Usage
from tests.providers.asking_responses import (
    USAGE,
    answered,
    body,
    called,
    ending,
    failed,
    message,
    replied,
    streamed,
    text_events,
    thought,
)
from tests.providers.model_server import Streamed

TOLD = Usage(input_tokens=9, output_tokens=7, cached_input_tokens=4, reasoning_tokens=5)


def event(kind: str, index: int, **more: JsonValue) -> dict[str, JsonValue]:
    return {"type": f"response.{kind}", "output_index": index, **more}


def added(index: int, item: JsonValue) -> dict[str, JsonValue]:
    return event("output_item.added", index, item=item)


def done(index: int, item: JsonValue) -> dict[str, JsonValue]:
    return event("output_item.done", index, item=item)


OUTPUT: list[JsonValue] = [thought("A", "Hm, a lookup."), message("Let me look."), called('{"q":1}')]
DELTAS: list[JsonValue] = [
    added(0, {**thought("begun"), "id": "rs_a"}),
    event("reasoning_summary_text.delta", 0, summary_index=0, item_id="x", delta="Hm, "),
    event("reasoning_summary_text.delta", 0, summary_index=0, item_id="y", delta="a lookup."),
    added(1, message("", content=[])),
    event("output_text.delta", 1, content_index=0, delta="Let me "),
    event("output_text.delta", 1, content_index=0, delta="look."),
    added(2, called("")),
    event("function_call_arguments.delta", 2, delta='{"q"'),
    event("function_call_arguments.delta", 2, delta=":1}"),
]
DONE: list[JsonValue] = [done(index, item) for index, item in enumerate(OUTPUT)]


@pytest.mark.parametrize(
    "events",
    [
        [*DELTAS, *DONE, ending(*OUTPUT)],
        # Some servers leave the output out at the end, or send nothing but the end.
        [*DELTAS, *DONE, ending()],
        [*DONE, ending()],
        [ending(*OUTPUT)],
        [*DELTAS[1:3], *reversed(DONE), ending(output=None)],
    ],
)
async def test_a_stream_says_what_the_whole_reply_would(events: list[JsonValue]) -> None:
    assert await streamed(*events) == await answered(replied(*OUTPUT))


async def test_items_that_were_never_finished_are_put_together() -> None:
    reply = await streamed(*DELTAS, ending(kind="incomplete", incomplete_details={"reason": "max_output_tokens"}))
    assert (reply.text, reply.truncated, reply.finish_reason) == ("Let me look.", True, "max_output_tokens")
    assert [(call.name, call.arguments, call.provider_call_id) for call in reply.calls] == [
        ("lookup", '{"q":1}', "call_a")
    ]
    assert "Hm, a lookup." in str(reply.opaque)


async def test_deltas_without_an_announcement_are_put_together() -> None:
    reply = await streamed(
        event("output_text.delta", 0, content_index=1, delta="world"),
        event("output_text.delta", 0, content_index=0, delta="Hello, "),
        event("function_call_arguments.delta", 1, delta="{}"),
        ending(),
    )
    assert (reply.text, [(call.name, call.arguments) for call in reply.calls]) == ("Hello, world", [("", "{}")])


async def test_reasoning_goes_back_as_its_own_last_event_has_it() -> None:
    reply = await streamed(added(0, thought("begun")), done(0, thought("done")), ending(thought("repeated")))
    assert reply.opaque == ({"block": thought("done"), "reasoning": []},)


async def test_people_who_watch_see_each_piece() -> None:
    deltas: list[Delta] = []
    refused = [event("refusal.delta", 3, content_index=0, delta="No."), event("reasoning_text.delta", 4, delta="Why?")]
    more = [added(5, called("", name="other")), event("function_call_arguments.delta", 5, delta="{}")]
    await streamed(*DELTAS, *refused, *more, ending(*OUTPUT), deltas=deltas)
    assert deltas == [
        Delta("reasoning", "Hm, "),
        Delta("reasoning", "a lookup."),
        Delta("text", "Let me "),
        Delta("text", "look."),
        Delta("tool_call", "", call=0, name="lookup"),
        Delta("tool_call", '{"q"', call=0, name="lookup"),
        Delta("tool_call", ":1}", call=0, name="lookup"),
        Delta("refusal", "No."),
        Delta("reasoning", "Why?"),
        Delta("tool_call", "", call=1, name="other"),
        Delta("tool_call", "{}", call=1, name="other"),
    ]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("done_item", [False, True])
@pytest.mark.parametrize("marker", [[], ["[DONE]"]])
async def test_a_stream_without_its_end_is_no_answer(cut: bool, done_item: bool, marker: list[JsonValue]) -> None:
    """R-16: neither a closed connection nor a whole item nor `[DONE]` makes one."""
    events = [*text_events("Hel", "lo"), *([done(0, message("Hello"))] if done_item else []), *marker]
    failure = await failed(Streamed.of_events(*events, cut=cut))
    assert (failure.type, failure.retryable, failure.usage) == ("ModelUnavailable", True, None)


async def test_what_was_told_of_the_usage_counts_though_the_stream_broke_off() -> None:
    early: JsonValue = {"type": "response.in_progress", "response": {"status": "in_progress", "usage": USAGE}}
    failure = await failed(Streamed.of_events(*text_events("Hel"), early, cut=True))
    assert (failure.type, failure.usage) == ("ModelUnavailable", TOLD)


@pytest.mark.parametrize("kind", ["completed", "incomplete"])
async def test_nothing_is_read_after_the_end(kind: str) -> None:
    reply = await streamed(*text_events("Hi"), ending(message("Hi"), kind=kind), "{", "[DONE]")
    assert reply.text == "Hi"


def flat(**fields: JsonValue) -> dict[str, JsonValue]:
    return {"type": "error", "sequence_number": 2, **fields}


@pytest.mark.parametrize(
    ("error", "type", "retryable"),
    [
        (flat(error={"type": "overloaded_error", "message": "Overloaded"}), "ModelUnavailable", True),
        (flat(code="server_error", message="m", param=None), "ModelUnavailable", True),
        (flat(code=None, message="m"), "ModelUnavailable", True),
        (flat(), "ModelUnavailable", True),
        (flat(code="rate_limit_exceeded", message="m"), "ModelUnavailable", True),
        (flat(code="insufficient_quota", message="m"), "ModelUnavailable", False),
        (flat(error={"type": "invalid_request_error", "message": "m"}), "ModelBadRequest", False),
        (flat(code="context_length_exceeded", message="m"), "ContextWindowExceeded", False),
        ({"error": {"type": "invalid_request_error", "message": "m"}}, "ModelBadRequest", False),
        ({"type": "response.failed", "response": body(status="failed", error=None)}, "ModelUnavailable", True),
        ({"type": "response.failed", "response": None}, "ModelUnavailable", True),
        (
            {"type": "response.failed", "response": body(message("Hel"), error={"code": "invalid_prompt"})},
            "ModelBadRequest",
            False,
        ),
        ("{not json", "ModelUnavailable", True),
        ("<html>", "ModelBadRequest", False),
    ],
)
async def test_an_error_in_a_stream_is_classified(error: JsonValue, type: ModelErrorType, retryable: bool) -> None:
    """R-16: what came before it is no answer."""
    failure = await failed(Streamed.of_events(*text_events("Hel"), error))
    assert (failure.type, failure.retryable) == (type, retryable)
    told = isinstance(error, dict) and isinstance(error.get("response"), dict)
    assert failure.usage == (TOLD if told else None)


async def test_an_error_whose_event_alone_says_so_is_one() -> None:
    raw = Streamed(
        headers={"content-type": "text/event-stream"}, pieces=(b'event: error\ndata: {"message": "Busy"}\n\n',)
    )
    failure = await failed(raw)
    assert (failure.type, failure.retryable) == ("ModelUnavailable", True)
    assert "Busy" in str(failure)


async def test_after_an_error_the_next_attempt_starts_clean() -> None:
    await failed(Streamed.of_events(*text_events("Hel"), flat(code="server_error", message="m")))
    reply = await streamed(*text_events("Hello"), ending(message("Hello")))
    assert (reply.text, reply.usage) == ("Hello", TOLD)
