"""What every Chat Completions API agrees to refuse, checked on the wire: independent of the code under test."""

import json
import re

from pydantic import JsonValue

_ROLES = ("system", "developer", "user", "assistant", "tool")
_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
_TOP_LEVEL = {
    *("model", "messages", "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls", "stop", "seed"),
    *("random_seed", "temperature", "top_p", "max_tokens", "max_completion_tokens", "reasoning_effort"),
    *("response_format", "web_search_options"),
}
_OF_MESSAGE = {
    *("role", "content", "tool_calls", "tool_call_id", "extra_content"),
    *("reasoning_content", "reasoning_details", "reasoning_text", "reasoning_opaque"),
}


def request_illegality(request: dict[str, JsonValue]) -> str | None:
    """Why no provider would accept this request body, or None."""
    messages, tools = request.get("messages"), request.get("tools", [{}])
    if not isinstance(request.get("model"), str):
        return "model is missing"
    if not isinstance(messages, list) or not messages:
        return "messages is missing or empty"
    if not isinstance(tools, list) or not tools:
        return "tools is there but empty"
    if unknown := request.keys() - _TOP_LEVEL:
        return f"unknown parameters: {sorted(unknown)}"
    names: list[str] = []
    for tool in tools if "tools" in request else []:
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in names:
            return f"a tool is named {name!r}"
        names.append(name)
    return _settings_illegality(request, names) or messages_illegality(messages)


def _settings_illegality(request: dict[str, JsonValue], names: list[str]) -> str | None:
    """Why the parameters do not go together, or None."""
    if not names and request.keys() & {"tool_choice", "parallel_tool_calls"}:
        return "tool_choice or parallel_tool_calls without tools"
    choice = request.get("tool_choice", "auto")
    named = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if choice not in ("auto", "none", "required") and not (isinstance(named, dict) and named.get("name") in names):
        return f"tool_choice is {choice!r}"
    if "stream_options" in request and request.get("stream") is not True:
        return "stream_options without stream"
    if "max_tokens" in request and "max_completion_tokens" in request:
        return "max_tokens and max_completion_tokens"
    wanted = request.get("response_format", {"type": "text"})
    schema = wanted.get("json_schema") if isinstance(wanted, dict) and wanted.get("type") == "json_schema" else None
    if wanted != {"type": "text"} and not (isinstance(schema, dict) and {"name", "schema", "strict"} <= schema.keys()):
        return "response_format is no json_schema with a name and a schema"
    return None


def messages_illegality(messages: list[JsonValue]) -> str | None:
    """Why no provider would accept these messages, or None: each call of an assistant message is answered by exactly
    one tool message, in order and right after it; ids are unique; arguments are JSON objects; nothing is empty."""
    open_ids: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            return f"{where} has no legal role"
        if unknown := message.keys() - _OF_MESSAGE:
            return f"{where} has unknown fields: {sorted(unknown)}"
        if message["role"] != "assistant" and message.keys() - {"role", "content", "tool_call_id"}:
            return f"{where} has what only an assistant has"
        if message["role"] == "tool":
            if not open_ids or message.get("tool_call_id") != open_ids[0]:
                return f"{where} answers {message.get('tool_call_id')!r}, open are {open_ids}"
            if not isinstance(message.get("content"), str):
                return f"{where} has no text"
            open_ids.pop(0)
            continue
        if open_ids:
            return f"{where} comes before the answer to {open_ids[0]!r}"
        if message["role"] != "assistant" or "tool_calls" not in message:
            if not _says_something(message.get("content")):
                return f"{where} is empty"
            continue
        if message.get("content") is not None and not _says_something(message["content"]):
            return f"{where} has empty text next to its calls"
        ids, reason = _call_ids(message["tool_calls"])
        if reason or seen & set(ids) or len(set(ids)) < len(ids):
            return f"{where}: {reason or f'an id of {ids} is not unique'}"
        seen.update(ids)
        open_ids = ids
    return f"{open_ids[0]!r} is not answered" if open_ids else None


def _says_something(content: JsonValue) -> bool:
    """A text that is not blank, or a list of parts with no blank text."""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict)]
        texts = [part.get("text") for part in parts if part.get("type") == "text"]
        return len(parts) == len(content) and all(isinstance(text, str) and text.strip() for text in texts)
    return isinstance(content, str) and bool(content.strip())


def _call_ids(calls: JsonValue) -> tuple[list[str], str | None]:
    """The ids of an assistant message's calls, or why they are not legal."""
    ids: list[str] = []
    if not isinstance(calls, list) or not calls:
        return ids, "tool_calls is there but empty"
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict) or call.get("type") != "function":
            return ids, "a tool call is no function"
        if not isinstance(call.get("id"), str) or not call["id"]:
            return ids, "a tool call has no id"
        if not _NAME.fullmatch(str(function.get("name"))):
            return ids, f"a tool call names {function.get('name')!r}"
        try:
            arguments = json.loads(str(function.get("arguments")))
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict) or not isinstance(function.get("arguments"), str):
            return ids, f"the arguments of {call['id']!r} are no JSON object"
        ids.append(str(call["id"]))
    return ids, None
