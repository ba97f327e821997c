"""What a tool's return value means."""

import json
from collections.abc import AsyncIterator, Iterator
from enum import Enum

from pydantic_core import to_jsonable_python

from activities.schemas import depth_of
from activities.tool_secrets import NO_SECRETS, ToolSecrets
from contracts.outcomes import ToolOutcome, bounded, failure
from contracts.text import encodable

# Deeper results break the JSON readers that a result passes on its way.
RESULT_MAX_DEPTH = 100


def outcome_of(value: object, secrets: ToolSecrets = NO_SECRETS) -> ToolOutcome:
    """What a tool's return value means: a text as it is, an outcome as it is, None as an empty text, all else as data.

    Bounded, without the secrets, and legal JSON: NaN and infinities become strings, bytes become UTF-8 text or else
    base64. Never raises: a value that JSON cannot hold is a failure with code result_not_json, which says that the tool
    did run.
    """
    try:
        _refuse_iterators(value)
        outcome = _outcome(value)
        if depth_of((outcome.data, outcome.metadata)) > RESULT_MAX_DEPTH:
            raise ValueError("nested too deeply")
        # An integer of more than 4,300 digits is written by pydantic, but read by nobody.
        json.dumps((outcome.data, outcome.metadata))
        return bounded(secrets.hidden_in_outcome(outcome))
    # The value's own code writes it, so anything may be raised; the effect has happened, and a retry would repeat it.
    except BaseException:  # noqa: BLE001
        kind = type(value).__name__
        message = f"the tool ran, but its result of type {kind} cannot be written as JSON"
        return failure("internal", message, code="result_not_json")


def _outcome(value: object) -> ToolOutcome:
    match value:
        case None:
            return ToolOutcome(ok=True)
        case ToolOutcome():
            # What is the runtime's own to say is not taken from a tool.
            kept = {name: item for name, item in value.metadata.items() if name != "original_bytes"}
            return value.model_copy(update={"metadata": kept, "projection": None})
        case str() if not isinstance(value, Enum):
            return ToolOutcome(ok=True, text=value)
    try:
        data = to_jsonable_python(value)
    except UnicodeError:
        # Bytes that are no UTF-8, or a key with half a character in it, as file names may have.
        data = to_jsonable_python(_with_encodable_keys(value), bytes_mode="base64")
    return ToolOutcome(ok=True, data=data)


def _refuse_iterators(value: object) -> None:
    """A generator has no end that anybody could know of, and writing it would run the tool's code again."""
    match value:
        case Iterator() | AsyncIterator():
            raise TypeError("an iterator is no result")
        case dict():
            for item in value.values():
                _refuse_iterators(item)
        case list() | tuple() | set() | frozenset():
            for item in value:
                _refuse_iterators(item)


def _with_encodable_keys(value: object) -> object:
    match value:
        case dict():
            return {
                encodable(key) if isinstance(key, str) else key: _with_encodable_keys(item)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_with_encodable_keys(item) for item in value]
    return value
