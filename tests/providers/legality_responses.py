"""What the Responses API refuses, checked on the wire: independent of the code under test."""

import json
import re
from collections.abc import Callable, Iterator, Sequence

from pydantic import JsonValue

from tests.providers.model_server import Response

Object = dict[str, JsonValue]

_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
_ROLES = ("user", "assistant", "system", "developer")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_PARTS = {"user": ("input_text",), "assistant": ("output_text", "refusal")}
_PARAMETERS = {
    *("model", "input", "instructions", "stream", "store", "include", "tools", "tool_choice", "parallel_tool_calls"),
    *("temperature", "top_p", "max_output_tokens", "reasoning", "text"),
}


def request_illegality(request: Object) -> str | None:
    """Why the API would not accept this request body, or None."""
    if unknown := request.keys() - _PARAMETERS:
        return f"Unknown parameter: {sorted(unknown)}"
    if not isinstance(request.get("model"), str):
        return "model is missing"
    if not isinstance(request.get("instructions"), str):
        return "instructions is no text"
    items = request.get("input")
    if not isinstance(items, list) or not items:
        return "input is missing or empty"
    return (
        _tools_illegality(request)
        or _settings_illegality(request)
        or items_illegality(items, stored=request.get("store") is not False)
    )


def items_illegality(items: Sequence[JsonValue], stored: bool = False) -> str | None:
    """Why the API would not accept these input items, or None: each call is answered exactly once, right after its turn
    and in order; ids are unique; arguments are JSON objects; nothing is empty; no text comes after a call in a turn
    that is only texts and calls; reasoning holds its encrypted content where nothing is stored, has no id there, and
    something of its turn follows it."""
    open_calls: list[str] = []
    seen: set[str] = set()
    thinking = answering = False
    plain = True
    for index, item in enumerate(items):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            return f"{where} is no object"
        kind = item.get("type", "message")
        if kind == "function_call_output":
            if not open_calls or item.get("call_id") != open_calls[0]:
                return f"{where} answers {item.get('call_id')!r}, open are {open_calls}"
            if not isinstance(item.get("output"), str) or thinking:
                return f"{where} has no output, or comes right after reasoning"
            open_calls.pop(0)
            answering = plain = True
            continue
        says_between = kind == "message" and (plain or item.get("role") != "assistant")
        if open_calls and (answering or says_between):
            return f"No tool output found for function call {open_calls[0]}"
        if kind not in ("message", "function_call"):
            plain = False
        elif item.get("role") == "user":
            plain = True
        if kind == "reasoning":
            if reason := _reasoning_illegality(item, stored):
                return f"{where}: {reason}"
            thinking = True
            continue
        if thinking and (kind == "message" and item.get("role") != "assistant"):
            return f"the item before {where} of type 'reasoning' was provided without its required following item"
        thinking = answering = False
        reason = _item_illegality(kind, item, seen)
        if reason:
            return f"{where}: {reason}"
        if kind == "function_call":
            open_calls.append(str(item["call_id"]))
    if open_calls:
        return f"No tool output found for function call {open_calls[0]}"
    return "the last item is reasoning that nothing follows" if thinking else None


def illegality_of_what_follows(responses: Sequence[Response]) -> Callable[[Object], str | None]:
    """As `request_illegality`, from an API that remembers what it said: each turn that is sent back must hold the
    reasoning that came with it, with the same bytes and in the same places among calls and texts."""
    turns = [[*_remembered(_final_items(response))] for response in responses]

    def illegality(request: Object) -> str | None:
        if reason := request_illegality(request):
            return reason
        items = request["input"]
        assert isinstance(items, list)
        sent = [_essence(item) for item in items if isinstance(item, dict) and not _is_told_by_client(item)]
        said = [item for turn in turns for item in turn]
        return None if sent == said[: len(sent)] else f"what the model said came back as {sent}, it was {said}"

    return illegality


def _is_told_by_client(item: Object) -> bool:
    return item.get("role") == "user" or item.get("type") == "function_call_output"


def _final_items(response: Response) -> Iterator[Object]:
    """The items of a response; of a stream, as their own last events have them."""
    text = response.body.decode()
    if text.lstrip().startswith("{"):
        yield from json.loads(text)["output"]
        return
    for line in text.splitlines():
        if line.startswith("data:") and '"response.output_item.done"' in line:
            event = json.loads(line.removeprefix("data:"))
            if event["type"] == "response.output_item.done":
                yield event["item"]


def _remembered(items: Iterator[Object]) -> Iterator[str]:
    held: list[str] = []
    for item in items:
        if item["type"] == "reasoning":
            held += [_essence(item)] if item.get("encrypted_content") else []
            continue
        yield from (*held, _essence(item))
        held = []


