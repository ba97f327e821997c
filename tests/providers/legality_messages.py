"""What Anthropic's Messages API refuses, checked on the wire: independent of the code under test."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from pydantic import JsonValue

from tests.providers.model_server import Response

Block = dict[str, JsonValue]

_FIELDS = {"model", "max_tokens", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "stream"}
_FIELDS |= {"temperature", "top_p", "stop_sequences", "cache_control"}
_THINKING = ("thinking", "redacted_thinking")
_NAME = re.compile("[a-zA-Z0-9_-]{1,64}")


class Illegal(Exception):
    """Why the API would answer 400."""


def request_illegality(request: dict[str, JsonValue]) -> str | None:
    """Why the API would not accept this request body, or None."""
    try:
        _check_fields(request)
        _check_tools(request)
        _check_thinking(request)
        turns = _turns(request.get("messages"))
        _check_order(turns)
        _check_own_tools(turns)
        _check_budgeted_turn(request, turns)
        used = {block.get("type") for _, blocks in turns for block in blocks} & {"tool_use", "tool_result"}
        _demand(not used or bool(request.get("tools")), "calls or results, and no tools are defined")
        marks = json.dumps(request).count('"cache_control"')
        _demand(marks <= 4, f"there are {marks} cache breakpoints, at most 4 may be")
    except Illegal as reason:
        return str(reason)
    return None


class WhatItGave:
    """The server's memory: blocks that it made come back as it made them, and those of a turn that called tools come
    back with the turn, in their place. `responses` are JSON replies of the conversation."""

    def __init__(self, replies: Iterable[Sequence[JsonValue]]) -> None:
        self._replies = [[block for block in reply if isinstance(block, dict)] for reply in replies]

    @classmethod
    def in_bodies(cls, responses: Iterable[Response]) -> "WhatItGave":
        """The memory of a server that gave these whole responses."""
        return cls(json.loads(response.body)["content"] for response in responses)

    def request_illegality(self, request: dict[str, JsonValue]) -> str | None:
        """Why the API that gave these replies would not accept this request, or None."""
        if reason := request_illegality(request):
            return reason
        turns = _turns(request["messages"])
        said = [block for role, blocks in turns if role == "assistant" for block in blocks]
        given = [block for reply in self._replies for block in reply if _is_own(block)]
        for block in said:
            if _is_own(block) and block not in given:
                return f"a block of type {block['type']} is none that this API gave, or was changed"
        for reply in self._replies:
            shape = list(_shape(reply))
            called = {block.get("id") for block in reply if block.get("type") == "tool_use"}
            back = [list(_shape(blocks)) for role, blocks in turns if role == "assistant"]
            if called & {block.get("id") for block in said} and not any(_holds(turn, shape) for turn in back):
                return f"the turn that called {sorted(map(str, called))} did not come back as it was given"
        return None


def _demand(legal: bool, otherwise: str) -> None:
    if not legal:
        raise Illegal(otherwise)


def _check_fields(request: dict[str, JsonValue]) -> None:
    extra = set(request) - _FIELDS
    _demand(not extra, f"{sorted(extra)}: extra inputs are not permitted")
    _demand(isinstance(request.get("model"), str), "model is missing")
    tokens, temperature = request.get("max_tokens"), request.get("temperature", 1)
    _demand(isinstance(tokens, int) and tokens >= 1, "max_tokens is missing")
    _demand(isinstance(temperature, int | float) and 0 <= temperature <= 1, "temperature must be from 0 to 1")
    system = request.get("system", "-")
    texts = [system] if isinstance(system, str) else [_object(block).get("text") for block in _list(system)]
    _demand(bool(texts) and all(_is_text(text) for text in texts), "system holds a blank text")
    for stop in _list(request.get("stop_sequences", [])):
        _demand(_is_text(stop), "a stop sequence is blank")
    output = _object(request.get("output_config", {}))
    _check_closed(_object(_object(output.get("format", {})).get("schema", {})))


def _check_closed(schema: JsonValue) -> None:
    """Objects of a schema for the answer are closed, and nothing in it has a bound."""
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object":
        _demand(schema.get("additionalProperties") is False, "an object of the schema is not closed")
    bounds = set(schema) & {"minimum", "maximum", "minLength", "maxLength", "maxItems", "multipleOf"}
    _demand(not bounds and schema.get("minItems", 0) in (0, 1), f"the schema has bounds: {sorted(bounds)}")
    named = (_object(schema.get(keyword, {})).values() for keyword in ("properties", "$defs"))
    listed = (_list(schema.get(keyword, [])) for keyword in ("anyOf", "allOf"))
    for part in (*(part for parts in (*named, *listed) for part in parts), schema.get("items")):
        _check_closed(part)


def _check_tools(request: dict[str, JsonValue]) -> None:
    names = list[JsonValue]()
    for tool in map(_object, _list(request.get("tools", []))):
        names.append(tool.get("name"))
        _demand(bool(_NAME.fullmatch(str(tool.get("name")))), f"a tool is named {tool.get('name')!r}")
        if "type" not in tool:
            schema = _object(tool.get("input_schema"))
            at_top = {"anyOf", "oneOf", "allOf"} & set(schema)
            _demand(schema.get("type") == "object" and not at_top, "input_schema is no plain object")
    _demand(len(set(map(str, names))) == len(names), "tool names must be unique")
    choice = _object(request.get("tool_choice", {"type": "auto"}))
    kind = choice.get("type")
    _demand(kind in ("auto", "any", "none", "tool"), f"tool_choice is {kind!r}")
    _demand("tool_choice" not in request or bool(names), "tool_choice without tools")
    _demand(kind != "tool" or choice.get("name") in names, "tool_choice names no tool")
    _demand(kind != "none" or set(choice) == {"type"}, "tool_choice none has no more to say")


def _check_thinking(request: dict[str, JsonValue]) -> None:
    thinking = _object(request.get("thinking", {"type": "disabled"}))
    kind = thinking.get("type")
    _demand(kind in ("enabled", "adaptive", "disabled"), f"thinking is {kind!r}")
    if kind == "disabled":
        return
    _demand(request.get("temperature", 1) == 1, "temperature may only be 1 when thinking is on")
    top_p = request.get("top_p", 1)
    _demand(isinstance(top_p, int | float) and top_p >= 0.95, "top_p must be from 0.95 when thinking is on")
    budget, tokens = thinking.get("budget_tokens"), request.get("max_tokens")
    if kind == "adaptive":
        _demand(budget is None, "adaptive thinking has no budget")
        return
    enough = isinstance(budget, int) and isinstance(tokens, int) and 1_024 <= budget < tokens
    _demand(enough, f"budget_tokens {budget!r} must be from 1024 and below max_tokens {tokens!r}")
    choice = _object(request.get("tool_choice", {"type": "auto"}))
    _demand(choice.get("type") in ("auto", "none"), "thinking may not be on when tool_choice forces tool use")


def _turns(messages: JsonValue) -> list[tuple[str, list[Block]]]:
    """The messages, checked block by block, those of one role in a row taken together as the API does."""
    turns: list[tuple[str, list[Block]]] = []
    for index, message in enumerate(map(_object, _list(messages))):
        where, role, content = f"messages[{index}]", message.get("role"), message.get("content")
        _demand(role in ("user", "assistant"), f"{where} has no legal role")
        blocks: JsonValue = [{"type": "text", "text": content}] if isinstance(content, str) else content
        _demand(bool(_list(blocks)), f"{where} is empty")
        checked = [_checked(_object(block), str(role), where) for block in _list(blocks)]
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(checked)
        else:
            turns.append((str(role), checked))
    _demand(bool(turns), "messages is missing or empty")
    return turns


def _checked(block: Block, role: str, where: str) -> Block:
    match block.get("type"):
        case "text":
            _demand(_is_text(block.get("text")), f"{where}: text content blocks must contain non-whitespace text")
        case "tool_use":
            _demand(role == "assistant", f"{where}: tool_use of a user")
            called, name = block.get("id"), block.get("name")
            _demand(bool(re.fullmatch("[a-zA-Z0-9_-]+", str(called))), f"{where}: the id {called!r} is not legal")
            _demand(bool(_NAME.fullmatch(str(name))), f"{where}: the name {name!r} is not legal")
            _demand(isinstance(block.get("input"), dict), f"{where}: tool_use.input must be an object")
        case "tool_result":
            _demand(role == "user", f"{where}: tool_result of an assistant")
            content = block.get("content", "-")
            texts = (
                [content] if isinstance(content, str) else [_object(part).get("text", "-") for part in _list(content)]
            )
            _demand(all(map(_is_text, texts)), f"{where}: a tool result holds a blank text")
        case "thinking":
            signed = isinstance(block.get("thinking"), str) and bool(block.get("signature"))
            _demand(role == "assistant" and signed, f"{where}: thinking without a signature")
            _demand("cache_control" not in block, f"{where}: thinking cannot be a cache breakpoint")
        case "container_upload":
            _demand(role == "user", f"{where}: container_upload of an assistant")
        case str():
            _demand(role == "assistant", f"{where}: a block of the API's own from a user")
            if str(block["type"]).endswith("_tool_use"):
                _demand(isinstance(block.get("input"), dict), f"{where}: input must be an object")
        case _:
            raise Illegal(f"{where}: a block has no type")
    return block


def _check_order(turns: Sequence[tuple[str, list[Block]]]) -> None:
    """Every call is answered exactly once, in the turn right after it and first in it; ids are unique."""
    _demand(turns[0][0] == "user", "the first message must be a user's")
    open_ids: list[JsonValue] = []
    seen: set[JsonValue] = set()
    for role, blocks in turns:
        if role == "user":
            results = [block.get("tool_use_id") for block in blocks if block["type"] == "tool_result"]
            _demand(sorted(map(str, results)) == sorted(map(str, open_ids)), f"open are {open_ids}, answered {results}")
            ahead = blocks[: len(results)]
            _demand(all(block["type"] == "tool_result" for block in ahead), "tool results must come first")
            open_ids = []
        else:
            open_ids = [block.get("id") for block in blocks if block["type"] == "tool_use"]
            _demand(not seen & set(open_ids) and len(set(open_ids)) == len(open_ids), "tool_use ids must be unique")
            seen |= set(open_ids)
    _demand(not open_ids, f"{open_ids} is not answered")
    role, last = turns[-1]
    if role == "assistant":
        paused = any(_is_search(block) for block in last)
        _demand(paused, "this model does not support assistant message prefill")
        text = str(last[-1].get("text", ""))
        _demand(text == text.rstrip(), "final assistant content cannot end with trailing whitespace")


def _check_own_tools(turns: Sequence[tuple[str, list[Block]]]) -> None:
    """A call of the API's own tool has its result later on, unless it is still to come; a result has its call."""
    called: set[JsonValue] = set()
    open_ids: set[JsonValue] = set()
    for role, blocks in turns:
        if role == "user" and any(block["type"] != "tool_result" for block in blocks):
            _demand(not open_ids, f"the API's own tool calls {open_ids} have no result")
        for block in blocks:
            if _is_search(block):
                called.add(block.get("id"))
                open_ids.add(block.get("id"))
            elif _is_own(block) and str(block["type"]).endswith("_tool_result"):
                _demand(block.get("tool_use_id") in called, f"{block.get('tool_use_id')!r} was never called")
                open_ids.discard(block.get("tool_use_id"))


