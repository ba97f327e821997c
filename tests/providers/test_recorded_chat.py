"""Every Chat Completions exchange that was recorded, served over loopback: as it came, and cut at other places."""

import json
import random
from collections.abc import Iterable, Iterator

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.providers.interface import Completion, CompletionRequest, ModelErrorType, ModelFailure
from contracts.messages import Message, ToolCall, Usage
from contracts.pointers import at
from tests.providers.chat_chunks import streamed
from tests.providers.model_server import ModelServer, RecordedConversation, Response, Streamed
from tests.providers.recordings import Recording, conversation, recordings
from tests.support.loopback import loopback_client

RECORDINGS = recordings("openai.chat", streaming=False)
STREAMS = recordings("openai.chat", streaming=True)
# Cut off by its maker: no error, and no reply either.
CUT = "derived/chat_sse_connection_cut"
REPLIES = [each for each in RECORDINGS if not each.expected["is_error"]]
ERRORS = [each for each in RECORDINGS if each.expected["is_error"]]
STREAMED_REPLIES = [each for each in STREAMS if not each.expected["is_error"] and each.id != CUT]
STREAMED_ERRORS = [each for each in STREAMS if each.expected["is_error"]]
REQUEST = CompletionRequest("m", "Be brief.", (Message(role="user", text="Hello"),), ())

# Replies that parse, as expected.json says, into nothing that could be stored: refusals and a withheld answer.
REFUSED = {
    "openai/chat_json_test_chat_parse_test_parsed_refused_completion_0",
    "openai/chat_json_test_chat_parse_test_async_parsed_refused_completion_0",
    "openai/chat_sse_inline_snapshot_173417d55340",
    "azure/chat_json_test_azure_test_chat_content_filtering",
}
# What the status alone does not tell.
TYPE_OF_ERROR: dict[str, ModelErrorType] = {
    "azure/chat_json_test_azure_test_prompt_content_filtering": "ModelRefused",
    "ollama_cloud/chat_json_cloud_gpt_oss_120b_handles_context_length_exceeded_errors": "ContextWindowExceeded",
    "openai/chat_json_openai_gpt_5_nano_handles_context_length_exceeded_errors": "ContextWindowExceeded",
    "openai/chat_json_openai_gpt_5_nano_handles_context_length_exceeded_errors_v2": "ContextWindowExceeded",
    "openrouter/chat_json_claude_haiku_4_5_handles_context_length_exceeded_errors": "ContextWindowExceeded",
    "xai/chat_json_handling_with_xai_grok_2_1212_raises_appropriate_auth_error": "ModelAuthentication",
    "groq/chat_sse_test_groq_test_tool_use_failed_error_streaming_0": "ModelBadRequest",
    "gpustack/chat_sse_gpustack_qwen3_streams_thinking_content_when_available_v2": "ModelUnavailable",
    "openai/chat_sse_responses_openai_gpt_4_1_nano_supports_streaming_responses": "ModelUnavailable",
}
# xAI and Vercel's Gemini models count reasoning beside the output: expected.json has both as they are reported.
REASONING_BESIDE_OUTPUT = "reasoning_tokens_exceed_completion_tokens"


def by_id(recording: Recording) -> str:
    return recording.id


async def served(response: Response) -> Completion:
    async with ModelServer([response]) as server, loopback_client() as http:
        return await HttpModel(http, ChatCompletions(), server.base_url, "secret-for-tests").complete(REQUEST)


async def failed(response: Response) -> ModelFailure:
    with pytest.raises(ModelFailure) as caught:
        await served(response)
    return caught.value


def assert_as_expected(completion: Completion, expected: dict[str, JsonValue]) -> None:
    calls = expected["tool_calls"]
    assert isinstance(calls, list)
    assert completion.text == expected["text"]
    assert completion.finish_reason == expected["finish_reason"]
    assert completion.truncated == (expected["finish_norm"] == "length")
    assert [
        {"id": call.provider_call_id or "", "name": call.name, "arguments_raw": call.arguments}
        for call in completion.calls
    ] == [
        # Arguments that are null or missing are an empty text here: the interface knows no third kind.
        {"id": call["id"] or "", "name": call["name"], "arguments_raw": call["arguments_raw"] or ""}
        for call in calls
        if isinstance(call, dict)
    ]
    assert_usage(completion.usage, expected["usage"])
    # Where only `reasoning_details` are given, expected.json leaves the texts in them out.
    if expected["reasoning"] or expected["reasoning_fields"] != ["reasoning_details"]:
        assert reasoning(completion) == expected["reasoning"]


