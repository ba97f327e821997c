"""OpenAI's Chat Completions, as OpenAI and the many servers that speak its dialect answer it."""

import json
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

import httpx
from pydantic import JsonValue

from activities.providers import failures
from activities.providers.chat_replies import completion, without_secret
from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, CompletionRequest, ModelFailure
from activities.providers.secrecy import Secret
from contracts.messages import Message
from contracts.text import legal_json
from contracts.tools import ToolContract

REPLY_MAX_BYTES = 16 * 1_048_576
# Enough of an error to classify it; the rest of a longer one is not read.
ERROR_MAX_BYTES = 1_048_576
# Seconds. A model may think for minutes before its first byte; what bounds the whole call is the activity's timeout.
TIMEOUT = httpx.Timeout(300.0, connect=10.0)

_OTHER_API = re.compile(r"/(messages|responses|completions|embeddings|models)$")
_NOT_IN_A_NAME = re.compile("[^A-Za-z0-9_-]")


class ChatCompletions:
    """A `ModelProvider` for any server that speaks Chat Completions.

    `base_url` is the address up to and including the version, for example `https://api.openai.com/v1`; see `endpoint`.
    `key_name` is what the setting with the key is called: messages name it instead of the key. `http` may be shared.
    Raises ValueError for an address or a key that cannot be used.
    """

    def __init__(self, http: httpx.AsyncClient, base_url: str, api_key: str, key_name: str = "OPENAI_API_KEY") -> None:
        self._http = http
        self._secret = Secret(_checked_key(api_key, key_name))
        self._endpoint = Endpoint(endpoint(base_url), key_name)

    async def complete(self, request: CompletionRequest) -> Completion:
        """The model's reply to one HTTP request. Raises `ModelFailure`; lets cancellation through."""
        try:
            reply = completion(await self._send(request_body(request)), self._endpoint)
        except ModelFailure as failure:
            raise failures.presentable(failure, self._secret) from None
        # After decoding: in the body, the key may be written in as many ways as JSON has to escape a text.
        return without_secret(reply, self._secret)

    async def _send(self, body: bytes) -> str:
        headers = {"authorization": f"Bearer {self._secret.value}", "content-type": "application/json"}
        address = self._endpoint.address
        try:
            async with self._http.stream(
                "POST", address, content=body, headers=headers, timeout=TIMEOUT, follow_redirects=False
            ) as response:
                if not response.is_success:
                    beginning = await _read(response, ERROR_MAX_BYTES)
                    raise failures.from_response(response.status_code, response.headers, beginning, self._endpoint)
                received = await _read(response, REPLY_MAX_BYTES)
        except httpx.RequestError as error:
            reason = f"{type(error).__name__} {error}".strip()
            raise ModelFailure("ModelUnavailable", f"no reply from {address}: {reason}", retryable=True) from error
        if len(received) > REPLY_MAX_BYTES:
            raise ModelFailure("ModelBehaviour", f"{address} sent a reply of more than {REPLY_MAX_BYTES} bytes")
        return received.decode("utf-8-sig", errors="replace")


def endpoint(base_url: str) -> str:
    """The one address that requests go to: `<base>/chat/completions`, where a base without a path gets `/v1`.

    A base that already ends in `/chat/completions` stays as it is. Raises ValueError with the reason for one that is
    no plain http(s) address of this API.
    """
    text = base_url.strip()
    if not text.isprintable() or " " in text or "\\" in text:
        raise ValueError("the base address holds blanks, backslashes or control characters")
    if "?" in text or "#" in text:
        raise ValueError("the base address must not have a query or a fragment")
    try:
        parts = urlsplit(text)
        legal = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        httpx.URL(text)
    except (ValueError, httpx.InvalidURL):
        legal = False
    if not legal:
        raise ValueError("the base address must look like https://host/v1: a scheme, http or https, and a host")
    if "@" in parts.netloc:
        raise ValueError("the base address must not hold credentials")
    path = re.sub("/+", "/", parts.path).rstrip("/")
    if not path.endswith("/chat/completions"):
        if _OTHER_API.search(path):
            raise ValueError("the base address is the endpoint of another API: leave out its last part")
        path = f"{path or '/v1'}/chat/completions"
    return f"{parts.scheme}://{parts.netloc}{path}"


def request_body(request: CompletionRequest) -> bytes:
    """The request as JSON in UTF-8. Equal transcripts have equal beginnings, which is what prompt caches go by."""
    body: dict[str, JsonValue] = {
        "model": request.model,
        "messages": [{"role": "system", "content": request.instructions}, *_wire_messages(request.messages)],
        "stream": False,
    }
    if request.tools:
        body["tools"] = [_wire_tool(tool) for tool in request.tools]
    return _json(body).encode()


async def _read(response: httpx.Response, max_bytes: int) -> bytes:
    """The body, or somewhat more than its first max_bytes."""
    received = bytearray()
    async for chunk in response.aiter_bytes():
        received += chunk
        if len(received) > max_bytes:
            break
    return bytes(received)


def _checked_key(api_key: str, key_name: str) -> str:
    key = api_key.strip()
    if not key:
        raise ValueError(f"{key_name} is empty")
    if not (key.isascii() and key.isprintable() and key.strip("\\")) or " " in key:
        raise ValueError(f"{key_name} holds characters that cannot be part of a key")
    return key


def _wire_messages(messages: tuple[Message, ...]) -> Iterable[JsonValue]:
    ids = _wire_ids(messages)
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
                    "function": {"name": _wire_name(call.tool), "arguments": _json(call.arguments)},
                }
                for call in message.tool_calls
            ]
        yield wire


def _wire_ids(messages: tuple[Message, ...]) -> dict[str, str]:
    """What each call is called on the wire, by call id. Providers leave their ids out, repeat them between rounds, and
    may take one that the runtime gave to another call."""
    ids: dict[str, str] = {}
    used: set[str] = set()
    for call in (call for message in messages for call in message.tool_calls):
        wanted = call.provider_call_id or ""
        if not wanted or wanted in used:
            wanted = call.call_id
        while wanted in used:
            wanted += "_"
        used.add(wanted)
        ids[call.call_id] = wanted
    return ids


def _wire_name(name: str) -> str:
    # A model may invent a name that the API, when it is sent back, would refuse together with the whole request.
    return _NOT_IN_A_NAME.sub("_", name)[:64] or "unknown"


def _wire_tool(tool: ToolContract) -> JsonValue:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
    }


def _json(value: JsonValue) -> str:
    return json.dumps(legal_json(value), ensure_ascii=False, separators=(",", ":"))
