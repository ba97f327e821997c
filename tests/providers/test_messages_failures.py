import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, ModelErrorType, ModelFailure
from activities.providers.messages import Messages
from activities.providers.secrecy import Secret, without_secret
from contracts.messages import Usage
from tests.providers.asking_messages import answered, delta, events, failed, reply, streamed, text, thinking, tool_use
from tests.providers.model_server import EVENT_STREAM, Response, Streamed, server_sent
from tests.providers.recordings import recordings

ENDPOINT = Endpoint("http://h/v1/messages", "ANTHROPIC_API_KEY")
BEGUN: list[JsonValue] = [
    {"type": "message_start", "message": {**reply(stop_reason=None), "usage": {"input_tokens": 9, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    delta(0, "text_delta", text="Hel"),
]


def error(kind: str, message: str = "m") -> JsonValue:
    return {"type": "error", "error": {"type": kind, "message": message}}


CLASSES: list[tuple[int, str, ModelErrorType, bool]] = [
    (400, "invalid_request_error", "ModelBadRequest", False),
    (401, "authentication_error", "ModelAuthentication", False),
    (402, "billing_error", "ModelUnavailable", False),
    (403, "permission_error", "ModelAuthentication", False),
    (404, "not_found_error", "ModelBadRequest", False),
    (413, "request_too_large", "ModelBadRequest", False),
    (429, "rate_limit_error", "ModelUnavailable", True),
    (500, "api_error", "ModelUnavailable", True),
    (504, "timeout_error", "ModelUnavailable", True),
    (529, "overloaded_error", "ModelUnavailable", True),
]


@pytest.mark.parametrize(("status", "kind", "type", "retryable"), CLASSES)
async def test_an_error_is_the_same_with_a_status_in_a_200_and_in_a_stream(
    status: int, kind: str, type: ModelErrorType, retryable: bool
) -> None:
    for response in (
        Response.of(error(kind), status),
        Response.of(error(kind)),
        Streamed.of_events(*BEGUN, error(kind)),
    ):
        failure = await failed(response)
        assert (failure.type, failure.retryable) == (type, retryable)
        assert "m" in str(failure)


async def test_a_402_is_a_bill_to_pay_whatever_it_says() -> None:
    failure = await failed(Response.of({"detail": "Pay first."}, 402))
    assert (failure.type, failure.retryable) == ("ModelUnavailable", False)
    assert "no quota left for ANTHROPIC_API_KEY" in str(failure)


@pytest.mark.parametrize(
    ("message", "type", "named"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", "ContextWindowExceeded", "210000"),
        ("input length and `max_tokens` exceed context limit: 1 + 2 > 3", "ContextWindowExceeded", "exceed"),
        ("Your credit balance is too low to access the Anthropic API.", "ModelUnavailable", "no quota left"),
        ("tools.0.name: String should match pattern", "ModelBadRequest", "tools.0.name"),
    ],
)
async def test_a_400_is_told_apart_by_its_words(message: str, type: ModelErrorType, named: str) -> None:
    failure = await failed(Response.of(error("invalid_request_error", message), 400))
    assert (failure.type, failure.retryable) == (type, False)
    assert named in str(failure)


async def test_r16_an_overload_in_a_stream_is_retryable_and_what_was_read_is_paid_for() -> None:
    failure = await failed(Streamed.of_events(*BEGUN, error("overloaded_error", "Overloaded")))
    assert (failure.type, failure.retryable) == ("ModelUnavailable", True)
    assert failure.usage == Usage(input_tokens=9, output_tokens=1)
    assert "Overloaded" in str(failure)


@pytest.mark.parametrize("cut", [False, True])
async def test_r16_a_stream_without_its_end_is_no_answer(cut: bool) -> None:
    failure = await failed(Streamed.of_events(*BEGUN, cut=cut))
    assert (failure.type, failure.retryable) == ("ModelUnavailable", True)
    assert failure.usage == Usage(input_tokens=9, output_tokens=1)


async def test_r16_a_bad_request_in_a_stream_is_not_tried_again() -> None:
    failure = await failed(Streamed.of_events(*BEGUN, error("invalid_request_error")))
    assert (failure.type, failure.retryable) == ("ModelBadRequest", False)


async def test_only_its_own_end_ends_a_stream() -> None:
    whole = list(events(reply(text("Hello"))))
    assert (await answered(Streamed.of_events(*whole))).text == "Hello"
    # All is said, even why it stopped, but not that this was all.
    assert (await failed(Streamed.of_events(*whole[:-1]))).retryable
    assert (await failed(Streamed.of_events(*whole[:-1], "[DONE]"))).retryable


async def test_nothing_is_read_after_the_end() -> None:
    whole = events(reply(text("Hello")))
    assert (await answered(Streamed.of_events(*whole, error("overloaded_error")))).text == "Hello"


@pytest.mark.parametrize(
    "broken",
    [
        delta(7, "text_delta", text="x"),
        delta(0, "text_delta", text="x") | {"index": None},  # type: ignore[operator]  # an object
        {"type": "content_block_start", "index": 1},
        {"type": "content_block_start", "content_block": {"type": "text"}},
        '{"type": "content_block_delta", "ind',
    ],
)
async def test_a_stream_that_cannot_be_followed_is_asked_for_again(broken: JsonValue) -> None:
    failure = await failed(Streamed.of_events(*BEGUN, broken, {"type": "message_stop"}))
    assert (failure.type, failure.retryable) == ("ModelUnavailable", True)


@pytest.mark.parametrize(
    "said",
    [
        b'event: error\ndata: {"type":"overloaded_error","message":"Busy"}\n\n',
        b'data: {"error":{"type":"overloaded_error","message":"Busy"}}\n\n',
        b'event: error\ndata: {"type":"error","error":"Busy"}\n\n',
    ],
)
async def test_errors_of_gateways_are_errors_too(said: bytes) -> None:
    failure = await failed(Response(200, EVENT_STREAM, said))
    assert (failure.type, failure.retryable) == ("ModelUnavailable", True)
    assert "Busy" in str(failure)


@pytest.mark.parametrize(
    ("body", "type", "retryable"),
    [
        ({}, "ModelUnavailable", True),
        ({"type": "message", "content": None}, "ModelUnavailable", True),
        ({"type": "message", "content": "Hi"}, "ModelUnavailable", True),
        ([], "ModelBadRequest", False),
    ],
)
async def test_a_200_without_a_reply_is_a_failure(body: JsonValue, type: ModelErrorType, retryable: bool) -> None:
    failure = await failed(Response.of(body))
    assert (failure.type, failure.retryable) == (type, retryable)


async def test_r01_a_turn_that_stops_for_a_tool_and_calls_none_is_an_empty_turn() -> None:
    empty = reply(stop_reason="tool_use", usage={"input_tokens": 5, "output_tokens": 1})
    for response in (Response.of(empty), streamed(empty)):
        completion = await answered(response)
        assert (completion.text, completion.calls, completion.finish_reason) == ("", (), "tool_use")
        assert completion.usage == Usage(input_tokens=5, output_tokens=1)


async def test_a_refusal_after_some_words_is_no_answer_and_says_them() -> None:
    details: JsonValue = {"type": "refusal", "category": "cyber", "explanation": "By policy."}
    message = reply(text("First, " + "x" * 900), stop_reason="refusal", stop_details=details)
    for response in (Response.of(message), streamed(message)):
        failure = await failed(response)
        assert (failure.type, failure.retryable) == ("ModelRefused", False)
        assert failure.usage == Usage(input_tokens=9, output_tokens=3)
        assert "cyber; By policy.; First, xxx" in str(failure)


async def test_usage_is_all_input_and_later_events_correct_earlier_ones() -> None:
    first: JsonValue = {
        "input_tokens": 10,
        "cache_read_input_tokens": 5,
        "cache_creation_input_tokens": 3,
        "output_tokens": 1,
    }
    last: JsonValue = {
        "input_tokens": 11,
        "cache_read_input_tokens": None,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 4},
    }
    whole = list(events(reply(text("Hi"), usage=first)))
    whole[-2] = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": last}
    # A kind of event that nobody knows tells nothing.
    whole.insert(3, {"type": "future_event", "usage": {"input_tokens": 99}})
    expected = Usage(input_tokens=19, output_tokens=7, cached_input_tokens=5, cache_write_tokens=3, reasoning_tokens=4)
    assert (await answered(Streamed.of_events(*whole))).usage == expected


@pytest.mark.parametrize("told", [None, "many", [1]])
async def test_usage_that_is_not_told_is_not_invented(told: JsonValue) -> None:
    assert (await answered(Response.of(reply(text("Hi"), usage=told)))).usage is None
    assert (await answered(streamed(reply(text("Hi"), usage=told)))).usage is None


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x1c", "\x0b"])
async def test_r37_only_the_lines_of_the_standard_end_a_line(separator: str) -> None:
    message = reply(text(f"ab{separator}cd"))
    stream = b"".join(_unescaped(event) for event in events(message))
    assert (await answered(Response(200, EVENT_STREAM, stream))).text == f"ab{separator}cd"


def _unescaped(event: JsonValue) -> bytes:
    written = json.dumps(event, ensure_ascii=False)
    # Control characters are always escaped in JSON: only the rest can stand there as they are.
    return f"data: {written}\n\n".encode()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 3, 1_000_000])
