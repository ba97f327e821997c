"""Reading JSON that somebody else's server wrote: nothing in it can be relied on."""

import json
from collections.abc import Iterable

from pydantic import JsonValue

from activities.providers.failures import Endpoint
from activities.providers.interface import ModelFailure
from contracts.text import encodable

_TOKENS_MAX = 2**53


def decoded(body: str, endpoint: Endpoint) -> dict[str, JsonValue]:
    """The JSON object that a body is. Raises `ModelFailure` for anything else."""
    text = body.strip()
    if not text:
        raise ModelFailure("ModelUnavailable", f"{endpoint.address} answered 200 with an empty body", retryable=True)
    if not text.startswith("{"):
        kind = "an HTML page" if text.startswith("<") else "something that is no JSON object"
        raise ModelFailure("ModelBadRequest", f"{endpoint.address} answered 200 with {kind}: check the base address")
    try:
        # Lenient about control characters in texts: some servers do not escape them, and nothing is lost by it.
        reply: JsonValue = json.loads(text, strict=False)
    except json.JSONDecodeError:
        raise ModelFailure(
            "ModelUnavailable", f"{endpoint.address} answered 200 with broken JSON", retryable=True
        ) from None
    # What is whole but beyond this machine was paid for, and would come again.
    except RecursionError:
        raise ModelFailure("ModelBehaviour", "the reply is nested too deeply to be read") from None
    except ValueError as error:
        raise ModelFailure("ModelBehaviour", f"the reply cannot be read: {error}") from None
    return as_object(reply)


def as_object(value: JsonValue) -> dict[str, JsonValue]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: JsonValue) -> list[JsonValue]:
    """The value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: JsonValue) -> str:
    """The value, encodable, if it is a text, else an empty one."""
    return encodable(value) if isinstance(value, str) else ""


def objects(value: JsonValue) -> Iterable[dict[str, JsonValue]]:
    """The objects of an array."""
    return (item for item in as_list(value) if isinstance(item, dict))


def count(value: JsonValue) -> int:
    """A plausible number of tokens, else 0."""
    plausible = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _TOKENS_MAX
    return int(value) if plausible and isinstance(value, int | float) else 0


def argument_text(arguments: JsonValue) -> str:
    """A call's arguments as text. Those that came as JSON become the text they should have been, illegal numbers
    included: the door refuses them as it does in a text."""
    if isinstance(arguments, str):
        return encodable(arguments)
    if arguments is None:
        return ""
    try:
        return encodable(json.dumps(arguments, ensure_ascii=False, separators=(",", ":")))
    except RecursionError:
        raise ModelFailure("ModelBehaviour", "a tool call's arguments are nested too deeply to be read") from None
