"""What a reply of the Responses API says, whole or as its stream folds."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue

from activities.arguments import propose
from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, ModelErrorType, ModelFailure
from activities.providers.responses import Responses
from activities.providers.secrecy import Secret, without_secret
from contracts.messages import InvalidToolCall, Message, ToolCall, Usage
from contracts.tools import ToolContract
from tests.providers.asking_responses import (
    HELLO,
    answered,
    asked,
    body,
    called,
    cut_off,
    ending,
    failed,
    message,
    replied,
    streamed,
    thought,
)
from tests.providers.legality_responses import request_illegality
from tests.providers.model_server import Response, Streamed
from tests.providers.recordings import recordings

LOOKUP = ToolContract(name="lookup", description="Looks.", input_schema={"type": "object"}, side_effect="read")
TOLD = Usage(input_tokens=9, output_tokens=7, cached_input_tokens=4, reasoning_tokens=5)
HALF = '{"path":"README.md","content":"# T\\nPart 1'


def refusal(text: str) -> JsonValue:
    return message("", content=[{"type": "refusal", "refusal": text}])


async def test_text_and_usage() -> None:
    assert await answered(replied(message("Hel"), message("lo"))) == Completion(
        text="Hello", finish_reason="completed", usage=TOLD
    )


async def test_only_an_unusual_order_is_told() -> None:
    usual = await answered(replied(message("Let me look."), called(), called(call_id="b")))
    assert usual.opaque == ()
    assert (await answered(replied(message("One"), called(), message("Two!")))).opaque == (
        {"text": 3},
        {"call": 0},
        {"text": 4},
    )


async def test_items_of_the_api_are_kept_whole_and_in_place() -> None:
    search: JsonValue = {"type": "web_search_call", "id": "ws_1", "action": {"query": "x"}}
    open_thought: JsonValue = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}], "new": [1]}
    reply = await answered(replied(thought("A", "One.", "", "Two."), search, message("Hi"), open_thought, called()))
    assert reply.opaque == (
        {"block": thought("A", "One.", "", "Two."), "reasoning": ["/summary/0/text", "/summary/2/text"]},
        {"block": search, "reasoning": []},
        {"text": 2},
        {"block": open_thought, "reasoning": ["/content/0/text"]},
        {"call": 0},
    )


async def test_calls_count_whatever_the_status_says() -> None:
    """R-01: A and D."""
    for reply in (
        await answered(replied(message("Let me look."), called('{"q":"a"}'))),
        await answered(Response.of({"output": [called('{"q":"a"}')], "status": None})),
        await streamed({"type": "response.output_item.done", "output_index": 0, "item": called()}, ending()),
    ):
        (call,) = reply.calls
        assert isinstance(propose(call, "call_1", {"lookup": LOOKUP}, truncated=reply.truncated), ToolCall)


@pytest.mark.parametrize("item", [[], [message("")], [message("", content=None)], [message(" \n")]])
async def test_a_reply_with_nothing_in_it_is_an_empty_turn(item: list[JsonValue]) -> None:
    """R-01 B and R-03: nothing to run, nothing to show, and nothing that goes back."""
    reply = await answered(replied(*item))
    assert (reply.text.strip(), reply.calls, reply.truncated) == ("", (), False)
    empty = Message(role="assistant", text=reply.text, opaque=reply.opaque)
    wire = Responses().body(asked(HELLO, empty, Message(role="user", text="Answer, please.")), stream=True)
    assert request_illegality(wire) is None
    assert [each["role"] for each in wire["input"]] == ["user", "user"]  # type: ignore[union-attr,index,call-overload]


async def test_a_call_with_broken_arguments_goes_back_legally_under_its_own_id() -> None:
    """R-06."""
    reply = await answered(replied(called('{"path": "/tmp/a", "content": "abc')))
    verdict = propose(reply.calls[0], "call_1", {"lookup": LOOKUP}, truncated=reply.truncated)
    assert isinstance(verdict, InvalidToolCall)
    assert "not valid JSON" in verdict.issues[0].message
    assert verdict.raw == '{"path": "/tmp/a", "content": "abc'
    kept = Message(role="assistant", tool_calls=(verdict.as_call(),), opaque=reply.opaque)
    told = Message(role="tool", call_id="call_1", text=verdict.issues[0].message, ok=False)
    wire = Responses().body(asked(HELLO, kept, told), stream=True)
    assert request_illegality(wire) is None
    assert '"call_id": "call_a"' in json.dumps(wire)


@pytest.mark.parametrize(
    "response",
    [
        cut_off(called('{"steps":["make clean","make test"', status="incomplete")),
        cut_off(called('{"dir":"/data"}'), called('{"dir":', call_id="call_b", status="incomplete")),
        cut_off(called('{"dir":"/data"}')),
        cut_off(called('{"dir":"/data"}'), reason="content_filter"),
        cut_off(called('{"dir":"/data"}'), reason="something new"),
        # A router that says that all went well.
        replied(called('{"dir":"/data"}', status="incomplete")),
    ],
)
async def test_no_call_of_a_reply_that_was_cut_off_may_run(response: Response) -> None:
    """R-08."""
    reply = await answered(response)
    assert reply.truncated
    for call in reply.calls:
        verdict = propose(call, "call_1", {"lookup": LOOKUP}, truncated=reply.truncated)
        assert isinstance(verdict, InvalidToolCall)
        assert verdict.reason == "truncated_reply"


async def test_half_a_call_is_not_mended() -> None:
    """R-08 B: nothing but the arguments themselves tells that they were cut off."""
    reply = await answered(replied(called(HALF)))
    assert isinstance(propose(reply.calls[0], "call_1", {"lookup": LOOKUP}, truncated=reply.truncated), InvalidToolCall)


async def test_a_text_that_was_cut_off_says_so() -> None:
    reply = await answered(cut_off(message("Once upon")))
    assert (reply.text, reply.truncated, reply.finish_reason) == ("Once upon", True, "max_output_tokens")


async def test_what_a_filter_leaves_of_a_text_is_an_answer() -> None:
    reply = await answered(cut_off(message("Once upon"), reason="content_filter"))
    assert (reply.text, reply.truncated, reply.finish_reason) == ("Once upon", False, "content_filter")


@pytest.mark.parametrize(
    ("response", "type", "retryable"),
    [
        (replied(message("Hel"), status="failed"), "ModelUnavailable", True),
        (replied(message("Hel"), status="cancelled"), "ModelUnavailable", True),
        (replied(message("Hel"), status="in_progress"), "ModelUnavailable", True),
        (replied(status="failed", error={"code": "server_error", "message": "m"}), "ModelUnavailable", True),
        (replied(status="failed", error={"code": "rate_limit_exceeded", "message": "m"}), "ModelUnavailable", True),
        (replied(status="failed", error={"code": "insufficient_quota", "message": "m"}), "ModelUnavailable", False),
        (replied(status="failed", error={"code": "invalid_prompt", "message": "m"}), "ModelBadRequest", False),
        (replied(status="failed", error={"code": "context_length_exceeded"}), "ContextWindowExceeded", False),
        (replied(refusal("I cannot.")), "ModelRefused", False),
        (replied(message("Well."), refusal("I cannot.")), "ModelRefused", False),
        (cut_off(reason="content_filter"), "ModelRefused", False),
        (cut_off(thought("A", "Hm."), message(" "), reason="content_filter"), "ModelRefused", False),
        (replied(thought(None), {"type": "new", "x": json.loads("[" * 100 + "]" * 100)}), "ModelBehaviour", False),
    ],
)
async def test_a_200_without_a_usable_reply_is_a_failure_that_tells_what_was_billed(
    response: Response, type: ModelErrorType, retryable: bool
) -> None:
    for served in (response, Streamed.of_events({"type": "response.completed", "response": json.loads(response.body)})):
        failure = await failed(served)
        assert (failure.type, failure.retryable, failure.usage) == (type, retryable, TOLD)


@pytest.mark.parametrize("reply", [{}, {"output": None}, {"output": [], "status": None}, {"choices": []}])
async def test_a_200_without_a_reply_is_asked_for_again(reply: JsonValue) -> None:
    failure = await failed(Response.of(reply))
    assert (failure.type, failure.retryable, failure.usage) == ("ModelUnavailable", True, None)


async def test_a_refusal_is_quoted() -> None:
    assert "I cannot do that" in str(await failed(replied(refusal("I cannot do that."))))


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        (None, None),
        ([], None),
        ({}, Usage()),
        (
            {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 9}},
            Usage(input_tokens=5, cached_input_tokens=5),
        ),
        (
            {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 9}},
            Usage(input_tokens=9, cached_input_tokens=4, cache_write_tokens=5),
        ),
        ({"input_tokens": "7", "output_tokens": -1, "output_tokens_details": None}, Usage()),
    ],
)
async def test_usage_is_plausible(told: JsonValue, usage: Usage | None) -> None:
    assert (await answered(Response.of({**body(message("Hi")), "usage": told}))).usage == usage


def test_a_key_in_a_block_is_hidden() -> None:
    reply = Responses().completion(body(thought("A", "the key sk-TEST-TOKEN-9"), message("Hi")), ENDPOINT)
    assert "sk-TEST" not in str(without_secret(reply, Secret("sk-TEST-TOKEN-9")))


ENDPOINT = Endpoint("http://127.0.0.1/v1/responses", "K")
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@cache
def whole_bodies() -> tuple[dict[str, JsonValue], ...]:
    return tuple(json.loads(each.response.body) for each in recordings("openai.responses", streaming=False))


@cache
def event_streams() -> tuple[tuple[dict[str, JsonValue], ...], ...]:
    """The events of each recorded stream, of those that repeat the first two: deltas come by the hundred."""
    return tuple(
        tuple(_few(json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")))
        for lines in (
            each.response.body.decode().splitlines() for each in recordings("openai.responses", streaming=True)
        )
    )


def _few(events: Iterable[dict[str, JsonValue]]) -> Iterator[dict[str, JsonValue]]:
    count = Counter[str]()
    for event in events:
        kind = str(event["type"])
        count[kind] += 1
        if count[kind] <= 2:
            yield event


def replaced(value: JsonValue, path: list[int], other: JsonValue) -> JsonValue:
    """The value with something else at the end of the path, or as far along it as there is a way."""
    if not path or not isinstance(value, dict | list) or not value:
        return other
    step = path[0] % len(value)
    if isinstance(value, list):
        return [replaced(item, path[1:], other) if at == step else item for at, item in enumerate(value)]
    return {
        key: replaced(item, path[1:], other) if at == step else item for at, (key, item) in enumerate(value.items())
    }


KINDS = ("response.output_item.added", "response.output_item.done", "response.created", "response.completed")
PATHS = st.lists(st.integers(0, 50), max_size=7)


@given(st.integers(0, 30), PATHS, ANY_JSON)
@example(0, [], {"output": [{"type": "web_search_call", "x": "\ud83d", "y": float("nan")}]})
@example(0, [], {"output": [{"type": "reasoning", "summary": [{"text": 5}, None], "content": "x"}]})
@example(0, [], {"output": [{"type": "message", "content": {"type": "refusal"}}], "status": "incomplete"})
@example(0, [], {"output": [{"type": "function_call", "name": "\ud83d", "call_id": [], "arguments": [float("inf")]}]})
def test_whatever_stands_in_a_reply_it_is_read_or_a_failure(which: int, path: list[int], other: JsonValue) -> None:
    spoiled = replaced(whole_bodies()[which], path, other)
    try:
        if isinstance(spoiled, dict):
            check(Responses().completion(spoiled, ENDPOINT))
    except ModelFailure:
        pass


@given(st.integers(0, 23), st.integers(0, 50), PATHS, ANY_JSON, st.sampled_from(KINDS))
@example(3, 2, [2], float("inf"), KINDS[-1])
@example(3, 2, [1, 0], "\ud83d", KINDS[0])
def test_whatever_stands_in_an_event_it_is_read_or_a_failure(
    which: int, at: int, path: list[int], other: JsonValue, without: str
) -> None:
    # Without one kind of events, what is not told again at the end has to be put together.
    events = [each for each in event_streams()[which] if each["type"] != without] or [{}]
    at %= len(events)
    stream = Responses().reply_stream(ENDPOINT)
    try:
        for event in (*events[:at], replaced(events[at], path, other), *events[at + 1 :], {"type": KINDS[-1]}):
            for delta in stream.add("response.output_item.added", json.dumps(event)):
                assert (delta.text + delta.name).encode() is not None
        check(Responses().completion(stream.reply(), ENDPOINT))
    except ModelFailure:
        pass


def check(reply: Completion) -> None:
    """The reply can be recorded, and goes back as a legal request."""
    calls = tuple(
        ToolCall(call_id=f"call_{n}", tool=call.name, arguments={}, provider_call_id=call.provider_call_id)
        for n, call in enumerate(reply.calls)
    )
    kept = Message(role="assistant", text=reply.text, tool_calls=calls, opaque=reply.opaque)
    kept = Message.model_validate_json(kept.model_dump_json())
    # Reasoning of another shape than the API's own is the server's to judge.
    wire = Responses().body(asked(HELLO, kept), stream=False)
    json.dumps(wire, allow_nan=False).encode()