def _check_budgeted_turn(request: dict[str, JsonValue], turns: Sequence[tuple[str, list[Block]]]) -> None:
    """With a budget of thinking, the turn that is gone on with begins with thinking."""
    if _object(request.get("thinking", {})).get("type") != "enabled":
        return
    begun: list[Block] = []
    for role, blocks in reversed(turns):
        if role == "assistant":
            begun = blocks
        elif not any(block["type"] == "tool_result" for block in blocks):
            break
    legal = not begun or begun[0]["type"] in _THINKING
    _demand(legal, "expected thinking or redacted_thinking: a final assistant message must start with a thinking block")


def _shape(blocks: Iterable[Block]) -> Iterator[JsonValue]:
    """What must come back of a turn: calls by their id, the API's own blocks whole. Thinking may go if unsigned."""
    for block in blocks:
        if block.get("type") == "tool_use":
            yield block.get("id")
        elif _is_own(block) and not (block.get("type") == "thinking" and not block.get("signature")):
            yield block


def _holds(turn: Sequence[JsonValue], shape: Sequence[JsonValue]) -> bool:
    return any(turn[start : start + len(shape)] == shape for start in range(len(turn) - len(shape) + 1))


def _is_own(block: Block) -> bool:
    return block.get("type") not in ("text", "tool_use", "tool_result")


def _is_search(block: Block) -> bool:
    return str(block.get("type")).endswith("_tool_use")


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _object(value: JsonValue) -> dict[str, JsonValue]:
    if not isinstance(value, dict):
        raise Illegal(f"an object was expected, not {value!r}")
    return value


def _list(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise Illegal(f"an array was expected, not {value!r}")
    return value
