"""Every non-streaming Chat Completions exchange that was recorded, served byte for byte over loopback."""

import json

import httpx
import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.providers.interface import Completion, CompletionRequest, ModelErrorType, ModelFailure
from contracts.messages import Message, ToolCall, Usage
from tests.providers.model_server import ModelServer, RecordedConversation, Response
from tests.providers.recordings import Recording, conversation, recordings

RECORDINGS = recordings("openai.chat", streaming=False)
REPLIES = [each for each in RECORDINGS if not each.expected["is_error"]]
ERRORS = [each for each in RECORDINGS if each.expected["is_error"]]
REQUEST = CompletionRequest("m", "Be brief.", (Message(role="user", text="Hello"),), ())

# Replies that parse, as expected.json says, into nothing that could be stored: a refusal and a withheld answer.
REFUSED = {
    "openai/chat_json_test_chat_parse_test_parsed_refused_completion_0",
    "openai/chat_json_test_chat_parse_test_async_parsed_refused_completion_0",
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
}


async def served(response: Response) -> Completion:
    async with ModelServer([response]) as server, httpx.AsyncClient() as http:
        return await HttpModel(http, ChatCompletions(), server.base_url, "secret-for-tests").complete(REQUEST)


def assert_as_expected(completion: Completion, expected: dict[str, JsonValue]) -> None:
    calls, used = expected["tool_calls"], expected["usage"]
    assert isinstance(calls, list)
    assert isinstance(used, dict)
    counts = {name: value if isinstance(value, int) else 0 for name, value in used.items()}
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
    assert completion.usage == Usage(
        input_tokens=counts["input"],
        output_tokens=counts["output"],
        cached_input_tokens=min(counts["cached"], counts["input"]),
        reasoning_tokens=counts["reasoning"],
    )


def type_of_error(recording: Recording) -> ModelErrorType:
    status = recording.response.status
    if recording.id in TYPE_OF_ERROR:
        return TYPE_OF_ERROR[recording.id]
    if status in (401, 403):
        return "ModelAuthentication"
    return "ModelUnavailable" if status in (408, 409, 425, 429) or status >= 500 else "ModelBadRequest"


def test_all_non_streaming_recordings_are_here() -> None:
    assert len(RECORDINGS) == 108
    assert len(REPLIES) + len(ERRORS) == 108
    assert {each.id for each in REPLIES} >= REFUSED
    assert {each.id for each in ERRORS} >= set(TYPE_OF_ERROR)


@pytest.mark.parametrize("recording", REPLIES, ids=lambda recording: recording.id)
async def test_a_recorded_reply_is_understood(recording: Recording) -> None:
    if recording.id in REFUSED:
        with pytest.raises(ModelFailure) as caught:
            await served(recording.response)
        assert (caught.value.type, caught.value.retryable) == ("ModelRefused", False)
        assert str(recording.expected["refusal"] or "") in str(caught.value)
    else:
        assert_as_expected(await served(recording.response), recording.expected)


@pytest.mark.parametrize("recording", ERRORS, ids=lambda recording: recording.id)
async def test_a_recorded_error_is_classified(recording: Recording) -> None:
    with pytest.raises(ModelFailure) as caught:
        await served(recording.response)
    failure, expected_type = caught.value, type_of_error(recording)
    assert failure.type == expected_type
    assert failure.retryable == (expected_type == "ModelUnavailable")
    assert failure.retry_after == (recording.expected["retry_after_s"] if failure.retryable else None)
    assert 0 < len(str(failure)) <= 500
    assert "\n" not in str(failure)


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
                transcript.append(Message(role="assistant", text=reply.text, tool_calls=calls))
    return tuple(transcript)


async def assert_carried_on(played: RecordedConversation, last: Recording) -> None:
    async with ModelServer(played) as server, httpx.AsyncClient() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, "secret-for-tests")
        transcript = await carry_on(model, last.request)
        completion = await model.complete(CompletionRequest("m", "Be brief.", transcript, ()))
    assert played.refused == []
    assert played.left == 0
    assert_as_expected(completion, last.expected)


# The SDK that recorded seq11 put a round of its own between two exchanges, so only its last request has all replies.
@pytest.mark.parametrize("sequence", ["seq15", "seq22", "seq27"])
async def test_a_recorded_conversation_is_carried_on_legally(sequence: str) -> None:
    exchanges = conversation("openai.chat", False, sequence)
    await assert_carried_on(RecordedConversation([each.response for each in exchanges]), exchanges[-1])


@pytest.mark.parametrize("sequence", ["seq11", "seq15", "seq22", "seq27"])
async def test_a_conversation_derived_from_its_last_request_is_carried_on_legally(sequence: str) -> None:
    last = conversation("openai.chat", False, sequence)[-1]
    await assert_carried_on(RecordedConversation.from_last_request(last.request, last.response), last)
