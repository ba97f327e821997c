"""Every Responses exchange that was recorded, whole and streamed, served byte for byte and cut at random places."""

import json
import random
from collections.abc import Iterator
from itertools import repeat

import pytest
from pydantic import JsonValue

from activities.providers.http_model import HttpModel
from activities.providers.interface import Completion, Delta, ModelErrorType, ModelFailure
from activities.providers.responses import Responses
from contracts.messages import Message, ToolCall, Usage
from contracts.pointers import at
from tests.providers.asking_responses import answered, asked
from tests.providers.legality_responses import illegality_of_what_follows, items_illegality
from tests.providers.model_server import ModelServer, RecordedConversation, Streamed
from tests.providers.recordings import Recording, conversation, recordings
from tests.support.loopback import loopback_client

WHOLE = recordings("openai.responses", streaming=False)
STREAMS = recordings("openai.responses", streaming=True)
REPLIES = [each for each in (*WHOLE, *STREAMS) if not each.expected["is_error"]]
ERRORS = [each for each in (*WHOLE, *STREAMS) if each.expected["is_error"]]
SMALL = [each for each in STREAMS if len(each.response.body) < 6_000]

TYPE_OF_ERROR: dict[str, tuple[ModelErrorType, bool]] = {
    "deepseek/resp_json_test_deepseek_responses_rejects_interleaved_function_calls": ("ModelBadRequest", False),
    "openai/resp_json_otel_openai_v2_test_responses_create_api_error_content_mode0": ("ModelBadRequest", False),
    "openai/resp_json_test_model_name_suggestions_test_inferred_model_name_suggestion": ("ModelBadRequest", False),
    "openai/resp_sse_fixtures_openai_error_1_chunks": ("ModelUnavailable", False),
    "openai/resp_sse_fixtures_openai_error_null_code_1_chunks": ("ModelUnavailable", True),
    "xai/resp_json_xai_grok_4_1_fast_non_reasoning_raises_appropriate_auth_error": ("ModelAuthentication", False),
}
# Not a part of the expectations; read from the recording.
CACHE_WRITES = {"bedrock_mantle/resp_sse_test_bedrock_mantle_test_reused_tool_call_ids_stream_2": 43}


def blocks(completion: Completion) -> Iterator[tuple[dict[str, JsonValue], list[JsonValue]]]:
    """The blocks of a reply, each with the pointers to its reasoning."""
    for part in completion.opaque:
        match part:
            case {"block": dict(block), "reasoning": list(pointers)}:
                yield block, pointers


def reasoning(completion: Completion) -> str:
    return "".join(str(at(str(pointer), block)) for block, pointers in blocks(completion) for pointer in pointers)


def assert_as_expected(completion: Completion, recording: Recording) -> None:
    expected = recording.expected
    calls, used = expected["tool_calls"], expected["usage"]
    assert isinstance(calls, list)
    assert completion.text == expected["text"]
    assert reasoning(completion) == expected["reasoning"]
    assert completion.finish_reason == expected["finish_reason"]
    assert completion.truncated == (expected["finish_norm"] == "length")
    assert [(call.provider_call_id, call.name, call.arguments) for call in completion.calls] == [
        (call["id"], call["name"], call["arguments_raw"]) for call in calls if isinstance(call, dict)
    ]
    assert [
        {"id": block["id"], "status": block["status"], "type": block["type"]}
        for block, _ in blocks(completion)
        if block["type"] != "reasoning"
    ] == expected["server_tool_calls"]
    thoughts = [block for block, _ in blocks(completion) if block["type"] == "reasoning"]
    assert any(block.get("encrypted_content") for block in thoughts) == expected["reasoning_signature"]
    if used is None:
        assert completion.usage is None
        return
    assert isinstance(used, dict)
    counts = {name: value if isinstance(value, int) else 0 for name, value in used.items()}
    assert completion.usage == Usage(
        input_tokens=counts["input"],
        output_tokens=counts["output"],
        cached_input_tokens=min(counts["cached"], counts["input"]),
        cache_write_tokens=CACHE_WRITES.get(recording.id, 0),
        reasoning_tokens=counts["reasoning"],
    )


def assert_deltas_add_up(deltas: list[Delta], completion: Completion) -> None:
    said = {kind: "".join(d.text for d in deltas if d.kind == kind) for kind in ("text", "reasoning")}
    assert said["text"] == completion.text
    assert said["reasoning"] in ("", reasoning(completion))
    for index, call in enumerate(completion.calls):
        own = [delta for delta in deltas if delta.kind == "tool_call" and delta.call == index]
        assert "".join(delta.text for delta in own) == call.arguments
        assert {delta.name for delta in own} == {call.name}


