"""Asking a model through `Responses` that talks to a `ModelServer` with canned answers."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pydantic import JsonValue

from activities.providers.http_model import HttpModel
from activities.providers.interface import Completion, CompletionRequest, Delta, ModelFailure
from activities.providers.responses import Responses
from contracts.messages import Message
from contracts.tools import ToolContract
from tests.providers.model_server import Answer, Canned, ModelServer, Response, Streamed
from tests.support.loopback import loopback_client

KEY = "sk-TEST-TOKEN-9"
HELLO = Message(role="user", text="Hello")
REQUEST = CompletionRequest("gpt-5", "Be brief.", (HELLO,), ())
USAGE: JsonValue = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 5},
}


def asked(*messages: Message, tools: tuple[ToolContract, ...] = ()) -> CompletionRequest:
    return replace(REQUEST, messages=messages or (HELLO,), tools=tools)


def message(text: str, **more: JsonValue) -> dict[str, JsonValue]:
    """A message item with one text."""
    part: JsonValue = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part], **more}


def called(arguments: str = "{}", call_id: str = "call_a", **more: JsonValue) -> dict[str, JsonValue]:
    """A function call item of the tool `lookup`."""
    item: dict[str, JsonValue] = {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": "lookup"}
    return {**item, "arguments": arguments, "status": "completed", **more}


def thought(encrypted: str | None = "gAAA", *summaries: str, id: str = "rs_1") -> dict[str, JsonValue]:
    """A reasoning item."""
    summary: list[JsonValue] = [{"type": "summary_text", "text": text} for text in summaries]
    return {"type": "reasoning", "id": id, "summary": summary, "encrypted_content": encrypted, "content": []}


def body(*items: JsonValue, status: str = "completed", **more: JsonValue) -> dict[str, JsonValue]:
    """A response with these items as its output."""
    return {"id": "resp_1", "object": "response", "status": status, "output": [*items], "usage": USAGE, **more}


def replied(*items: JsonValue, status: str = "completed", **more: JsonValue) -> Response:
    """A 200 that holds a response."""
    return Response.of(body(*items, status=status, **more))


def cut_off(*items: JsonValue, reason: str = "max_output_tokens") -> Response:
    """A 200 that holds an incomplete response."""
    return replied(*items, status="incomplete", incomplete_details={"reason": reason})


def text_events(*pieces: str) -> list[JsonValue]:
    """The beginning of a stream: one message, not done yet."""
    deltas: list[JsonValue] = [
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": piece}
        for piece in pieces
    ]
    return [
        {"type": "response.created", "response": {"status": "in_progress", "output": [], "usage": None}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "content": []}},
        *deltas,
    ]


def ending(*items: JsonValue, kind: str = "completed", **more: JsonValue) -> JsonValue:
    """The event that ends a stream."""
    return {"type": f"response.{kind}", "response": body(*items, status=kind, **more)}


async def answered(
    *answers: Canned, request: CompletionRequest = REQUEST, deltas: list[Delta] | None = None
) -> Completion:
    """What the model says to the last of the answers; what is published goes to `deltas`."""
    return await heard(answers, request, [] if deltas is None else deltas)


async def heard(answers: Answer | Sequence[Canned], request: CompletionRequest, deltas: list[Delta]) -> Completion:
    async def publish(delta: Delta) -> None:
        deltas.append(delta)

    # Loading the certificates would take longer than everything else.
    async with ModelServer(answers) as server, loopback_client() as http:
        return await HttpModel(http, Responses(), server.base_url, KEY).complete(request, publish)


async def streamed(*events: JsonValue | str, deltas: list[Delta] | None = None, cut: bool = False) -> Completion:
    """What a stream of these events says."""
    return await answered(Streamed.of_events(*events, cut=cut), deltas=deltas)


async def failed(*answers: Canned) -> ModelFailure:
    """The failure that an answer stands for."""
    with pytest.raises(ModelFailure) as caught:
        await answered(*answers)
    assert KEY not in str(caught.value)
    assert len(str(caught.value)) <= 500
    return caught.value
