"""OpenAI's Chat Completions, as OpenAI and the many servers that speak its dialect answer it."""

from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from activities.providers.chat_replies import completion
from activities.providers.chat_stream import ChatStream
from activities.providers.dialect import Dialect, ReplyStream
from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, CompletionRequest
from activities.providers.legal import compact_json, legal, wire_ids, wire_name
from contracts.messages import Message
from contracts.tools import ToolContract


class ChatCompletions(Dialect):
    """The dialect of `POST /chat/completions`."""

    path = "/chat/completions"

    def headers(self, key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def body(self, request: CompletionRequest, stream: bool) -> dict[str, JsonValue]:
        body: dict[str, JsonValue] = {
            "model": request.model,
            "messages": [
                {"role": "system", "content": request.instructions},
                *_wire_messages(legal(request.messages)),
            ],
            "stream": stream,
        }
        if request.tools:
            body["tools"] = [_wire_tool(tool) for tool in request.tools]
        return body

    def reply_stream(self, endpoint: Endpoint) -> ReplyStream:
        return ChatStream(endpoint)

    def completion(self, reply: dict[str, JsonValue], endpoint: Endpoint) -> Completion:
        return completion(reply, endpoint)


def _wire_messages(messages: tuple[Message, ...]) -> Iterable[JsonValue]:
    ids = wire_ids(messages)
    for message in messages:
        wire: dict[str, JsonValue] = {"role": message.role, "content": message.text}
        if message.role == "tool":
            wire["tool_call_id"] = ids[message.call_id or ""]
        if message.tool_calls:
            # Some servers refuse empty text next to calls, none refuses null.
            wire["content"] = message.text if message.text.strip() else None
            wire["tool_calls"] = [
                {
                    "id": ids[call.call_id],
                    "type": "function",
                    "function": {"name": wire_name(call.tool), "arguments": compact_json(call.arguments)},
                }
                for call in message.tool_calls
            ]
        yield wire


def _wire_tool(tool: ToolContract) -> JsonValue:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
    }
