"""What a stream of Chat Completions may look like, and what counts as its end."""

import json
import time

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.chat_stream import ChatStream
from activities.providers.failures import Endpoint
from activities.providers.http_model import HttpModel
from activities.providers.interface import Delta, ModelErrorType
from tests.providers.asking import KEY, answered, asked, failed
from tests.providers.chat_chunks import call_piece, chunk
from tests.providers.model_server import EVENT_STREAM, ModelServer, Response, Streamed, server_sent
from tests.support.loopback import loopback_client

STOP = chunk({}, "stop")
HELLO = [chunk({"content": "Hel"}), chunk({"content": "lo"})]


def bytes_of(*pieces: bytes, cut: bool = False) -> Streamed:
    return Streamed(headers=EVENT_STREAM, pieces=pieces, cut=cut)


async def calls_of(*deltas: JsonValue) -> list[tuple[str | None, str, str]]:
    events = [chunk(delta) for delta in deltas]
    completion = await answered(Streamed.of_events(*events, chunk({}, "tool_calls"), "[DONE]"))
    return [(call.provider_call_id, call.name, call.arguments) for call in completion.calls]


ADD = ("a", "add", '{"x":1}')
TIMES = ("b", "times", '{"x":2}')


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        # As OpenAI sends it, two calls after and among each other.
        (
            [
                *(call_piece(0, "a", "add", ""), call_piece(0, arguments='{"x"')),
                *(call_piece(1, "b", "times", ""), call_piece(1, arguments='{"x":2}'), call_piece(0, arguments=":1}")),
            ],
            [ADD, TIMES],
        ),
        # Whole calls in one chunk each: with an index, without, and all with the same one.
        ([call_piece(0, *ADD), call_piece(1, *TIMES)], [ADD, TIMES]),
        ([call_piece(None, *ADD), call_piece(None, *TIMES)], [ADD, TIMES]),
        ([call_piece(0, *ADD), call_piece(0, *TIMES)], [ADD, TIMES]),
        # Without an index: pieces follow their call, by its id or as the latest.
        ([call_piece(None, "a", "add", '{"x"'), call_piece(arguments=":1}"), call_piece(None, *TIMES)], [ADD, TIMES]),
        (
            [call_piece(None, "a", "add", '{"x"'), call_piece(None, *TIMES), call_piece(None, "a", arguments=":1}")],
            [ADD, TIMES],
        ),
        # Neither index nor id.
        (
            [call_piece(name="add", arguments='{"x":1}'), call_piece(name="add", arguments='{"x":2}')],
            [(None, "add", '{"x":1}'), (None, "add", '{"x":2}')],
        ),
        ([call_piece(name="add", arguments=""), call_piece(name="times")], [(None, "add", ""), (None, "times", "")]),
        # No id, and all with the same index.
        (
            [call_piece(0, None, "add", '{"x":1}'), call_piece(0, None, "add", '{"x":2}')],
            [(None, "add", '{"x":1}'), (None, "add", '{"x":2}')],
        ),
        # Id and name in every piece, or an id that is made up for every piece.
        ([call_piece(0, "a", "add", '{"x"'), call_piece(0, "a", "add", ":1}")], [ADD]),
        ([call_piece(None, "a", "add", '{"x"'), call_piece(None, "a", "add", ":1}")], [ADD]),
        ([call_piece(0, "a", "add", ""), call_piece(0, "z1", None, '{"x"'), call_piece(0, "z2", None, ":1}")], [ADD]),
        # An id that comes late, a name in pieces, and one that grows.
        ([call_piece(0, None, "add", '{"x"'), call_piece(0, "a", None, ":1}")], [ADD]),
        ([call_piece(0, "a", "a"), call_piece(0, None, "dd", '{"x":1}')], [ADD]),
        ([call_piece(0, "a", "a"), call_piece(0, "a", "add", '{"x":1}')], [ADD]),
        # Arguments that are objects, or none.
        ([call_piece(0, "a", "add", {"x": 1})], [ADD]),
        ([call_piece(0, "a", "add")], [("a", "add", "")]),
        # A call without a name is told to the model.
        ([call_piece(0, "a", None, "{}")], [("a", "", "{}")]),
    ],
)
async def test_tool_calls_are_put_together(pieces: list[JsonValue], calls: list[tuple[str | None, str, str]]) -> None:
    assert await calls_of(*pieces) == calls


async def test_a_character_whose_halves_come_in_two_chunks_is_whole() -> None:
    events = [chunk({"content": half}) for half in ("a\ud83d", "\ude00\ud83d")]
    assert (await answered(Streamed.of_events(*events, STOP, "[DONE]"))).text == "a\U0001f600\ufffd"


