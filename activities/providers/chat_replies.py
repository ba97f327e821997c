"""What an answer of Chat Completions says, whatever shape a server gave it."""

import json
from dataclasses import replace

from pydantic import JsonValue

from activities.providers import failures
from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, ModelFailure, RawToolCall
from activities.providers.secrecy import Secret
from contracts.messages import Usage
from contracts.text import encodable

# Words for "the output limit was reached": OpenAI's, Mistral's, and what routers pass through.
_CUT_OFF = frozenset({"length", "model_length", "max_tokens", "MAX_TOKENS"})
_TOKENS_MAX = 2**53


def completion(body: str, target: Endpoint) -> Completion:
    """What the body of a 200 says. Raises `ModelFailure` if it holds an error, a refusal, or no reply at all."""
    reply = _decoded(body, target)
    choice = _first_choice(reply, target)
    message = _object(choice.get("message"))
    stopped = choice.get("finish_reason")
    finish_reason = encodable(stopped) if isinstance(stopped, str) else None
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
        finish_reason=finish_reason,
        truncated=finish_reason in _CUT_OFF,
        usage=_usage(_object(reply.get("usage"))),
    )


def without_secret(reply: Completion, secret: Secret) -> Completion:
    """The reply without the key in any of its texts, the arguments' own strings included."""
    hidden = secret.hidden_in_reply
    calls = (
        RawToolCall(
            name=hidden(call.name),
            arguments=hidden(call.arguments),
            provider_call_id=None if call.provider_call_id is None else hidden(call.provider_call_id),
        )
        for call in reply.calls
    )
    finish_reason = None if reply.finish_reason is None else hidden(reply.finish_reason)
    return replace(reply, text=hidden(reply.text), calls=tuple(calls), finish_reason=finish_reason)


def _decoded(body: str, target: Endpoint) -> dict[str, JsonValue]:
    text = body.strip()
    if not text:
        raise ModelFailure("ModelUnavailable", f"{target.address} answered 200 with an empty body", retryable=True)
    if not text.startswith("{"):
        kind = "an HTML page" if text.startswith("<") else "something that is no JSON object"
        raise ModelFailure("ModelBadRequest", f"{target.address} answered 200 with {kind}: check the base address")
    try:
        reply: JsonValue = json.loads(text)
    except json.JSONDecodeError:
        raise ModelFailure(
            "ModelUnavailable", f"{target.address} answered 200 with broken JSON", retryable=True
        ) from None
    # What is whole but beyond this machine was paid for, and would come again.
    except RecursionError:
        raise ModelFailure("ModelBehaviour", "the reply is nested too deeply to be read") from None
    except ValueError as error:
        raise ModelFailure("ModelBehaviour", f"the reply cannot be read: {error}") from None
    return _object(reply)


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
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else _argument_text(arguments)
    return RawToolCall(
        name=encodable(name) if isinstance(name, str) else "",
        arguments=encodable(arguments),
        provider_call_id=encodable(call_id) if isinstance(call_id, str) and call_id else None,
    )


def _argument_text(arguments: JsonValue) -> str:
    """Arguments that came as JSON, as the text they should have been, illegal numbers included: the door refuses them
    as it does in a text."""
    try:
        return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise ModelFailure("ModelBehaviour", "a tool call's arguments are nested too deeply to be read") from None


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
