"""Every exchange with the Messages API that was recorded, served byte for byte and in pieces over loopback."""

import json
import random
from collections.abc import Iterator

import pytest
from pydantic import JsonValue

from activities.providers.http_model import HttpModel
from activities.providers.interface import Completion, CompletionRequest, Delta, ModelErrorType
from activities.providers.messages import Messages
from contracts.messages import Message, Usage
from contracts.pointers import at
from tests.providers.asking_messages import answered, asked, failed, recorded, results, streamed, watched
from tests.providers.legality_messages import WhatItGave, request_illegality
from tests.providers.model_server import ModelServer, RecordedConversation, Response, Streamed
from tests.providers.recordings import Recording, conversation, recordings
from tests.support.loopback import loopback_client

WHOLE = recordings("anthropic.messages", streaming=False)
STREAMED = recordings("anthropic.messages", streaming=True)
PREFILL = "anthropic/msg_sse_test_anthropic_test_prompt_with_prefill_and_stop_sequences"
PAUSED = "anthropic/msg_sse_test_anthropic_test_pause_turn_web_search_streaming_vcr_0"
CUT = "derived/msg_sse_connection_cut"
SMALL_BYTES = 3_000


def usable(recording: Recording) -> bool:
    return not recording.expected["is_error"] and recording.expected["finish_norm"] != "refusal"


def named(recording: Recording) -> str:
    return recording.id.partition("/")[2]


REPLIES = [each for each in (*WHOLE, *STREAMED) if usable(each) and each.id != CUT]
STREAMED_REPLIES = [each for each in REPLIES if each.streaming]
REFUSALS = [each for each in STREAMED if each.expected["finish_norm"] == "refusal"]
ERRORS = [each for each in (*WHOLE, *STREAMED) if each.expected["is_error"]]


def blocks_of(completion: Completion) -> list[dict[str, JsonValue]]:
    parts = (part for part in completion.opaque if isinstance(part, dict))
    return [block for part in parts if isinstance(block := part.get("block"), dict)]


def reasoning_of(completion: Completion) -> str:
    found = list[str]()
    for part in completion.opaque:
        if isinstance(part, dict) and isinstance(pointers := part.get("reasoning"), list):
            found += [str(at(str(pointer), part["block"])) for pointer in pointers]
    return "".join(found)


def own_tools_of(completion: Completion) -> list[JsonValue]:
    own = [block for block in blocks_of(completion) if block["type"] not in ("thinking", "redacted_thinking", "text")]
    return [
        {"id": block.get("id") or block.get("tool_use_id"), "name": block.get("name"), "type": block["type"]}
        for block in own
    ]


def assert_as_expected(completion: Completion, recording: Recording) -> None:
    expected = recording.expected
    calls, used = expected["tool_calls"], expected["usage"]
    assert isinstance(calls, list)
    assert isinstance(used, dict)
    assert completion.text == expected["text"]
    assert reasoning_of(completion) == expected["reasoning"]
    assert completion.finish_reason == expected["finish_reason"]
    assert completion.truncated == (expected["finish_norm"] == "length")
    assert completion.paused == (expected["finish_norm"] == "pause")
    expected_calls = [call for call in calls if isinstance(call, dict)]
    assert [(call.provider_call_id, call.name) for call in completion.calls] == [
        (call["id"], call["name"]) for call in expected_calls
    ]
    if recording.streaming:
        # The text as the model wrote it, be it cut off or empty.
        assert [call.arguments for call in completion.calls] == [call["arguments_raw"] for call in expected_calls]
    else:
        assert [json.loads(call.arguments) for call in completion.calls] == [
            call["arguments"] for call in expected_calls
        ]
    assert own_tools_of(completion) == expected["server_tool_calls"]
    counts = {name: value if isinstance(value, int) else 0 for name, value in used.items()}
    assert completion.usage == Usage(
        input_tokens=counts["input_total"],
        output_tokens=counts["output"],
        cached_input_tokens=counts["cached"],
        cache_write_tokens=counts["cache_write"],
        reasoning_tokens=counts["reasoning"],
    )