def assert_usage(usage: Usage | None, expected: JsonValue) -> None:
    if not isinstance(expected, dict):
        assert usage is None
        return
    counts = {name: value if isinstance(value, int) else 0 for name, value in expected.items()}
    beside = counts["reasoning"] if counts["reasoning"] > counts["output"] else 0
    assert usage is not None
    assert usage.input_tokens == counts["input"]
    assert usage.output_tokens == counts["output"] + beside
    assert usage.cached_input_tokens == min(counts["cached"], counts["input"])
    assert usage.reasoning_tokens == counts["reasoning"]


def blocks(completion: Completion) -> Iterator[dict[str, JsonValue]]:
    return (part for part in completion.opaque if isinstance(part, dict) and "block" in part)


def reasoning(completion: Completion) -> str:
    """The reasoning that the parts point at."""
    found: list[str] = []
    for part in blocks(completion):
        pointers = part["reasoning"]
        assert isinstance(pointers, list)
        found += [str(at(str(pointer), part["block"])) for pointer in pointers]
    return "".join(found)


def signatures(value: JsonValue) -> Iterator[str]:
    """Everything in a body that a provider must get back as it gave it."""
    match value:
        case dict():
            for name, item in value.items():
                if name in ("signature", "data", "thought_signature") and isinstance(item, str):
                    yield item
                yield from signatures(item)
        case list():
            for item in value:
                yield from signatures(item)


def type_of_error(recording: Recording) -> ModelErrorType:
    status = recording.response.status
    if recording.id in TYPE_OF_ERROR:
        return TYPE_OF_ERROR[recording.id]
    if status in (401, 403):
        return "ModelAuthentication"
    return "ModelUnavailable" if status in (408, 409, 425, 429) or status >= 500 else "ModelBadRequest"


def test_all_recordings_are_here() -> None:
    assert (len(RECORDINGS), len(STREAMS)) == (108, 68)
    assert len(STREAMED_REPLIES) + len(STREAMED_ERRORS) == 67
    assert {each.id for each in (*REPLIES, *STREAMED_REPLIES)} >= REFUSED
    assert {each.id for each in (*ERRORS, *STREAMED_ERRORS)} >= set(TYPE_OF_ERROR)


async def assert_understood(recording: Recording, response: Response) -> None:
    if recording.id in REFUSED:
        failure = await failed(response)
        assert (failure.type, failure.retryable) == ("ModelRefused", False)
        assert str(recording.expected["refusal"] or "") in str(failure)
        assert_usage(failure.usage, recording.expected["usage"])
    else:
        assert_as_expected(await served(response), recording.expected)


async def assert_classified(recording: Recording, response: Response) -> None:
    failure, expected_type = await failed(response), type_of_error(recording)
    assert failure.type == expected_type
    assert failure.retryable == (expected_type == "ModelUnavailable")
    assert failure.retry_after == (recording.expected["retry_after_s"] if failure.retryable else None)
    assert 0 < len(str(failure)) <= 500
    assert "\n" not in str(failure)


@pytest.mark.parametrize("recording", [*REPLIES, *STREAMED_REPLIES], ids=by_id)
async def test_a_recorded_reply_is_understood(recording: Recording) -> None:
    await assert_understood(recording, recording.response)


@pytest.mark.parametrize("recording", [*ERRORS, *STREAMED_ERRORS], ids=by_id)
async def test_a_recorded_error_is_classified(recording: Recording) -> None:
    await assert_classified(recording, recording.response)