async def test_a_message_that_comes_in_one_chunk_is_read_and_a_repeated_one_is_not() -> None:
    whole: JsonValue = {"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]}
    assert (await answered(Streamed.of_events(whole, "[DONE]"))).text == "Hello"
    assert (await answered(Streamed.of_events(*HELLO, whole, "[DONE]"))).text == "Hello"


async def test_other_choices_and_empty_events_do_not_count() -> None:
    other: JsonValue = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}]}
    nothing: list[JsonValue] = [{"choices": []}, {"choices": None}, {}]
    events: list[JsonValue] = [*nothing, HELLO[0], other, *nothing, HELLO[1], STOP, other]
    completion = await answered(Streamed.of_events(*events, "", "[DONE]"))
    assert (completion.text, completion.finish_reason) == ("Hello", "stop")


async def test_the_finish_reason_is_the_last_one() -> None:
    reasons = [chunk({}, reason) for reason in ("tool_calls", "stop", "", None)]
    assert (await answered(Streamed.of_events(*HELLO, *reasons, "[DONE]"))).finish_reason == "stop"


@pytest.mark.parametrize(
    ("events", "whole"),
    [
        ([*HELLO, STOP, "[DONE]"], True),
        ([*HELLO, "[DONE]"], True),
        ([*HELLO, STOP], True),
        ([*HELLO, STOP, {"choices": [], "usage": {"prompt_tokens": 1}}], True),
        (HELLO, False),
        ([], False),
        (["[DONE]"], False),
        ([{"choices": []}, "[DONE]"], False),
    ],
)
async def test_a_reply_ends_with_its_marker_or_in_good_order_after_a_finish_reason(
    events: list[JsonValue], whole: bool
) -> None:
    if whole:
        assert (await answered(Streamed.of_events(*events))).text == "Hello"
    else:
        failure = await failed(Streamed.of_events(*events))
        assert (failure.type, failure.retryable) == ("ModelUnavailable", True)


async def test_a_connection_that_breaks_is_no_end_unless_the_marker_was_there() -> None:
    failure = await failed(Streamed.of_events(*HELLO, STOP, cut=True))
    assert (failure.type, failure.retryable) == ("ModelUnavailable", True)
    assert (await answered(Streamed.of_events(*HELLO, STOP, "[DONE]", cut=True))).text == "Hello"


SENT = b'data: {"choices":[{"index":0,"delta":{"content":"a%bb"}}]}'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("between", ["\u2028", "\u2029", "\x85", "\x1c", "\x0c", "\U0001f600"])
@pytest.mark.parametrize("size", [1, 2, 3, 1_000])
async def test_characters_that_are_no_line_ends_split_nothing(between: str, size: int) -> None:
    body = SENT.replace(b"%b", between.encode()) + b"\n\n" + END
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    assert (await answered(bytes_of(*pieces))).text == f"a{between}b"


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("size", [1, 1_000])
async def test_every_line_end_of_the_standard_is_one(line_end: bytes, size: int) -> None:
    lines = [b": keepalive", b"", b"id: 1", b"retry: 10", SENT.replace(b"%b", b"-"), b"", b":", *END.split(b"\n")]
    body = line_end.join(lines)
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    assert (await answered(bytes_of(*pieces))).text == "a-b"


async def test_the_data_lines_of_one_event_are_one_text() -> None:
    two_lines = b'data:{"choices":\ndata: [{"delta":{"content":"Hello"}}]}\n\n'
    assert (await answered(bytes_of(b"\xef\xbb\xbf" + two_lines, END))).text == "Hello"


@pytest.mark.parametrize(
    "body",
    [
        SENT,
        SENT + b"\n",
        server_sent(HELLO[0]) + server_sent(STOP).strip(),
        server_sent(HELLO[0]) + server_sent(STOP) + b'data: {"choices":[],"usa',
        server_sent(HELLO[0]) + server_sent(STOP) + b"data: [DONE]\n",
    ],
)
async def test_an_unfinished_last_event_is_a_broken_stream(body: bytes) -> None:
    failure = await failed(bytes_of(body))
    assert (failure.type, failure.retryable) == ("ModelUnavailable", True)


def error_event(data: str, event: str = "error") -> bytes:
    return f"event: {event}\ndata: {data}\n\n".encode()


