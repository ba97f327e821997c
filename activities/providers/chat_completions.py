"""OpenAI's Chat Completions, as OpenAI and the many servers that speak its dialect answer it."""

import json
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

import httpx
from pydantic import JsonValue

from activities.providers import failures
from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, CompletionRequest, ModelFailure, RawToolCall
from contracts.messages import Message, Usage
from contracts.text import encodable, legal_json
from contracts.tools import ToolContract

REPLY_MAX_BYTES = 16 * 1_048_576
# Enough of an error to classify it; the rest of a longer one is not read.
ERROR_MAX_BYTES = 1_048_576
# A reply may quote the key. Shorter keys are placeholders of local servers ("ollama") and would garble the reply.
SECRET_MIN_CHARACTERS = 12
# Seconds. A model may think for minutes before its first byte; what bounds the whole call is the activity's timeout.
TIMEOUT = httpx.Timeout(300.0, connect=10.0)

_OTHER_API = re.compile(r"/(messages|responses|completions|embeddings|models)$")
_NOT_IN_A_NAME = re.compile("[^A-Za-z0-9_-]")
# Words for "the output limit was reached": OpenAI's, Mistral's, and what routers pass through.
_CUT_OFF = frozenset({"length", "model_length", "max_tokens", "MAX_TOKENS"})
_TOKENS_MAX = 2**53


class ChatCompletions:
    """A `ModelProvider` for any server that speaks Chat Completions.

    `base_url` is the address up to and including the version, for example `https://api.openai.com/v1`; see `endpoint`.
    `key_name` is what the setting with the key is called: messages name it instead of the key. `http` may be shared.
    Raises ValueError for an address or a key that cannot be used.
    """

    def __init__(self, http: httpx.AsyncClient, base_url: str, api_key: str, key_name: str = "OPENAI_API_KEY") -> None:
        self._http = http
        self._key = _checked_key(api_key, key_name)
        self._endpoint = Endpoint(endpoint(base_url), key_name)

    async def complete(self, request: CompletionRequest) -> Completion:
        """The model's reply to one HTTP request. Raises `ModelFailure`; lets cancellation through."""
        try:
            return completion(await self._send(request_body(request)), self._endpoint)
        except ModelFailure as failure:
            raise failures.presentable(failure, self._key) from None

    async def _send(self, body: bytes) -> str:
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
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
        text = received.decode("utf-8-sig", errors="replace")
        return failures.redact(text, self._key) if len(self._key) >= SECRET_MIN_CHARACTERS else text


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


def completion(body: str, target: Endpoint) -> Completion:
    """What the body of a 200 says. Raises `ModelFailure` if it holds an error, a refusal, or no reply at all."""
    reply = _decoded(body, target)
    choice = _first_choice(reply, target)
    message = _object(choice.get("message"))
    finish_reason = choice.get("finish_reason")
    text, refusal = _text(message.get("content")), _refusal(message)
    calls = tuple(_call(call) for call in _list(message.get("tool_calls")))
    if refusal:
        raise ModelFailure("ModelRefused", f"the model refused: {refusal}")
    if finish_reason == "content_filter" and not text and not calls:
        raise ModelFailure("ModelRefused", f"{target.address}: the reply was withheld by a content filter")
    if finish_reason == "error":
        raise ModelFailure("ModelUnavailable", f"{target.address} broke the reply off with an error", retryable=True)
    return Completion(
        text=text,
        calls=calls,
        finish_reason=encodable(finish_reason) if isinstance(finish_reason, str) else None,
        truncated=finish_reason in _CUT_OFF,
        usage=_usage(_object(reply.get("usage"))),
    )


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
    if not (key.isascii() and key.isprintable()):
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


def _decoded(body: str, target: Endpoint) -> dict[str, JsonValue]:
    text = body.strip()
    if not text:
        raise ModelFailure("ModelUnavailable", f"{target.address} answered 200 with an empty body", retryable=True)
    try:
        reply: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        reply = None
        if text.startswith("{"):
            raise ModelFailure(
                "ModelUnavailable", f"{target.address} answered 200 with broken JSON", retryable=True
            ) from None
    if not isinstance(reply, dict):
        kind = "an HTML page" if text.startswith("<") else "something that is no JSON object"
        raise ModelFailure("ModelBadRequest", f"{target.address} answered 200 with {kind}: check the base address")
    return reply


def _first_choice(reply: dict[str, JsonValue], target: Endpoint) -> dict[str, JsonValue]:
    choices = _list(reply.get("choices"))
    choice = _object(choices[0]) if choices else {}
    error = failures.error_in(reply) or failures.error_in(choice)
    if error:
        raise failures.from_error(error, target)
    if not choice:
        raise ModelFailure("ModelUnavailable", f"{target.address} answered 200 without a reply", retryable=True)
    return choice


def _text(content: JsonValue) -> str:
    if isinstance(content, str):
        return encodable(content)
    parts = (_object(part) for part in _list(content))
    texts = (part.get("text") for part in parts if part.get("type") in ("text", "output_text"))
    return encodable("".join(text for text in texts if isinstance(text, str)))


def _refusal(message: dict[str, JsonValue]) -> str:
    parts = (_object(part) for part in _list(message.get("content")))
    said = [message.get("refusal"), *(part.get("refusal") for part in parts)]
    return " ".join(refusal for refusal in said if isinstance(refusal, str)).strip()


def _call(call: JsonValue) -> RawToolCall:
    """A call as it came. One without a name is kept: the model must hear that it was not understood."""
    fields = _object(call)
    function = _object(fields.get("function"))
    name, arguments, call_id = function.get("name"), function.get("arguments"), fields.get("id")
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = _json(arguments)
    return RawToolCall(
        name=encodable(name) if isinstance(name, str) else "",
        arguments=encodable(arguments),
        provider_call_id=encodable(call_id) if isinstance(call_id, str) and call_id else None,
    )


def _usage(usage: dict[str, JsonValue]) -> Usage:
    input_tokens = _count(usage.get("prompt_tokens"))
    cached = _count(_object(usage.get("prompt_tokens_details")).get("cached_tokens"))
    return Usage(
        input_tokens=input_tokens,
        output_tokens=_count(usage.get("completion_tokens")),
        # Some servers count cached tokens that they leave out of the prompt's.
        cached_input_tokens=min(cached, input_tokens),
        reasoning_tokens=_count(_object(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )


def _count(value: JsonValue) -> int:
    plausible = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _TOKENS_MAX
    return int(value) if plausible and isinstance(value, int | float) else 0


def _object(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _json(value: JsonValue) -> str:
    return json.dumps(legal_json(value), ensure_ascii=False, separators=(",", ":"))
