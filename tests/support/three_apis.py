"""Providers that play replies of each of the three APIs, whole or streamed, and refuse what the API would refuse."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.dialect import Dialect
from activities.providers.http_model import HttpModel
from activities.providers.messages import Messages
from activities.providers.responses import Responses
from contracts.agents import AgentSpec
from contracts.tools import ToolContract
from tests.providers import asking_messages, asking_responses, chat_chunks
from tests.providers.legality import request_illegality as chat_illegality
from tests.providers.legality_messages import request_illegality as messages_illegality
from tests.providers.legality_responses import request_illegality as responses_illegality
from tests.providers.model_server import (
    Illegality,
    ModelServer,
    RecordedConversation,
    Response,
    Streamed,
    chat_reply,
)
from tests.support.agents import scripted_agent
from tests.support.harness import Handle, Harness, attempts, histories
from tests.support.loopback import loopback_client

APIS = ("chat", "responses", "messages")
KEY = "TEST-TOKEN-9"

DIALECTS: dict[str, type[ChatCompletions | Responses | Messages]] = {
    "chat": ChatCompletions,
    "responses": Responses,
    "messages": Messages,
}
RULES: dict[str, Illegality] = {
    "chat": chat_illegality,
    "responses": responses_illegality,
    "messages": messages_illegality,
}
# What each API says of a reply that ended of itself, that calls tools, and that its limit cut off.
LABELS = {
    "chat": {"stop": "stop", "calls": "tool_calls", "length": "length"},
    "responses": {"stop": "completed", "calls": "completed", "length": "incomplete"},
    "messages": {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens"},
}


@dataclass(frozen=True)
class Call:
    """A call as a model writes it."""

    tool: str
    arguments: str
    id: str = "call_1"


def said(
    api: str,
    *calls: Call,
    text: str | None = None,
    label: str | None = "stop",
    output: int = 8,
    stream: bool = False,
) -> Response:
    """A reply of the API. `label` is one of LABELS or sent as it is; `output` is what it says it has written."""
    reason = LABELS[api].get(label, label) if label is not None else None
    if api == "messages":
        return _messages_said(calls, text, reason, output, stream)
    if api == "responses":
        return _responses_said(calls, text, reason, output, stream)
    message: dict[str, JsonValue] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": call.arguments}}
            for call in calls
        ]
    usage: JsonValue = {"prompt_tokens": 10, "completion_tokens": output, "total_tokens": 10 + output}
    whole = chat_reply(message, reason, usage=usage)
    return chat_chunks.streamed(whole) if stream else whole


def _responses_said(calls: Sequence[Call], text: str | None, status: str | None, output: int, stream: bool) -> Response:
    items: list[JsonValue] = [] if text is None else [asking_responses.message(text)]
    for call in calls:
        items.append(asking_responses.called(call.arguments, call.id, name=call.tool))
    details: JsonValue = {"reason": "max_output_tokens"} if status == "incomplete" else None
    response: dict[str, JsonValue] = {
        **asking_responses.body(*items),
        "status": status,
        "incomplete_details": details,
        "usage": {"input_tokens": 10, "output_tokens": output},
    }
    if not stream:
        return Response.of(response)
    kind = "incomplete" if status == "incomplete" else "completed"
    events: list[JsonValue] = [{"type": "response.created", "response": {"status": "in_progress", "output": []}}]
    for index, item in enumerate(items):
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return Streamed.of_events(*events, {"type": f"response.{kind}", "response": response})


def _messages_said(calls: Sequence[Call], text: str | None, reason: str | None, output: int, stream: bool) -> Response:
    usage: JsonValue = {"input_tokens": 10, "output_tokens": output}
    content: list[JsonValue] = [] if text is None else [asking_messages.text(text)]
    if not stream:
        # Whole, the API sends an object; what is none only a gateway sends, as the text it was given.
        content += [_use(call, _object(call.arguments)) for call in calls]
        return Response.of(asking_messages.reply(*content, stop_reason=reason, usage=usage))
    message = asking_messages.reply(*content, stop_reason=reason, usage=usage)
    *begun, last, stop = asking_messages.events(message)
    for index, call in enumerate(calls, start=len(content)):
        begun.append({"type": "content_block_start", "index": index, "content_block": _use(call, {})})
        half = len(call.arguments) // 2
        for piece in (call.arguments[:half], call.arguments[half:]):
            begun.append(asking_messages.delta(index, "input_json_delta", partial_json=piece))
        begun.append({"type": "content_block_stop", "index": index})
    return Streamed.of_events(*begun, last, stop)


def _use(call: Call, arguments: JsonValue) -> JsonValue:
    return {"type": "tool_use", "id": call.id, "name": call.tool, "input": arguments}


def _object(arguments: str) -> JsonValue:
    try:
        found: JsonValue = json.loads(arguments)
    except ValueError:
        return arguments
    return found


def items_of(api: str, request: dict[str, JsonValue] | None) -> list[dict[str, Any]]:
    """The messages of a request, flat: of Anthropic's, each block is one."""
    assert request is not None
    messages: Any = request["input" if api == "responses" else "messages"]
    if api != "messages":
        return list(messages)
    return [{"role": message["role"], **block} for message in messages for block in message["content"]]


def results_in(api: str, request: dict[str, JsonValue] | None) -> list[tuple[str, str]]:
    """The answers to calls in a request: the API's own id of the call, and the text."""
    items = items_of(api, request)
    if api == "chat":
        return [(item["tool_call_id"], item["content"]) for item in items if item["role"] == "tool"]
    if api == "responses":
        return [(item["call_id"], item["output"]) for item in items if item.get("type") == "function_call_output"]
    return [
        (item["tool_use_id"], _text(item.get("content", ""))) for item in items if item.get("type") == "tool_result"
    ]


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def calls_in(api: str, request: dict[str, JsonValue] | None) -> dict[str, JsonValue]:
    """The calls in a request: the API's own id, and the arguments as an object."""
    items = items_of(api, request)
    if api == "chat":
        calls = [call for item in items for call in item.get("tool_calls", [])]
        return {call["id"]: json.loads(call["function"]["arguments"]) for call in calls}
    if api == "responses":
        return {i["call_id"]: json.loads(i["arguments"]) for i in items if i.get("type") == "function_call"}
    return {item["id"]: item["input"] for item in items if item.get("type") == "tool_use"}


def spec(api: str, *tools: ToolContract, **more: object) -> AgentSpec:
    """The agent `tester` with a model that `serving` serves."""
    model = "served:claude-sonnet-4-5" if api == "messages" else "served:gpt-4.1"
    return scripted_agent(*tools).model_copy(update={"model": model, **more})


@asynccontextmanager
async def serving(
    harness: Harness, api: str, agent: AgentSpec, *replies: Response, rules: Illegality | None = None
) -> AsyncIterator[ModelServer]:
    """A provider that plays the replies, and refuses what the API would refuse; in the end all were played, and nothing
    was refused."""
    played = RecordedConversation(replies, rules or RULES[api])
    async with ModelServer(played) as server, loopback_client() as http:
        dialect: Dialect = DIALECTS[api]()
        async with harness.worker(agent, providers={"served": HttpModel(http, dialect, server.base_url, KEY)}):
            yield server
    assert (played.refused, played.left) == ([], 0)


async def model_attempts(harness: Harness, run: Handle) -> list[int]:
    """How many attempts each model call of a run of one execution took."""
    (history,) = await histories(harness.client, run.id)
    return list(attempts(history, "call_model"))
