"""What every Chat Completions API agrees to refuse, checked on the wire: independent of the code under test."""

import json
import re

from pydantic import JsonValue

_ROLES = ("system", "developer", "user", "assistant", "tool")


def request_illegality(request: dict[str, JsonValue]) -> str | None:
    """Why no provider would accept this request body, or None."""
    messages, tools = request.get("messages"), request.get("tools", [{}])
    if not isinstance(request.get("model"), str):
        return "model is missing"
    if not isinstance(messages, list) or not messages:
        return "messages is missing or empty"
    if not isinstance(tools, list) or not tools:
        return "tools is there but empty"
    for tool in tools if "tools" in request else []:
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not re.fullmatch("[A-Za-z0-9_-]{1,64}", name):
            return f"a tool is named {name!r}"
    return messages_illegality(messages)


def messages_illegality(messages: list[JsonValue]) -> str | None:
    """Why no provider would accept these messages, or None: each call of an assistant message is answered by exactly
    one tool message, in order and right after it; ids are unique; arguments are JSON objects; nothing is empty."""
    open_ids: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            return f"{where} has no legal role"
        if message["role"] == "tool":
            if not open_ids or message.get("tool_call_id") != open_ids[0]:
                return f"{where} answers {message.get('tool_call_id')!r}, open are {open_ids}"
            if not isinstance(message.get("content"), str | list):
                return f"{where} has no content"
            open_ids.pop(0)
            continue
        if open_ids:
            return f"{where} comes before the answer to {open_ids[0]!r}"
        if message["role"] != "assistant" or "tool_calls" not in message:
            if not message.get("content"):
                return f"{where} is empty"
            continue
        ids, reason = _call_ids(message["tool_calls"])
        if reason or seen & set(ids) or len(set(ids)) < len(ids):
            return f"{where}: {reason or f'an id of {ids} is not unique'}"
        seen.update(ids)
        open_ids = ids
    return f"{open_ids[0]!r} is not answered" if open_ids else None


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
        if not re.fullmatch("[A-Za-z0-9_-]{1,64}", str(function.get("name"))):
            return ids, f"a tool call names {function.get('name')!r}"
        try:
            arguments = json.loads(str(function.get("arguments")))
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict) or not isinstance(function.get("arguments"), str):
            return ids, f"the arguments of {call['id']!r} are no JSON object"
        ids.append(str(call["id"]))
    return ids, None
