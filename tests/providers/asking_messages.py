"""Asking `Messages` on a `ModelServer`: replies of the API, whole and as the events it would stream them in."""

import json
from collections.abc import Iterator, Sequence

import pytest
from pydantic import JsonValue

from activities.providers.http_model import HttpModel
from activities.providers.interface import Completion, CompletionRequest, Delta, ModelFailure
from activities.providers.messages import Messages
from contracts.messages import Message, ToolCall
from contracts.models import ModelSettings
from contracts.tools import ToolContract
from tests.providers.legality_messages import request_illegality
from tests.providers.model_server import Canned, ModelServer, Response, Streamed
from tests.support.loopback import loopback_client

KEY = "sk-ant-TEST-TOKEN-9"
NOOP = ToolContract(
    name="noop", description="Does nothing.", input_schema={"type": "object", "properties": {}}, side_effect="read"
)
USER = Message(role="user", text="Hello")


def asked(
    *messages: Message, tools: tuple[ToolContract, ...] = (), model: str = "claude-sonnet-4-6", **settings: object
) -> CompletionRequest:
    """A request, with settings by name."""
    return CompletionRequest(model, "Be brief.", messages or (USER,), tools, ModelSettings.model_validate(settings))


def body_of(request: CompletionRequest, stream: bool = False) -> dict[str, JsonValue]:
    """The request as it goes out, which every server must accept."""
    body: dict[str, JsonValue] = json.loads(json.dumps(Messages().body(request, stream)))
    assert request_illegality(body) is None
    return body


def sent(request: CompletionRequest) -> list[dict[str, JsonValue]]:
    """The messages of a request, without the cache breakpoint, each with a list of blocks."""
    messages = body_of(request)["messages"]
    assert isinstance(messages, list)
    return [_unmarked(message) for message in messages]


def _unmarked(message: JsonValue) -> dict[str, JsonValue]:
    assert isinstance(message, dict)
    content = message["content"]
    assert isinstance(content, list)
    blocks: list[JsonValue] = []
    for block in content:
        assert isinstance(block, dict)
        blocks.append({key: value for key, value in block.items() if key != "cache_control"})
    return {"role": message["role"], "content": blocks}


def text(said: str, **more: JsonValue) -> JsonValue:
    return {"type": "text", "text": said, **more}


def tool_use(call: str, name: str = "noop", **arguments: JsonValue) -> JsonValue:
    return {"type": "tool_use", "id": call, "name": name, "input": arguments}


def thinking(thought: str, signature: str | None) -> JsonValue:
    signed: dict[str, JsonValue] = {} if signature is None else {"signature": signature}
    return {"type": "thinking", "thinking": thought, **signed}


def reply(*content: JsonValue, stop_reason: str | None = "end_turn", **more: JsonValue) -> dict[str, JsonValue]:
    """A message as the API gives it."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": list(content),
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 3},
        **more,
    }


def events(message: dict[str, JsonValue]) -> Iterator[JsonValue]:
    """The events in which the API streams a message: texts in two pieces, arguments in two pieces of JSON."""
    content, used = message["content"], message.get("usage")
    assert isinstance(content, list)
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    yield {"type": "ping"}
    for index, block in enumerate(content):
        assert isinstance(block, dict)
        grown = {name: block[name] for name in ("text", "thinking", "signature") if isinstance(block.get(name), str)}
        start = {**block, **dict.fromkeys(grown, "")}
        if "input" in block:
            start["input"] = {}
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for name, value in grown.items():
            whole = str(value)
            for piece in (whole[:2], whole[2:]):
                yield delta(index, f"{name}_delta", **{name: piece})
        if block.get("input"):
            written = json.dumps(block["input"])
            for piece in (written[:3], written[3:]):
                yield delta(index, "input_json_delta", partial_json=piece)
        yield {"type": "content_block_stop", "index": index}
    stop: JsonValue = {name: message.get(name) for name in ("stop_reason", "stop_sequence", "stop_details")}
    yield {"type": "message_delta", "delta": stop, "usage": used}
    yield {"type": "message_stop"}


def delta(index: int, kind: str, **fields: JsonValue) -> JsonValue:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def streamed(message: dict[str, JsonValue]) -> Streamed:
    return Streamed.of_events(*events(message))


async def answered(*answers: Canned, request: CompletionRequest | None = None) -> Completion:
    """What is made of the first answer."""
    return (await watched(*answers, request=request))[0]


async def watched(*answers: Canned, request: CompletionRequest | None = None) -> tuple[Completion, list[Delta]]:
    """What is made of the first answer, and what people who watch saw of it."""
    seen = list[Delta]()

    async def see(delta: Delta) -> None:
        seen.append(delta)

    async with ModelServer(answers) as server, loopback_client() as http:
        model = HttpModel(http, Messages(), server.base_url, KEY, "ANTHROPIC_API_KEY")
        return await model.complete(request or asked(), see), seen


async def failed(*answers: Canned) -> ModelFailure:
    """The failure that the first answer is."""
    with pytest.raises(ModelFailure) as caught:
        await answered(*answers)
    assert KEY not in str(caught.value)
    assert len(str(caught.value)) <= 500
    return caught.value


async def both_ways(message: dict[str, JsonValue]) -> Completion:
    """What is made of a message, which is the same whole and streamed, but for how arguments are spaced."""
    whole, folded = await answered(Response.of(message)), await answered(streamed(message))
    assert (whole.text, whole.opaque, whole.usage) == (folded.text, folded.opaque, folded.usage)
    assert [json.loads(call.arguments or "{}") for call in folded.calls] == [
        json.loads(call.arguments) for call in whole.calls
    ]
    return whole


def recorded(completion: Completion, model: str = "anthropic:claude", first_call: int = 1) -> Message:
    """The reply as a transcript has it, through the JSON of a history."""
    calls = tuple(
        ToolCall(
            call_id=f"call_{number}",
            tool=call.name,
            arguments=json.loads(call.arguments or "{}"),
            provider_call_id=call.provider_call_id,
        )
        for number, call in enumerate(completion.calls, start=first_call)
    )
    stamped = tuple({"from": model, **part} if isinstance(part, dict) else part for part in completion.opaque)
    message = Message(role="assistant", text=completion.text, tool_calls=calls, opaque=stamped)
    return Message.model_validate_json(message.model_dump_json())


def results(message: Message, *texts: str) -> Sequence[Message]:
    """The answers to a turn's calls, "ok" where nothing is said."""
    told = [*texts, *["ok"] * len(message.tool_calls)]
    return [
        Message(role="tool", call_id=call.call_id, text=said)
        for call, said in zip(message.tool_calls, told, strict=False)
    ]
