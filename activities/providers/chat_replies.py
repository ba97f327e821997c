"""What an answer of Chat Completions says, whatever shape a server gave it."""

from pydantic import JsonValue

from activities.providers import failures
from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, ModelFailure, RawToolCall
from activities.providers.readings import argument_text, as_list, as_object, count
from contracts.messages import Usage
from contracts.text import encodable

# Words for "the output limit was reached": OpenAI's, Mistral's, and what routers pass through.
_CUT_OFF = frozenset({"length", "model_length", "max_tokens", "MAX_TOKENS"})


def completion(reply: dict[str, JsonValue], target: Endpoint) -> Completion:
    """What the body of a 200 says. Raises `ModelFailure` if it holds an error, a refusal, or no reply at all."""
    choice = _first_choice(reply, target)
    message = as_object(choice.get("message"))
    stopped = choice.get("finish_reason")
    finish_reason = encodable(stopped) if isinstance(stopped, str) else None
    text, refusal = _text(message.get("content")), _refusal(message)
    calls = tuple(_call(call) for call in as_list(message.get("tool_calls")))
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
        usage=usage_told(reply.get("usage")),
    )


def usage_told(told: JsonValue) -> Usage | None:
    """The tokens that a reply says were used, or None where it says nothing."""
    if not isinstance(told, dict):
        return None
    usage = told
    input_tokens = count(usage.get("prompt_tokens"))
    cached = count(as_object(usage.get("prompt_tokens_details")).get("cached_tokens"))
    return Usage(
        input_tokens=input_tokens,
        output_tokens=count(usage.get("completion_tokens")),
        # Some servers count cached tokens that they leave out of the prompt's.
        cached_input_tokens=min(cached, input_tokens),
        reasoning_tokens=count(as_object(usage.get("completion_tokens_details")).get("reasoning_tokens")),
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


def _text(content: JsonValue) -> str:
    if isinstance(content, str):
        return encodable(content)
    parts = (as_object(part) for part in as_list(content))
    texts = (part.get("text") for part in parts if part.get("type") in ("text", "output_text"))
    return encodable("".join(text for text in texts if isinstance(text, str)))


def _refusal(message: dict[str, JsonValue]) -> str:
    parts = (as_object(part) for part in as_list(message.get("content")))
    said = [message.get("refusal"), *(part.get("refusal") for part in parts)]
    return " ".join(refusal for refusal in said if isinstance(refusal, str)).strip()


def _call(call: JsonValue) -> RawToolCall:
    """A call as it came. One without a name is kept: the model must hear that it was not understood."""
    fields = as_object(call)
    function = as_object(fields.get("function"))
    name, arguments, call_id = function.get("name"), function.get("arguments"), fields.get("id")
    return RawToolCall(
        name=encodable(name) if isinstance(name, str) else "",
        arguments=argument_text(arguments),
        provider_call_id=encodable(call_id) if isinstance(call_id, str) and call_id else None,
    )
