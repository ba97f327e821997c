"""What a chat model gave besides its text and its calls, kept so that it can go back to it as it came.

A block is `{"fields": {...}}`, fields of the assistant message; `{"call": n, "fields": {...}}`, fields of its call at
index n; or `{"content": {...}}`, a part of its content.
"""

from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from activities.providers.chat_pieces import REASONING_FIELDS, thought
from activities.providers.interface import ModelFailure
from activities.providers.readings import as_list, as_object, as_text
from contracts.text import legal_json

BLOCK_MAX_LEVELS = 64

# What a message may hold besides: reasoning as text; GitHub Copilot's signature of it; OpenRouter's blocks; Gemini's
# signature of a text ("Thought signatures").
_TEXTS = (*REASONING_FIELDS, "reasoning_opaque")
# Gemini's signature of a call.
_OF_CALL = "extra_content"
# A message that a run was given may hold any block. None of them is to change who speaks, or what is called.
_OF_MESSAGE = frozenset({*_TEXTS, "reasoning_details", "extra_content"})
# Kept for people, and not sent: Groq refuses the field for most of its models, no other server asks for it, and what
# OpenRouter says in it is in `reasoning_details`.
_NOT_SENT = frozenset({"reasoning"})
# DeepSeek ("Thinking mode") wants it back where tools were called since the last user message; else it ignores it, and
# older models refuse it. Moonshot's and Z.ai's rules ("Interleaved thinking") are the same.
_SENT_WITH_TOOLS = frozenset({"reasoning_content"})


def opaque_parts(message: dict[str, JsonValue], pieces: Sequence[str | dict[str, JsonValue]]) -> tuple[JsonValue, ...]:
    """All parts of a turn in order, as `Completion.opaque` has them; empty where there is nothing but text and calls.
    `pieces` are the content's texts, and its other parts. Reasoning is only ever what the model gave."""
    calls = as_list(message.get("tool_calls"))
    parts: list[JsonValue] = []
    if fields := _fields(message, bool(calls)):
        parts.append({"block": {"fields": fields}, "reasoning": list(_pointers(fields))})
    for piece in pieces:
        if isinstance(piece, str):
            parts.append({"text": len(piece)})
        else:
            parts.append({"block": {"content": _legal(piece)}, "reasoning": list(_thoughts(piece))})
    for index, call in enumerate(calls):
        parts.append({"call": index})
        if extra := as_object(as_object(call).get(_OF_CALL)):
            parts.append({"block": {"call": index, "fields": {_OF_CALL: _legal(extra)}}, "reasoning": []})
    return tuple(parts) if any("block" in as_object(part) for part in parts) else ()


def sent_fields(fields: dict[str, JsonValue], with_tools: bool) -> dict[str, JsonValue]:
    """Of the fields of a block, those that go back. `with_tools` says whether tools were called since the last user
    message, this turn included."""
    sent = _OF_MESSAGE - (_NOT_SENT if with_tools else _NOT_SENT | _SENT_WITH_TOOLS)
    return {name: value for name, value in fields.items() if name in sent}


def sent_with_call(fields: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Of the fields of a block for a call, those that go back."""
    return {name: value for name, value in fields.items() if name == _OF_CALL}


def _fields(message: dict[str, JsonValue], calls: bool) -> dict[str, JsonValue]:
    texts = ((name, message.get(name)) for name in _TEXTS)
    # A model that thinks before a call may think nothing: DeepSeek wants to read that, too.
    fields: dict[str, JsonValue] = {
        name: as_text(text)
        for name, text in texts
        if isinstance(text, str) and (text or (calls and name in _SENT_WITH_TOOLS))
    }
    if details := as_list(message.get("reasoning_details")):
        fields["reasoning_details"] = _legal(details)
    if extra := as_object(message.get("extra_content")):
        fields["extra_content"] = _legal(extra)
    return fields


def _pointers(fields: dict[str, JsonValue]) -> Iterable[str]:
    """Where the reasoning stands, once: the fields of one message repeat each other."""
    plain = next((name for name in REASONING_FIELDS if fields.get(name)), None)
    if plain:
        yield f"/fields/{plain}"
        return
    for index, entry in enumerate(as_list(fields.get("reasoning_details"))):
        for name in ("text", "summary"):
            if as_text(as_object(entry).get(name)):
                yield f"/fields/reasoning_details/{index}/{name}"


def _thoughts(part: dict[str, JsonValue]) -> Iterable[str]:
    if part.get("type") != "thinking" or not thought(part):
        return
    if isinstance(part.get("thinking"), str):
        yield "/content/thinking"
    for index, piece in enumerate(as_list(part.get("thinking"))):
        if as_text(as_object(piece).get("text")):
            yield f"/content/thinking/{index}/text"


def _legal(value: JsonValue) -> JsonValue:
    if _deeper(value, BLOCK_MAX_LEVELS):
        raise ModelFailure("ModelBehaviour", f"a block of the reply has more than {BLOCK_MAX_LEVELS} levels")
    return legal_json(value)


def _deeper(value: JsonValue, levels: int) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper(item, levels - 1) for item in items)
