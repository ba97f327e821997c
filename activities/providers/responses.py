"""OpenAI's Responses, as OpenAI and the servers that speak its dialect answer it."""

import re
from collections.abc import Iterable, Iterator, Mapping

from pydantic import JsonValue

from activities.providers.dialect import Dialect, ReplyStream
from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, CompletionRequest
from activities.providers.legal import BlockPart, CallPart, TextPart, compact_json, legal, parts, wire_ids, wire_name
from activities.providers.responses_replies import completion
from activities.providers.responses_stream import ResponsesStream
from activities.providers.structured import fits_strict_mode, instructed
from contracts.messages import Message
from contracts.tools import ToolContract

# API reference, function calls, `call_id`.
CALL_ID_MAX_CHARACTERS = 64

# Models that do not reason refuse a request for encrypted reasoning ("Encrypted content is not supported with this
# model") instead of giving none.
_DOES_NOT_REASON = re.compile(r"gpt-?[34]|-chat\b", re.IGNORECASE)
# Items that the API wants an answer to. They are of tools that are never offered; sent back without an answer, they
# would have each later request refused.
_WANTS_AN_ANSWER = frozenset(
    {
        "apply_patch_call",
        "computer_call",
        "custom_tool_call",
        "local_shell_call",
        "mcp_approval_request",
        "shell_call",
    }
)
# Items that only a request has, or that are written here: as a block, they come from somebody who gave a run its
# messages, and could speak as the system or bring in what another conversation stored.
_NO_BLOCKS = frozenset(
    {
        "apply_patch_call_output",
        "computer_call_output",
        "custom_tool_call_output",
        "function_call",
        "function_call_output",
        "item_reference",
        "local_shell_call_output",
        "mcp_approval_response",
        "message",
    }
)


class Responses(Dialect):
    """The dialect of `POST /responses`, with nothing stored at the API: each request holds the whole conversation.

    The API has no stop sequences and no seed: those settings are left out. `reasoning_effort` asks for summaries of the
    reasoning as well.
    """

    path = "/responses"

    def headers(self, key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def body(self, request: CompletionRequest, stream: bool) -> dict[str, JsonValue]:
        return {
            "model": request.model,
            "instructions": instructed(request),
            "input": [*_input(legal(request.messages))],
            "stream": stream,
            "store": False,
            **_tools(request),
            **_settings(request),
            **_output(request),
        }

    def reply_stream(self, endpoint: Endpoint) -> ReplyStream:
        return ResponsesStream(endpoint)

    def completion(self, reply: dict[str, JsonValue], endpoint: Endpoint) -> Completion:
        return completion(reply, endpoint)


def _input(messages: tuple[Message, ...]) -> Iterable[JsonValue]:
    ids = wire_ids(messages, max_length=CALL_ID_MAX_CHARACTERS)
    for message in messages:
        match message.role:
            case "user":
                yield {"role": "user", "content": message.text}
            case "tool":
                call_id = ids[message.call_id or ""]
                yield {"type": "function_call_output", "call_id": call_id, "output": message.text}
            case "assistant":
                yield from _turn(message, ids)


def _turn(message: Message, ids: Mapping[str, str]) -> list[dict[str, JsonValue]]:
    items: list[dict[str, JsonValue]] = []
    for part in parts(message):
        match part:
            case TextPart():
                items.append({"role": "assistant", "content": part.text})
            case CallPart():
                call = part.call
                name, arguments = wire_name(call.tool), compact_json(call.arguments)
                item: dict[str, JsonValue] = {"type": "function_call", "call_id": ids[call.call_id]}
                items.append({**item, "name": name, "arguments": arguments})
            case BlockPart():
                items += _returned(part.block)
    # The API refuses reasoning that nothing follows, as a reply has that was cut off while it thought.
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    if all(item.get("type") in (None, "function_call") for item in items):
        # Some servers refuse a text between a call and its answer. Where there are items of the API's own, their places
        # count for more.
        items.sort(key=lambda item: item.get("type") == "function_call")
    return items


def _returned(block: dict[str, JsonValue]) -> Iterator[dict[str, JsonValue]]:
    """An item of a reply as it may go back where nothing is stored, if it may.

    Of reasoning, that is what the encrypted content stands for (guide "Reasoning", encrypted reasoning items): without
    it there is only an id that the API does not know. An id next to it is looked up in vain, or refused as one that
    repeats. What a server's own tools did goes back as it is.
    """
    kind = block.get("type")
    if kind in _NO_BLOCKS or "role" in block:
        return
    if kind == "reasoning":
        if block.get("encrypted_content"):
            left_out = {"id", "status"} if block.get("content") else {"id", "status", "content"}
            yield {name: value for name, value in block.items() if name not in left_out}
    elif isinstance(kind, str) and kind not in _WANTS_AN_ANSWER and block.get("execution") != "client":
        yield block


def _tools(request: CompletionRequest) -> dict[str, JsonValue]:
    tools: list[JsonValue] = [_tool(tool) for tool in request.tools]
    if request.web_search:
        tools.append({"type": "web_search"})
    if not tools:
        return {}
    told: dict[str, JsonValue] = {"tools": tools}
    match request.settings.tool_choice:
        case "auto":
            pass
        case "none" | "required" as choice:
            told["tool_choice"] = choice
        case name:
            told["tool_choice"] = {"type": "function", "name": wire_name(name)}
    if request.settings.parallel_tool_calls is not None:
        told["parallel_tool_calls"] = request.settings.parallel_tool_calls
    return told


def _tool(tool: ToolContract) -> JsonValue:
    return {
        "type": "function",
        "name": wire_name(tool.name),
        "description": tool.description,
        "parameters": tool.input_schema,
        # The API's default is a strict schema, which few are.
        "strict": False,
    }


def _settings(request: CompletionRequest) -> dict[str, JsonValue]:
    settings = request.settings
    told: dict[str, JsonValue] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_output_tokens": settings.max_output_tokens,
    }
    if settings.reasoning_effort:
        told["reasoning"] = {"effort": settings.reasoning_effort, "summary": "auto"}
    if settings.reasoning_effort or not _DOES_NOT_REASON.search(request.model):
        told["include"] = ["reasoning.encrypted_content"]
    return {name: value for name, value in told.items() if value is not None}


def _output(request: CompletionRequest) -> dict[str, JsonValue]:
    schema = request.output_schema
    if schema is None or not request.settings.native_output:
        return {}
    output: JsonValue = {"type": "json_schema", "name": "answer", "schema": schema, "strict": fits_strict_mode(schema)}
    return {"text": {"format": output}}