async def test_r37_every_line_end_and_every_cut_gives_the_same(end: str, size: int) -> None:
    stream = b": keepalive\n\n" + b"".join(server_sent(event) for event in events(reply(text("a🦉b"))))
    # Data over several lines is one text, joined by line feeds.
    stream = stream.replace(b'data: {"type": "ping"}', b'data: {"type":\ndata: "ping"}').replace(b"\n", end.encode())
    stream = stream.replace(json.dumps("🦉")[1:-1].encode(), "🦉".encode())
    completion = await answered(Streamed.in_pieces(Response(200, EVENT_STREAM, stream), iter(lambda: size, 0)))
    assert completion.text == "a🦉b"


async def test_r37_an_unfinished_last_event_is_no_end() -> None:
    stream = b"".join(server_sent(event) for event in events(reply(text("Hi"))))
    assert (await answered(Response(200, EVENT_STREAM, stream))).text == "Hi"
    assert (await failed(Response(200, EVENT_STREAM, stream[:-1]))).retryable


RECORDED = [
    json.loads(each.response.body)
    for each in recordings("anthropic.messages", streaming=False)
    if each.response.status == 200
]
MADE = [
    reply(thinking("Hm.", "s1"), text("Let me see.", citations=[{"type": "x"}]), tool_use("toolu_1", x=1)),
    reply({"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}, stop_reason="pause_turn"),
    reply(stop_reason="refusal", stop_details={"explanation": "No."}),
]
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["text", "\ud83d"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: JsonValue) -> list[tuple[str | int, ...]]:
    found: list[tuple[str | int, ...]] = [()]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += [(key, *rest) for rest in places(item)]
    return found


def replaced(value: JsonValue, place: tuple[str | int, ...], by: JsonValue) -> JsonValue:
    if not place:
        return by
    key, *rest = place
    if isinstance(value, dict):
        return {name: replaced(item, tuple(rest), by) if name == key else item for name, item in value.items()}
    assert isinstance(value, list)
    return [replaced(item, tuple(rest), by) if index == key else item for index, item in enumerate(value)]


def read(body: dict[str, JsonValue]) -> Completion | None:
    """The completion, as far as it gets; only a `ModelFailure` may stop it."""
    try:
        completion = without_secret(Messages().completion(body, ENDPOINT), Secret("sk-ant-a-long-key"))
    except ModelFailure:
        return None
    json.dumps([completion.opaque, completion.text, completion.finish_reason], allow_nan=False).encode()
    return completion


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_stands_in_a_reply_it_is_read_or_a_failure(data: st.DataObject) -> None:
    body = data.draw(st.sampled_from([*RECORDED, *MADE]))
    changed = replaced(body, data.draw(st.sampled_from(places(body))), data.draw(ANY_JSON))
    if isinstance(changed, dict):
        read(changed)


STREAMS = [list(events(message)) for message in (*MADE, *RECORDED)]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_stands_in_a_stream_it_is_read_or_a_failure(data: st.DataObject) -> None:
    whole: JsonValue = list(data.draw(st.sampled_from(STREAMS)))
    changed = replaced(whole, data.draw(st.sampled_from(places(whole))), data.draw(ANY_JSON))
    stream = Messages().reply_stream(ENDPOINT)
    try:
        for event in changed if isinstance(changed, list) else [changed]:
            list(stream.add("", json.dumps(event)))
    except ModelFailure:
        pass
    assert stream.usage is None or stream.usage.input_tokens >= 0
    read(stream.reply())


@pytest.mark.parametrize("depth", [60, 200, 800, 5_000])
async def test_a_block_that_is_nested_deeply_is_kept_or_a_failure(depth: int) -> None:
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    body = Response.of(reply({"type": "odd", "value": "HERE"})).body.replace(b'"HERE"', nested)
    if depth == 60:
        assert len((await answered(Response(200, {}, body))).opaque) == 1
    else:
        failure = await failed(Response(200, {}, body))
        assert (failure.type, failure.retryable) == ("ModelBehaviour", False)