def cuts(recording: Recording) -> Iterable[Streamed]:
    """The stream in other pieces: large and small ones, and single bytes where it is short."""
    length = len(recording.response.body)
    for seed, largest in enumerate((max(20, length // 40), max(40, length // 10))):
        dice = random.Random(f"{seed} {recording.id}")
        yield Streamed.in_pieces(recording.response, iter(lambda d=dice, n=largest: d.randint(1, n), 0))  # type: ignore[misc]  # an endless iterator
    if length < 2_000:
        yield Streamed.in_pieces(recording.response, iter(lambda: 1, 0))


@pytest.mark.parametrize("recording", [*STREAMED_REPLIES, *STREAMED_ERRORS], ids=by_id)
async def test_a_stream_says_the_same_however_it_is_cut_into_pieces(recording: Recording) -> None:
    for pieces in cuts(recording):
        if recording.expected["is_error"]:
            await assert_classified(recording, pieces)
        else:
            await assert_understood(recording, pieces)


@pytest.mark.parametrize("recording", [each for each in REPLIES if each.id not in REFUSED], ids=by_id)
async def test_a_reply_says_the_same_when_it_is_streamed(recording: Recording) -> None:
    whole = await served(recording.response)
    in_pieces = await served(streamed(recording.response, random.Random(recording.id)))
    # A finish reason that says nothing is none in a stream, where every chunk has one.
    assert in_pieces.finish_reason == (whole.finish_reason or None)
    assert (in_pieces.text, in_pieces.calls, in_pieces.usage) == (whole.text, whole.calls, whole.usage)
    assert in_pieces.opaque == whole.opaque


async def test_a_recorded_stream_that_was_cut_off_is_no_reply() -> None:
    (recording,) = (each for each in STREAMS if each.id == CUT)
    failure = await failed(recording.response)
    assert (failure.type, failure.retryable, failure.usage) == ("ModelUnavailable", True, None)


# What the recordings hold that is no reply before its last event: the end may be an event of its own, or the finish.
@pytest.mark.parametrize("recording", [each for each in STREAMED_REPLIES if each.id not in REFUSED], ids=by_id)
async def test_a_stream_that_breaks_off_is_asked_for_again_and_tells_what_was_billed(recording: Recording) -> None:
    line_end = b"\r\n\r\n" if b"\r\n\r\n" in recording.response.body else b"\n\n"
    events = [event + line_end for event in recording.response.body.strip().split(line_end)]
    before_the_end = events[:-1]
    told = [event for event in before_the_end if b'"prompt_tokens"' in event]
    failure = await failed(Streamed(200, recording.response.headers, pieces=before_the_end, cut=True))
    assert (failure.type, failure.retryable) == ("ModelUnavailable", True)
    assert (failure.usage is not None) == bool(told)
    if told and events[-1].startswith(b"data: [DONE]"):
        assert_usage(failure.usage, recording.expected["usage"])
    # In good order, but before a finish reason: just as little of a reply.
    first = await failed(Streamed(200, recording.response.headers, pieces=events[: len(events) // 3]))
    assert (first.type, first.retryable) == ("ModelUnavailable", True)


def signed(recording: Recording) -> set[str]:
    body = recording.response.body.decode()
    events = [line.removeprefix("data:") for line in body.splitlines() if line.startswith("data: {")] or [body]
    return {each for event in events for each in signatures(json.loads(event))} - {""}


SIGNED = [each for each in (*REPLIES, *STREAMED_REPLIES) if signed(each)]


@pytest.mark.parametrize("recording", SIGNED, ids=by_id)
async def test_what_a_provider_signed_is_kept_as_it_came(recording: Recording) -> None:
    assert len(SIGNED) == 6
    completion = await served(recording.response)
    assert set(signatures(list(completion.opaque))) == signed(recording)


async def carry_on(model: HttpModel, request: dict[str, JsonValue]) -> tuple[Message, ...]:
    """Holds the conversation of a recorded request once more: its users and tools speak, the model is asked."""
    recorded, transcript, open_calls = request["messages"], list[Message](), list[str]()
    assert isinstance(recorded, list)
    for message in recorded:
        assert isinstance(message, dict)
        match message["role"]:
            case "user":
                transcript.append(Message(role="user", text=str(message["content"])))
            case "tool":
                text = str(message["content"])
                transcript.append(Message(role="tool", text=text, call_id=open_calls.pop(0)))
            case "assistant":
                reply = await model.complete(CompletionRequest("m", "Be brief.", tuple(transcript), ()))
                assert reply.text == (message.get("content") or "")
                calls = tuple(
                    ToolCall(
                        call_id=f"call_{len(transcript)}_{position}",
                        tool=call.name,
                        arguments=json.loads(call.arguments),
                        provider_call_id=call.provider_call_id,
                    )
                    for position, call in enumerate(reply.calls)
                )
                open_calls = [call.call_id for call in calls]
                transcript.append(Message(role="assistant", text=reply.text, tool_calls=calls, opaque=reply.opaque))
    return tuple(transcript)


async def assert_carried_on(played: RecordedConversation, last: Recording) -> None:
    async with ModelServer(played) as server, loopback_client() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, "secret-for-tests")
        transcript = await carry_on(model, last.request)
        completion = await model.complete(CompletionRequest("m", "Be brief.", transcript, ()))
    assert played.refused == []
    assert played.left == 0
    assert_as_expected(completion, last.expected)


# The SDK that recorded seq11 put a round of its own between two exchanges, so only its last request has all replies.
@pytest.mark.parametrize(
    ("sequence", "streaming"),
    [
        *(("seq15", False), ("seq22", False), ("seq27", False)),
        *(("seq02", True), ("seq03", True), ("seq17", True), ("seq19", True), ("seq21", True), ("seq25", True)),
        ("seq28", True),
    ],
)
async def test_a_recorded_conversation_is_carried_on_legally(sequence: str, streaming: bool) -> None:
    exchanges = conversation("openai.chat", streaming, sequence)
    await assert_carried_on(RecordedConversation([each.response for each in exchanges]), exchanges[-1])


@pytest.mark.parametrize("sequence", ["seq11", "seq15", "seq22", "seq27"])
async def test_a_conversation_derived_from_its_last_request_is_carried_on_legally(sequence: str) -> None:
    last = conversation("openai.chat", False, sequence)[-1]
    await assert_carried_on(RecordedConversation.from_last_request(last.request, last.response), last)