@pytest.mark.parametrize(
    ("event", "type", "retryable"),
    [
        (server_sent({"error": {"message": "m", "type": "server_error"}}), "ModelUnavailable", True),
        (server_sent({"error": {"message": "m", "type": "overloaded_error"}}), "ModelUnavailable", True),
        (server_sent({"error": "busy"}), "ModelUnavailable", True),
        (server_sent({"error": {"message": "m", "type": "invalid_request_error"}}), "ModelBadRequest", False),
        (server_sent({"error": {"message": "m", "code": "insufficient_quota"}}), "ModelUnavailable", False),
        (server_sent({"error": {"message": "m", "code": "context_length_exceeded"}}), "ContextWindowExceeded", False),
        (server_sent({"object": "error", "message": "m", "code": 400}), "ModelBadRequest", False),
        (server_sent({"choices": [{"delta": {}, "error": {"message": "m", "code": 502}}]}), "ModelUnavailable", True),
        (server_sent(chunk({}, "error")) + b"data: [DONE]\n\n", "ModelUnavailable", True),
        (server_sent(chunk({}, "content_filter")) + b"data: [DONE]\n\n", "answer", False),
        (error_event('{"type":"error","error":{"type":"overloaded_error"}}'), "ModelUnavailable", True),
        (error_event('{"message":"m","code":400}'), "ModelBadRequest", False),
        (error_event("upstream is gone"), "ModelUnavailable", True),
        (error_event("{}"), "ModelUnavailable", True),
        (b"data: <html>\n\n", "ModelUnavailable", True),
        (b'data: {"choices":[{"delta\n\n', "ModelUnavailable", True),
        (b"data: [1]\n\n", "ModelUnavailable", True),
        (b"data: " + b'{"a":' * 100_000 + b"\n\n", "ModelBehaviour", False),
        (b'data: {"a":' + b"9" * 5_000 + b"}\n\n", "ModelBehaviour", False),
    ],
)
async def test_an_error_within_a_stream_is_told_apart_and_is_no_reply(
    event: bytes, type: ModelErrorType | str, retryable: bool
) -> None:
    stream = bytes_of(server_sent(HELLO[0]), event)
    if type == "answer":
        # A text that was cut off by a filter is one, and says so.
        assert (await answered(stream)).finish_reason == "content_filter"
        return
    failure = await failed(stream)
    assert (failure.type, failure.retryable) == (type, retryable)


async def test_events_of_proxies_are_left_out() -> None:
    kept = bytes_of(server_sent(HELLO[0]), error_event("1", "ping"), error_event("now", "heartbeat"), END)
    assert (await answered(kept)).text == "Hel"


async def test_a_call_beside_a_content_filter_is_not_run() -> None:
    stopped = Streamed.of_events(chunk(call_piece(0, *ADD)), chunk({}, "content_filter"), "[DONE]")
    assert (await failed(stopped)).type == "ModelRefused"


async def test_those_who_watch_see_each_piece_once() -> None:
    events = [
        chunk({"reasoning_content": "Hm", "reasoning_details": [{"type": "reasoning.text", "text": "Hm"}]}),
        chunk({"reasoning_details": [{"type": "reasoning.text", "text": "mm"}]}),
        chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "so"}]}]}),
        chunk({"content": "He", "reasoning": None}),
        chunk({"content": ""}),
        chunk(call_piece(0, "a", "add", "")),
        chunk(call_piece(0, arguments='{"x":1}')),
        chunk(call_piece(1, *TIMES), "tool_calls"),
    ]
    seen: list[Delta] = []

    async def watch(delta: Delta) -> None:
        seen.append(delta)

    async with ModelServer([Streamed.of_events(*events, "[DONE]")]) as server, loopback_client() as http:
        await HttpModel(http, ChatCompletions(), server.base_url, KEY).complete(asked(), watch)
    assert seen == [
        *(Delta("reasoning", "Hm"), Delta("reasoning", "mm"), Delta("reasoning", "so"), Delta("text", "He")),
        *(Delta("tool_call", "", 0, "add"), Delta("tool_call", '{"x":1}', 0, "add")),
        Delta("tool_call", '{"x":2}', 1, "times"),
    ]


async def test_a_refusal_in_pieces_is_one() -> None:
    events = [chunk({"refusal": piece}) for piece in ("I ", "cannot.")]
    failure = await failed(Streamed.of_events(*events, STOP, "[DONE]"))
    assert (failure.type, str(failure)) == ("ModelRefused", "the model refused: I cannot.")


async def test_the_legacy_call_of_a_function_is_no_call() -> None:
    pieces = [chunk({"function_call": {"name": "f", "arguments": piece}}) for piece in ('{"a"', ":1}")]
    completion = await answered(Streamed.of_events(*pieces, chunk({}, "function_call"), "[DONE]"))
    assert (completion.calls, completion.finish_reason) == ((), "function_call")


def seconds_for(pieces: int) -> float:
    """How long it takes to put a text, its reasoning and a call together from so many pieces each."""
    details: JsonValue = [{"type": "reasoning.text", "text": "x" * 20, "index": 0}]
    events = [
        json.dumps(chunk({"content": "x" * 20, "reasoning": "y" * 20, "reasoning_details": details})),
        json.dumps(chunk(call_piece(0, arguments="z" * 20))),
    ]
    stream = ChatStream(Endpoint("http://h", "KEY"))
    started = time.process_time()
    for _ in range(pieces):
        for event in events:
            stream.add("", event)
    assert len(str(stream.reply())) > pieces * 80
    return time.process_time() - started


def test_many_pieces_take_time_in_proportion() -> None:
    seconds_for(100)
    few = min(seconds_for(2_000) for _ in range(3))
    assert seconds_for(20_000) < few * 30


async def test_a_server_that_does_not_stream_is_read_as_it_answers() -> None:
    whole = Response.of({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]})
    assert (await answered(whole)).text == "Hi"
