"""OpenAI's Chat Completions, as OpenAI and the many servers that speak its dialect answer it."""

import re
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from activities.providers.chat_opaque import sent_fields, sent_with_call
from activities.providers.chat_replies import completion
from activities.providers.chat_servers import OPENAI, ServerRules
from activities.providers.chat_stream import ChatStream
from activities.providers.dialect import Dialect, ReplyStream
from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, CompletionRequest
from activities.providers.legal import BlockPart, CallPart, TextPart, compact_json, legal, parts, wire_ids, wire_name
from activities.providers.structured import fits_strict_mode, instructed
from contracts.messages import Message, ToolCall
from contracts.tools import ToolContract

# OpenAI's guide "Web search", "Chat Completions": only search models have it, and all others refuse the parameter.
_SEARCH_MODEL = re.compile("-search(-|$)")


class ChatCompletions(Dialect):
    """The dialect of `POST /chat/completions`. `rules` says what the server takes: see `chat_servers.rules_for`.

    `web_search` is asked for where the model's name says that it is one of OpenAI's search models, and is left out for
    any other. `tool_choice` and `parallel_tool_calls` go with tools only: APIs refuse them without.
    """

    path = "/chat/completions"

    def __init__(self, rules: ServerRules = OPENAI) -> None:
        self._rules = rules

    def headers(self, key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def body(self, request: CompletionRequest, stream: bool) -> dict[str, JsonValue]:
        system = instructed(request)
        messages = list(_wire_messages(legal(request.messages), self._rules))
        body: dict[str, JsonValue] = {
            "model": request.model,
            "messages": [{"role": "system", "content": system}, *messages] if system.strip() else messages,
            "stream": stream,
        }
        if stream and self._rules.usage_on_request:
            body["stream_options"] = {"include_usage": True}
        return body | self._settings(request) | _tools(request) | _answer(request)

    def reply_stream(self, endpoint: Endpoint) -> ReplyStream:
        return ChatStream(endpoint)

    def completion(self, reply: dict[str, JsonValue], endpoint: Endpoint) -> Completion:
        return completion(reply, endpoint)

    def _settings(self, request: CompletionRequest) -> dict[str, JsonValue]:
        settings = request.settings
        named: dict[str, JsonValue] = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            self._rules.output_limit: settings.max_output_tokens,
            "stop": list(settings.stop) or None,
            self._rules.seed: settings.seed,
            "reasoning_effort": settings.reasoning_effort,
        }
        return {name: value for name, value in named.items() if value is not None}


def _tools(request: CompletionRequest) -> dict[str, JsonValue]:
    if not request.tools:
        return {}
    settings = request.settings
    body: dict[str, JsonValue] = {"tools": [_wire_tool(tool) for tool in request.tools]}
    # What holds without the parameter is not named: servers without a parser for calls refuse it.
    if settings.tool_choice in ("none", "required"):
        body["tool_choice"] = settings.tool_choice
    elif settings.tool_choice != "auto":
        body["tool_choice"] = {"type": "function", "function": {"name": settings.tool_choice}}
    if settings.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = settings.parallel_tool_calls
    return body


def _answer(request: CompletionRequest) -> dict[str, JsonValue]:
    body: dict[str, JsonValue] = {}
    if request.output_schema is not None and request.settings.native_output:
        schema = request.output_schema
        by: JsonValue = {"name": "answer", "schema": schema, "strict": fits_strict_mode(schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": by}
    if request.web_search and _SEARCH_MODEL.search(request.model):
        body["web_search_options"] = {}
    return body


def _wire_messages(messages: tuple[Message, ...], rules: ServerRules) -> Iterable[JsonValue]:
    ids = wire_ids(messages)
    with_tools = False
    for message in messages:
        if message.role == "assistant":
            with_tools = with_tools or bool(message.tool_calls)
            wire = _assistant(message, ids, with_tools)
            # A turn of reasoning only: no API takes it without an answer.
            if wire["content"] is None and "tool_calls" not in wire:
                continue
            if rules.reasoning_with_calls and "tool_calls" in wire:
                wire.setdefault("reasoning_content", "")
            yield wire
        elif message.role == "tool":
            yield {"role": "tool", "content": message.text, "tool_call_id": ids[message.call_id or ""]}
        else:
            with_tools = False
            yield {"role": "user", "content": message.text}


def _assistant(message: Message, ids: Mapping[str, str], with_tools: bool) -> dict[str, JsonValue]:
    content: list[JsonValue] = []
    calls: dict[str, dict[str, JsonValue]] = {}
    texts: list[str] = []
    fields: dict[str, JsonValue] = {}
    for part in parts(message):
        match part:
            case TextPart(text):
                texts.append(text)
                content.append({"type": "text", "text": text})
            case CallPart(call):
                calls[call.call_id] = _wire_call(call, ids)
            case BlockPart({"content": dict(block)}):
                content.append(block)
            case BlockPart({"call": int(index), "fields": dict(more)}):
                for wire_call in list(calls.values())[max(index, 0) : index + 1]:
                    wire_call.update(sent_with_call(more))
            case BlockPart({"fields": dict(more)}):
                fields |= sent_fields(more, with_tools)
    # Some servers refuse empty text next to calls, none refuses null.
    said: JsonValue = "".join(texts) if texts else None
    if len(content) > len(texts) and (texts or calls):
        said = content
    wire: dict[str, JsonValue] = {"role": "assistant", "content": said, **fields}
    if calls:
        wire["tool_calls"] = list(calls.values())
    return wire


def _wire_call(call: ToolCall, ids: Mapping[str, str]) -> dict[str, JsonValue]:
    return {
        "id": ids[call.call_id],
        "type": "function",
        "function": {"name": wire_name(call.tool), "arguments": compact_json(call.arguments)},
    }


def _wire_tool(tool: ToolContract) -> JsonValue:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
    }