def test_all_recordings_are_here() -> None:
    assert (len(WHOLE), len(STREAMED)) == (25, 19)
    assert len(REPLIES) + len(REFUSALS) + len(ERRORS) + 1 == 44
    assert (len(REFUSALS), len(ERRORS)) == (2, 9)


@pytest.mark.parametrize("recording", REPLIES, ids=named)
async def test_a_recorded_reply_is_understood(recording: Recording) -> None:
    assert_as_expected(await answered(recording.response), recording)


def random_sizes(recording: Recording) -> Iterator[int]:
    chance = random.Random(recording.id)
    longest = max(8, len(recording.response.body) // 100)
    while True:
        yield chance.randint(1, longest)


@pytest.mark.parametrize("recording", STREAMED_REPLIES, ids=named)
async def test_a_recorded_stream_says_the_same_however_it_is_cut_into_pieces(recording: Recording) -> None:
    assert_as_expected(await answered(Streamed.in_pieces(recording.response, random_sizes(recording))), recording)


@pytest.mark.parametrize(
    "recording", [each for each in STREAMED_REPLIES if len(each.response.body) < SMALL_BYTES], ids=named
)
async def test_a_small_recorded_stream_is_read_byte_by_byte(recording: Recording) -> None:
    assert_as_expected(await answered(Streamed.in_pieces(recording.response, iter(lambda: 1, 0))), recording)


def shown(deltas: list[Delta], kind: str, call: int = 0) -> str:
    return "".join(delta.text for delta in deltas if (delta.kind, delta.call) == (kind, call))


@pytest.mark.parametrize("recording", STREAMED_REPLIES, ids=named)
async def test_people_who_watch_see_what_a_recorded_stream_says(recording: Recording) -> None:
    completion, deltas = await watched(recording.response)
    assert shown(deltas, "text") == completion.text
    assert shown(deltas, "reasoning") == recording.expected["reasoning"]
    for position, call in enumerate(completion.calls):
        assert shown(deltas, "tool_call", position) == call.arguments
        assert {delta.name for delta in deltas if (delta.kind, delta.call) == ("tool_call", position)} == {call.name}
    assert {delta.call for delta in deltas if delta.kind == "tool_call"} == set(range(len(completion.calls)))


@pytest.mark.parametrize("recording", REFUSALS, ids=named)
async def test_a_recorded_refusal_is_told_with_its_usage(recording: Recording) -> None:
    failure, used = await failed(recording.response), recording.expected["usage"]
    assert (failure.type, failure.retryable) == ("ModelRefused", False)
    assert isinstance(used, dict)
    assert failure.usage is not None
    assert (failure.usage.input_tokens, failure.usage.output_tokens) == (used["input_total"], used["output"])
    assert str(recording.expected["text"] or "refused due to policy") in str(failure)


def type_of_error(recording: Recording) -> ModelErrorType:
    error = recording.expected["error"]
    assert isinstance(error, dict)
    types: dict[JsonValue, ModelErrorType] = {
        "overloaded_error": "ModelUnavailable",
        "rate_limit_error": "ModelUnavailable",
        "authentication_error": "ModelAuthentication",
        "not_found_error": "ModelBadRequest",
        "invalid_request_error": "ModelBadRequest",
    }
    return types[error["type"]]


@pytest.mark.parametrize("recording", ERRORS, ids=named)
async def test_a_recorded_error_is_classified(recording: Recording) -> None:
    failure, error = await failed(recording.response), recording.expected["error"]
    assert isinstance(error, dict)
    assert failure.type == type_of_error(recording)
    told_not_to = recording.response.headers.get("x-should-retry") == "false"
    assert failure.retryable == (failure.type == "ModelUnavailable" and not told_not_to)
    assert failure.retry_after == (recording.expected["retry_after_s"] if failure.retryable else None)
    assert str(error["message"])[:200] in str(failure)


async def test_a_recorded_stream_that_was_cut_is_no_answer_and_was_paid_for() -> None:
    recording = next(each for each in STREAMED if each.id == CUT)
    failure = await failed(recording.response)
    assert (failure.type, failure.retryable) == ("ModelUnavailable", True)
    assert failure.usage == Usage(input_tokens=633, output_tokens=22)


@pytest.mark.parametrize("recording", [each for each in (*WHOLE, *STREAMED) if each.response.status == 200], ids=named)
def test_a_recorded_request_that_was_answered_is_legal(recording: Recording) -> None:
    # Older models took the beginning of an answer; none since Claude 4.6 does, and no request of ours has one.
    reason = "this model does not support assistant message prefill" if recording.id.startswith(PREFILL) else None
    assert request_illegality(recording.request) == reason


async def carry_on(model: HttpModel, exchanges: int, first: Message) -> list[Completion]:
    """Holds a conversation: each call is answered, each answer followed by one more question."""
    transcript, replies = [first], list[Completion]()
    for _ in range(exchanges):
        request = asked(*transcript)
        replies.append(await model.complete(request))
        message = recorded(replies[-1], first_call=len(transcript))
        follow_up = () if message.tool_calls or replies[-1].paused else (Message(role="user", text="And then?"),)
        transcript += [message, *results(message), *follow_up]
    return replies


async def assert_carried_on(responses: list[Response], memory: WhatItGave, asked_for: int) -> list[Completion]:
    played = RecordedConversation(responses, memory.request_illegality)
    async with ModelServer(played) as server, loopback_client() as http:
        model = HttpModel(http, Messages(), server.base_url, "secret-for-tests")
        replies = await carry_on(model, asked_for, Message(role="user", text="Hello"))
    assert played.refused == []
    assert played.left == 0
    return replies


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("sequence", ["seq04", "seq07", "seq08"])
async def test_a_recorded_conversation_is_carried_on_legally(sequence: str, streaming: bool) -> None:
    exchanges = conversation("anthropic.messages", False, sequence)
    bodies = [json.loads(each.response.body) for each in exchanges]
    memory = WhatItGave.in_bodies(each.response for each in exchanges)
    responses = [streamed(body) if streaming else each.response for body, each in zip(bodies, exchanges, strict=True)]
    replies = await assert_carried_on(responses, memory, len(exchanges))
    assert [reply.text for reply in replies] == [each.expected["text"] for each in exchanges]


WITH_BLOCKS = [each for each in REPLIES if each.expected["server_tool_calls"] or each.expected["reasoning_signature"]]


@pytest.mark.parametrize("recording", WITH_BLOCKS, ids=named)
async def test_blocks_of_a_recorded_reply_go_back_as_they_came(recording: Recording) -> None:
    completion = await answered(recording.response)
    expected = recording.expected["blocks"]
    assert isinstance(expected, list)
    order = [
        block["type"] if isinstance(block := part.get("block"), dict) else "text" if "text" in part else "tool_use"
        for part in completion.opaque
        if isinstance(part, dict)
    ]
    assert order == expected
    memory = WhatItGave([_content(completion)])
    answer = Response.of({"content": [{"type": "text", "text": "Done."}], "stop_reason": "end_turn"})
    (_, last) = await assert_carried_on([recording.response, answer], memory, 2)
    assert last.text == "Done."


def _content(completion: Completion) -> list[JsonValue]:
    """The reply's content, as far as a server remembers it."""
    content = list[JsonValue]()
    for part in completion.opaque:
        assert isinstance(part, dict)
        if "call" in part:
            index = part["call"]
            assert isinstance(index, int)
            content.append({"type": "tool_use", "id": completion.calls[index].provider_call_id})
        elif "block" in part:
            content.append(part["block"])
    return content


async def test_a_recorded_pause_is_gone_on_with() -> None:
    paused = next(each for each in STREAMED if each.id == PAUSED)
    completion = await answered(paused.response)
    request = CompletionRequest("claude-sonnet-4-5", "", (Message(role="user", text="Go."), recorded(completion)), ())
    body = Messages().body(request, stream=True)
    assert request_illegality(body) is None
    messages = body["messages"]
    assert isinstance(messages, list)
    assert [message["role"] for message in messages if isinstance(message, dict)] == ["user", "assistant"]
