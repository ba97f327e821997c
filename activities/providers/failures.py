"""What went wrong with a request to a model API, classified once: from a status and a body, or from an error that
arrived inside a 200."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from activities.providers.delays import retry_after
from activities.providers.interface import ModelFailure
from activities.providers.secrecy import Secret
from activities.visible import visible
from contracts.text import cut, encodable

MESSAGE_MAX_CHARACTERS = 500
# What went wrong is told at the beginning. Some of the patterns below take the square of what they search.
SEARCHED_CHARACTERS = 4_096

# 498 is Groq's own, for a service tier without capacity left (Groq, "API error codes").
_RETRYABLE_BELOW_500 = frozenset({408, 409, 425, 429, 498})
_PAYMENT_REQUIRED = 402
_NOT_FOUND = 404
_FILTERED = frozenset({"content_filter", "responsibleaipolicyviolation", "content_policy_violation"})
# OpenAI ("Error codes", invalid_prompt), Anthropic, OpenRouter ("Moderation errors"), xAI and DeepSeek tell it in words
# only, with the status of a bad request or of a refused key.
_FILTERED_WORDS = re.compile(
    r"(input|prompt|content|request|output|message)s? (was|were|is|has been) flagged|requires moderation"
    r"|content (management|filtering) policy|violates? (our )?(usage|content) (polic|guideline)|content exists risk",
    re.IGNORECASE,
)
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error"})
# The last alternative is OpenAI's 429 for one request above the whole limit of a minute: waiting cannot help.
_TOO_LONG_WORDS = re.compile(
    r"max(imum)? context (length|window|size)|context (length|window|size) (is )?exceeded"
    r"|exceeds? (the )?(available |maximum |model's )?context|prompt (is )?too (long|large)|input is too long"
    r"|token count.*exceeds|request too large for .*tokens",
    re.IGNORECASE | re.DOTALL,
)
_KEY_REFUSED = frozenset({"invalid_api_key", "authentication_error"})
_KEY_REFUSED_WORDS = re.compile(r"(incorrect|invalid) api key|api key (is )?(not valid|invalid)", re.IGNORECASE)
_OUT_OF_QUOTA = re.compile(r"insufficient_(quota|balance|credits?)|exceeded_current_quota|spend(ing)?_limit|billing")
# Not "exceeded your current quota": OpenAI says that of money, Google of requests in a minute.
_OUT_OF_QUOTA_WORDS = re.compile(
    r"credit balance is too low|insufficient (balance|credits?|funds)|used all available credits"
    r"|(monthly|your) spend(ing)? limit",
    re.IGNORECASE,
)
# Errors inside a 200 have no status. What is not listed is taken for a passing fault of the server.
_STATUS_OF_NAME = {
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "billing_error": 402,
    "request_too_large": 413,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


@dataclass(frozen=True)
class Endpoint:
    """Where requests go, and what the setting that holds the key is called. Never the key itself."""

    address: str
    key_name: str


@dataclass(frozen=True)
class ReportedError:
    """What an API says is wrong. `names` are its codes and types in lower case; `status` is one the body names."""

    message: str
    names: frozenset[str] = frozenset()
    status: int | None = None


def error_in(body: JsonValue) -> ReportedError | None:
    """The error that a decoded body holds, in any of the dialects, or None."""
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, dict) and error:
        return _read(error)
    if isinstance(error, str) and error.strip():
        return _read({**body, "message": error})
    # The second is the error event of OpenAI's Responses, whose fields stand in the event itself.
    return _read(body) if "error" in (body.get("object"), body.get("type")) else None


def from_response(status: int, headers: Mapping[str, str], body: bytes, endpoint: Endpoint) -> ModelFailure:
    """The failure that a response with a status other than 2xx stands for. `body` may be cut off."""
    said = f"{endpoint.address} answered {status}"
    text = body.decode(errors="replace")
    held = _json_in(text)
    failure = _classify(status, _error_of(held, text), said, endpoint, retry_after(status, headers, held))
    # What Anthropic and OpenAI tell their own clients: this request cannot succeed however often it is sent.
    if headers.get("x-should-retry") == "false":
        failure.retryable, failure.retry_after = False, None
    return failure


def from_error(error: ReportedError, endpoint: Endpoint) -> ModelFailure:
    """The failure that an error inside a 200 stands for."""
    status = error.status or next((code for name, code in _STATUS_OF_NAME.items() if name in error.names), 500)
    return _classify(status, error, f"{endpoint.address} answered with an error", endpoint, None)


def presentable(failure: ModelFailure, secret: Secret) -> ModelFailure:
    """The failure with a message of one visible line that holds no secret and at most MESSAGE_MAX_CHARACTERS."""
    # Redacted before it is cut: half a key at the end would not be found any more.
    message = " ".join(secret.hidden(encodable(str(failure))).split())
    return ModelFailure(
        failure.type,
        cut(visible(message[:MESSAGE_MAX_CHARACTERS]), MESSAGE_MAX_CHARACTERS, original_bytes=len(message.encode())),
        retryable=failure.retryable,
        retry_after=failure.retry_after,
        usage=failure.usage,
    )


def _classify(
    status: int, error: ReportedError, said: str, endpoint: Endpoint, wait_seconds: float | None
) -> ModelFailure:
    message = f"{said}: {error.message}"
    words = error.message[:SEARCHED_CHARACTERS]
    passing = status in _RETRYABLE_BELOW_500 or status >= 500
    if error.names & _FILTERED or (not passing and _FILTERED_WORDS.search(words)):
        return ModelFailure("ModelRefused", message)
    if status == _PAYMENT_REQUIRED and wait_seconds is not None:
        # OpenRouter's, where other requests hold what is left of the money ("Errors and debugging").
        return ModelFailure("ModelUnavailable", message, retryable=True, retry_after=wait_seconds)
    if status == _PAYMENT_REQUIRED or _is_out_of_quota(error.names, words):
        return ModelFailure("ModelUnavailable", f"{said}: no quota left for {endpoint.key_name}: {error.message}")
    if status in (401, 403) or error.names & _KEY_REFUSED or _KEY_REFUSED_WORDS.search(words):
        return ModelFailure("ModelAuthentication", f"{said}: check the key in {endpoint.key_name}: {error.message}")
    if error.names & _TOO_LONG or _TOO_LONG_WORDS.search(words):
        return ModelFailure("ContextWindowExceeded", message)
    if passing:
        return ModelFailure("ModelUnavailable", message, retryable=True, retry_after=wait_seconds)
    if status == _NOT_FOUND:
        message = f"{said}: check the base address and the model's name: {error.message}"
    return ModelFailure("ModelBadRequest", message)


def _is_out_of_quota(names: frozenset[str], words: str) -> bool:
    named = any(_OUT_OF_QUOTA.search(name) for name in names)
    return named or bool(_OUT_OF_QUOTA_WORDS.search(words))


def _json_in(text: str) -> JsonValue:
    """What the body of a failed request holds; None where that is no JSON."""
    try:
        body: JsonValue = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    # Google puts the errors of its OpenAI-compatible API into an array.
    return body[0] if isinstance(body, list) and len(body) == 1 else body


def _error_of(held: JsonValue, text: str) -> ReportedError:
    """What the body of a failed request says, whatever it is."""
    if isinstance(held, dict):
        return error_in(held) or _read(held)
    page = text.lstrip()[:1] == "<"
    return ReportedError("an HTML page" if page else text.strip() or "nothing")


def _read(fields: dict[str, JsonValue]) -> ReportedError:
    inner = fields.get("innererror")
    codes = [fields.get("code"), fields.get("type"), inner.get("code") if isinstance(inner, dict) else None]
    numbers = [code for code in (fields.get("code"), fields.get("status")) if isinstance(code, int | str)]
    statuses = [int(number) for number in numbers if re.fullmatch("[45][0-9][0-9]", str(number))]
    return ReportedError(
        message=_message(fields),
        names=frozenset(code.lower() for code in codes if isinstance(code, str)),
        status=statuses[0] if statuses else None,
    )


def _message(fields: dict[str, JsonValue]) -> str:
    said = fields.get("message") or fields.get("detail") or fields
    message = said if isinstance(said, str) else _as_text(said)
    # A router's own message is only "Provider returned error"; what the provider said is here.
    metadata = fields.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return f"{message} ({raw})" if isinstance(raw, str) else message


def _as_text(value: JsonValue) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return "an error that is nested too deeply to be read"
