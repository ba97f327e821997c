"""Streams of Chat Completions, made from pieces or cut from a whole reply."""

import json
import random

from pydantic import JsonValue

from activities.providers.readings import as_list, as_object
from tests.providers.model_server import Response, Streamed


def chunk(delta: JsonValue, finish_reason: str | None = None, **more: JsonValue) -> dict[str, JsonValue]:
    """One chunk with the first choice."""
    choice: JsonValue = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c-1", "object": "chat.completion.chunk", "choices": [choice], **more}


def call_piece(
    index: int | None = None, id: str | None = None, name: str | None = None, arguments: JsonValue = None
) -> JsonValue:
    """A delta with a piece of one call; what is None is not in it."""
    told: dict[str, JsonValue] = {"name": name, "arguments": arguments}
    function: JsonValue = {key: value for key, value in told.items() if value is not None}
    piece: dict[str, JsonValue] = {"index": index, "id": id, "function": function}
    return {"tool_calls": [{key: value for key, value in piece.items() if value is not None}]}


def streamed(reply: Response, dice: random.Random | None = None) -> Streamed:
    """The stream that the API would have sent instead of this reply, in pieces of random sizes, or in few pieces."""
    body = as_object(json.loads(reply.body))
    choice = as_object(as_list(body["choices"])[0])
    message = as_object(choice["message"])
    deltas: list[JsonValue] = [{"role": "assistant"}]
    for name, value in message.items():
        if name == "tool_calls":
            for index, call in enumerate(as_list(value)):
                deltas += _call_deltas(as_object(call), index, dice)
        elif name in ("content", "refusal", "reasoning", "reasoning_content") and isinstance(value, str):
            deltas += [{name: piece} for piece in _pieces(value, dice)]
        elif name not in ("role", "function_call"):
            deltas.append({name: value})
    chunks = [chunk(delta) for delta in deltas]
    last = choice.get("finish_reason")
    chunks.append(chunk({}, last if isinstance(last, str) else None))
    if body.get("usage"):
        chunks.append({"choices": [], "usage": body["usage"]})
    return Streamed.of_events(*chunks, "[DONE]")


def _call_deltas(call: dict[str, JsonValue], index: int, dice: random.Random | None) -> list[JsonValue]:
    function = as_object(call.get("function"))
    pieces = _pieces(str(function.get("arguments") or ""), dice)
    first: JsonValue = {**call, "index": index, "function": {**function, "arguments": pieces[0]}}
    more: list[JsonValue] = [{"index": index, "function": {"arguments": piece}} for piece in pieces[1:]]
    return [{"tool_calls": [piece]} for piece in [first, *more]]


def _pieces(text: str, dice: random.Random | None) -> list[str]:
    pieces: list[str] = []
    while text:
        size = dice.randint(1, max(1, len(text) // 3)) if dice else max(1, len(text) // 2)
        pieces.append(text[:size])
        text = text[size:]
    return pieces or [""]
