"""What an answer of Chat Completions says, whatever shape a server gave it."""

from collections.abc import Sequence

from pydantic import JsonValue

from activities.providers import failures
from activities.providers.chat_opaque import opaque_parts
from activities.providers.chat_usage import usage_told
from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, ModelFailure, RawToolCall
from activities.providers.readings import argument_text, as_list, as_object, as_text, objects
from contracts.messages import Usage
from contracts.text import encodable

# Words for "the output limit was reached": OpenAI's, Mistral's, and what routers pass through.
_CUT_OFF = frozenset({"length", "model_length", "max_tokens", "MAX_TOKENS"})
_TEXT_TYPES = ("text", "output_text")


def completion(reply: dict[str, JsonValue], target: Endpoint) -> Completion:
    """What the body of a 200 says, of its first choice. Raises `ModelFailure`, with the usage, if it holds an error, a
    refusal, or no reply at all.

    A text that a content filter cut off is a reply all the same; a call next to it is not, since nobody knows whether
    it is whole. The legacy `function_call` is no call: it answers to `functions`, which are never sent.
    """
    usage = usage_told(reply.get("usage"))
    try:
        return _completion(reply, usage, target)
    except ModelFailure as failure:
        failure.usage = failure.usage or usage
        raise


def _completion(reply: dict[str, JsonValue], usage: Usage | None, target: Endpoint) -> Completion:
    choice = _first_choice(reply, target)
    message = as_object(choice.get("message"))
    stopped = choice.get("finish_reason")
    finish_reason = encodable(stopped) if isinstance(stopped, str) else None
    pieces = _pieces(message.get("content"))
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    calls = tuple(_call(call) for call in as_list(message.get("tool_calls")))
    if refusal := _refusal(message):
        raise ModelFailure("ModelRefused", f"the model refused: {refusal}")
    if finish_reason == "content_filter" and (calls or not text):
        raise ModelFailure("ModelRefused", f"{target.address}: the reply was withheld by a content filter")
    if finish_reason == "error":
        raise ModelFailure("ModelUnavailable", f"{target.address} broke the reply off with an error", retryable=True)
    return Completion(
        text=text,
        calls=calls,
        finish_reason=finish_reason,
        truncated=finish_reason in _CUT_OFF,
        usage=usage,
        opaque=opaque_parts(message, pieces),
    )


def _first_choice(reply: dict[str, JsonValue], target: Endpoint) -> dict[str, JsonValue]:
    choices = as_list(reply.get("choices"))
    choice = as_object(choices[0]) if choices else {}
    error = failures.error_in(reply) or failures.error_in(choice)
    if error:
        raise failures.from_error(error, target)
    if not choice:
        raise ModelFailure("ModelUnavailable", f"{target.address} answered 200 without a reply", retryable=True)
    return choice


def _pieces(content: JsonValue) -> Sequence[str | dict[str, JsonValue]]:
    """The texts of a content, and its other parts, such as Mistral's thinking, in order."""
    if isinstance(content, str):
        return [encodable(content)] if content else []
    pieces: list[str | dict[str, JsonValue]] = []
    for part in objects(content):
        if part.get("type") not in _TEXT_TYPES:
            pieces.append(part)
        elif text := as_text(part.get("text")):
            pieces.append(text)
    return pieces


def _refusal(message: dict[str, JsonValue]) -> str:
    said = [message.get("refusal"), *(part.get("refusal") for part in objects(message.get("content")))]
    return " ".join(as_text(refusal) for refusal in said if isinstance(refusal, str)).strip()


def _call(call: JsonValue) -> RawToolCall:
    """A call as it came. One without a name is kept: the model must hear that it was not understood."""
    fields = as_object(call)
    function = as_object(fields.get("function"))
    return RawToolCall(
        name=as_text(function.get("name")),
        arguments=argument_text(function.get("arguments")),
        provider_call_id=as_text(fields.get("id")) or None,
    )
