"""What every model API wants of a conversation that it is sent, and what is the same in all of them."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.messages import Message, ToolCall
from contracts.text import legal_json

NO_ANSWER = '{"ok":false,"error":{"category":"internal","code":"","message":"no answer is recorded","retryable":false}}'

_NOT_IN_A_NAME = re.compile("[^A-Za-z0-9_-]")


@dataclass(frozen=True)
class TextPart:
    """A piece of an assistant turn's text; never blank."""

    text: str


@dataclass(frozen=True)
class CallPart:
    """One tool call of an assistant turn."""

    call: ToolCall


@dataclass(frozen=True)
class BlockPart:
    """A block of the API's own, to go back unchanged and in its place."""

    block: dict[str, JsonValue]


Part = TextPart | CallPart | BlockPart


def legal(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The conversation as any API takes it: each call answered exactly once, in order and right after its turn; no
    answer without a call, no turn without anything in it.

    What a run records is legal already; what somebody gave a run to start with is checked there. This is the last look
    before the money is spent, and changes nothing in what is legal.
    """
    found: list[Message] = []
    pending = list(messages)
    position = 0
    while position < len(pending):
        message = pending[position]
        position += 1
        if message.role == "tool" or not (message.text.strip() or message.tool_calls or message.opaque):
            continue
        found.append(message)
        if not message.tool_calls:
            continue
        answers: dict[str, Message] = {}
        while position < len(pending) and pending[position].role == "tool":
            answers.setdefault(pending[position].call_id or "", pending[position])
            position += 1
        found += [answers.get(call.call_id) or _unanswered(call) for call in message.tool_calls]
    return tuple(found)


def parts(message: Message) -> Iterator[Part]:
    """An assistant turn in the order in which it was given: all of its text, and each of its calls once, whatever
    `opaque` says. Blank pieces of text are left out: no API takes them."""
    written = 0
    calls = dict(enumerate(message.tool_calls))
    for entry in message.opaque:
        match entry:
            case {"text": int(length)}:
                piece = message.text[written : written + max(0, length)]
                written += len(piece)
                if piece.strip():
                    yield TextPart(piece)
            case {"call": int(index)} if index in calls:
                yield CallPart(calls.pop(index))
            case {"block": dict(block)}:
                yield BlockPart(block)
    if message.text[written:].strip():
        yield TextPart(message.text[written:])
    yield from (CallPart(call) for call in calls.values())


def wire_ids(messages: Sequence[Message], legal_id: str = r"\S+", max_length: int = 1_000) -> dict[str, str]:
    """What each call is called on the wire, by call id: the API's own id where it gave a legal one, else ours.
    Providers leave their ids out, repeat them between rounds, and may take one that the runtime gave to another call.
    """
    ids: dict[str, str] = {}
    used: set[str] = set()
    for call in (call for message in messages for call in message.tool_calls):
        wanted = call.provider_call_id or ""
        if wanted in used or len(wanted) > max_length or not re.fullmatch(legal_id, wanted):
            wanted = call.call_id
        # In messages that a run was given, ours may be anything.
        if len(wanted) > max_length or not re.fullmatch(legal_id, wanted):
            wanted = _NOT_IN_A_NAME.sub("_", wanted)[:64] or "call"
        while wanted in used:
            wanted += "_"
        used.add(wanted)
        ids[call.call_id] = wanted
    return ids


def wire_name(name: str) -> str:
    """A tool's name as every API takes it. A model may invent one that the API, when it is sent back, would refuse
    together with the whole request."""
    return _NOT_IN_A_NAME.sub("_", name)[:64] or "unknown"


def compact_json(value: JsonValue) -> str:
    """The value as JSON that every server can read: lone surrogates, NaN and infinities made legal."""
    return json.dumps(legal_json(value), ensure_ascii=False, separators=(",", ":"))


def _unanswered(call: ToolCall) -> Message:
    return Message(role="tool", call_id=call.call_id, text=NO_ANSWER, ok=False)