def _essence(item: Object) -> str:
    """What must be the same when an item comes back, byte by byte."""
    match item.get("type", "message"):
        case "reasoning":
            kept: Object = {name: item.get(name) for name in ("type", "summary", "encrypted_content")}
        case "function_call":
            kept = {name: item.get(name) for name in ("type", "call_id", "name", "arguments")}
        case "message":
            content = item["content"]
            parts = (
                [part.get("text") for part in content if isinstance(part, dict)]
                if isinstance(content, list)
                else [content]
            )
            kept = {"said": [*parts]}
        case _:
            kept = item
    return json.dumps(kept, ensure_ascii=False, sort_keys=True)


def _item_illegality(kind: JsonValue, item: Object, seen: set[str]) -> str | None:
    match kind:
        case "message":
            return _message_illegality(item)
        case "function_call":
            return _call_illegality(item, seen)
        case "web_search_call":
            return None if isinstance(item.get("action"), dict) and item.get("id") else "a search without action or id"
        case "tool_search_call" | "tool_search_output" if item.get("execution") == "server":
            return None
    return f"Invalid value: {kind!r}"


def _message_illegality(item: Object) -> str | None:
    role, content = str(item.get("role")), item.get("content")
    if role not in _ROLES:
        return f"no role {role!r}"
    if isinstance(content, str):
        return None if content.strip() else "empty content"
    if not isinstance(content, list) or not content:
        return "empty content"
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in _PARTS.get(role, ("input_text",)):
            return f"an illegal part of {role} content: {part!r}"
        if not str(part.get("text") or "").strip():
            return "an empty part"
    return None


def _call_illegality(item: Object, seen: set[str]) -> str | None:
    call_id, name, arguments = item.get("call_id"), item.get("name"), item.get("arguments")
    if not isinstance(call_id, str) or not 1 <= len(call_id) <= 64:
        return f"Invalid 'call_id': {call_id!r}"
    if call_id in seen:
        return f"Duplicate call_id {call_id!r}"
    seen.add(call_id)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"Invalid 'name': {name!r}"
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else None
    except ValueError:
        parsed = None
    return None if isinstance(parsed, dict) else f"the arguments of {call_id!r} are no JSON object"


def _reasoning_illegality(item: Object, stored: bool) -> str | None:
    if not isinstance(item.get("summary"), list):
        return "Missing required parameter: summary"
    if stored:
        return None
    if not item.get("encrypted_content") or "id" in item:
        return f"Item with id {item.get('id')!r} not found. Items are not persisted when `store` is set to false."
    return None


def _tools_illegality(request: Object) -> str | None:
    tools = request.get("tools", [{"type": "web_search"}])
    if not isinstance(tools, list) or not tools:
        return "tools is there but empty"
    names = set[str]()
    for tool in tools:
        if not isinstance(tool, dict) or tool.get("type") not in ("function", "web_search"):
            return f"an illegal tool: {tool!r}"
        if tool["type"] == "function":
            name = tool.get("name")
            if not isinstance(name, str) or not _NAME.fullmatch(name) or name in names:
                return f"a tool is named {name!r}"
            if not isinstance(tool.get("parameters"), dict) or not isinstance(tool.get("strict"), bool):
                return f"tool {name!r} has no parameters, or does not say whether it is strict"
            names.add(name)
    choice = request.get("tool_choice", "auto")
    if isinstance(choice, dict):
        return None if choice.get("type") == "function" and choice.get("name") in names else f"no tool for {choice!r}"
    return None if choice in ("auto", "none", "required") else f"tool_choice is {choice!r}"


def _settings_illegality(request: Object) -> str | None:
    reasoning, text = request.get("reasoning", {}), request.get("text", {"format": {"type": "text"}})
    if not isinstance(reasoning, dict) or reasoning.get("effort", "low") not in _EFFORTS:
        return f"reasoning is {reasoning!r}"
    form = text.get("format") if isinstance(text, dict) else None
    if not isinstance(form, dict) or form.get("type") not in ("text", "json_schema"):
        return f"text is {text!r}"
    if form["type"] == "json_schema":
        schema = form.get("schema")
        if not _NAME.fullmatch(str(form.get("name"))) or not isinstance(schema, dict) or schema.get("type") != "object":
            return f"text.format is {form!r}"
    unreasoning = re.match("gpt-4", str(request["model"]))
    if unreasoning and "reasoning.encrypted_content" in (request.get("include") or []):  # type: ignore[operator]  # JSON
        return "Encrypted content is not supported with this model"
    return None