def test_all_recordings_are_here() -> None:
    assert (len(WHOLE), len(STREAMS)) == (31, 24)
    assert {each.id for each in ERRORS} == set(TYPE_OF_ERROR)
    assert len(SMALL) >= 5


@pytest.mark.parametrize("recording", REPLIES, ids=lambda recording: recording.id)
async def test_a_recorded_reply_is_understood(recording: Recording) -> None:
    deltas: list[Delta] = []
    completion = await answered(recording.response, deltas=deltas)
    assert_as_expected(completion, recording)
    if recording.streaming:
        assert_deltas_add_up(deltas, completion)


@pytest.mark.parametrize("recording", ERRORS, ids=lambda recording: recording.id)
async def test_a_recorded_error_is_classified(recording: Recording) -> None:
    with pytest.raises(ModelFailure) as caught:
        await answered(recording.response)
    assert (caught.value.type, caught.value.retryable) == TYPE_OF_ERROR[recording.id]
    assert caught.value.retry_after == (recording.expected["retry_after_s"] if caught.value.retryable else None)
    told = recording.expected["error"]
    assert isinstance(told, dict)
    assert str(told["message"])[:100] in str(caught.value)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("recording", STREAMS, ids=lambda recording: recording.id)
async def test_a_stream_cut_at_random_places_says_the_same(recording: Recording, seed: int) -> None:
    sizes = random.Random(seed)
    await assert_same_in_pieces(recording, iter(lambda: sizes.choice((1, 13, 400, 3_000)), 0))


@pytest.mark.parametrize("recording", SMALL, ids=lambda recording: recording.id)
async def test_a_stream_in_single_bytes_says_the_same(recording: Recording) -> None:
    await assert_same_in_pieces(recording, repeat(1))


async def assert_same_in_pieces(recording: Recording, sizes: Iterator[int]) -> None:
    served = Streamed.in_pieces(recording.response, sizes)
    if recording.id in TYPE_OF_ERROR:
        with pytest.raises(ModelFailure) as caught:
            await answered(served)
        assert (caught.value.type, caught.value.retryable) == TYPE_OF_ERROR[recording.id]
        return
    deltas: list[Delta] = []
    completion = await answered(served, deltas=deltas)
    assert_as_expected(completion, recording)
    assert_deltas_add_up(deltas, completion)


@pytest.mark.parametrize("recording", [*WHOLE, *STREAMS], ids=lambda recording: recording.id)
def test_the_rules_that_requests_are_held_to_are_those_of_recorded_servers(recording: Recording) -> None:
    items = recording.request.get("input")
    if not isinstance(items, list) or any("additional_tools" in str(item) for item in items):
        return
    reason = items_illegality(items, stored=recording.request.get("store") is not False)
    refused = "No tool output found" in recording.response.body.decode()
    assert (reason is None) != refused
    assert reason is None or "No tool output found" in reason


async def carry_on(model: HttpModel, exchanges: tuple[Recording, ...]) -> None:
    """Holds a recorded conversation once more: its users and tools speak, the model is asked."""
    transcript, open_calls, heard = list[Message](), list[str](), 0
    for exchange in exchanges:
        items = exchange.request["input"]
        assert isinstance(items, list)
        told = [each for each in items if isinstance(each, dict) and ("output" in each or each.get("role") == "user")]
        for item in told[heard:]:
            if "output" not in item:
                transcript.append(Message(role="user", text=str(item["content"])))
            # An SDK made a call of its own in between, and answered it.
            elif open_calls:
                transcript.append(Message(role="tool", text=str(item["output"]), call_id=open_calls.pop(0)))
        heard = len(told)
        reply = await model.complete(asked(*transcript))
        assert_as_expected(reply, exchange)
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
        turn = Message(role="assistant", text=reply.text, tool_calls=calls, opaque=reply.opaque)
        # As it is in the history of a run.
        transcript.append(Message.model_validate_json(turn.model_dump_json()))


@pytest.mark.parametrize(
    ("sequence", "streaming"),
    [("seq05", False), ("seq06", False), ("seq29", False), ("seq10", True), ("seq26", True), ("seq30", True)],
)
async def test_a_recorded_conversation_is_carried_on_legally(sequence: str, streaming: bool) -> None:
    exchanges = conversation("openai.responses", streaming, sequence)
    responses = [each.response for each in exchanges]
    played = RecordedConversation(responses, illegality_of_what_follows(responses))
    async with ModelServer(played) as server, loopback_client() as http:
        await carry_on(HttpModel(http, Responses(), server.base_url, "secret-for-tests"), exchanges)
    assert (played.refused, played.left) == ([], 0)


def test_all_recorded_conversations_are_carried_on() -> None:
    found = {(each.sequence, each.streaming) for each in (*WHOLE, *STREAMS) if each.sequence}
    assert {name for name, _ in found} == {"seq05", "seq06", "seq29", "seq10", "seq26", "seq30"}
