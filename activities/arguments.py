"""From the text a model wrote to a verdict at the door: a call that may run, or one that must not and why.

Nothing is completed, repaired or chosen among several: what a model did not say in full is said back to it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from math import isinf
from typing import Literal

from pydantic import JsonValue

from activities.keywords import Budget
from activities.providers.interface import RawToolCall
from activities.schemas import Validator, compile_schema, depth_of
from activities.verdicts import short, shown
from contracts.messages import ArgumentIssue, InvalidToolCall, ToolCall
from contracts.text import cut, encodable, legal_json
from contracts.tools import ToolContract

ARGUMENTS_MAX_DEPTH = 64
RAW_MAX_BYTES = 16_384
_MOST_NAMES = 50

_TRUNCATED = "the reply was cut off by its length limit, so none of its calls ran: send a smaller call"
_ONE_OBJECT = "the arguments must be exactly one JSON object"
# What a name may not hold, or the provider refuses the transcript that it stands in.
_ILLEGAL_IN_NAME = re.compile(r"[^a-z0-9_-]")
# A brace that begins an object, be it in JSON, Python or JavaScript; `{placeholder}` in prose does not.
_OPENS_OBJECT = re.compile(r"""\{\s*(["'}/]|[\w$]+\s*:)""")
_OPENERS = {"}": "{", "]": "["}
_KINDS = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}


class UnreadableArguments(ValueError):
    """Text that is not exactly one JSON object. The message is for the model."""


def propose(
    raw: RawToolCall, call_id: str, tools: Mapping[str, ToolContract], truncated: bool, budget: Budget | None = None
) -> ToolCall | InvalidToolCall:
    """The verdict on one call of a reply. `truncated` says that the reply was cut off: none of its calls may run.
    `budget` is what judging all calls of the reply together may cost (None: this one has its own).

    `tools` holds the agent's contracts by name; names match in lower case. Defaults are not filled in: they belong to
    the tool's own types.
    """
    name = encodable(raw.name).lower()
    provider_call_id = None if raw.provider_call_id is None else encodable(raw.provider_call_id)
    arguments: dict[str, JsonValue] = {}
    issues: tuple[ArgumentIssue, ...] = ()
    try:
        arguments = read_arguments(raw.arguments)
    except UnreadableArguments as error:
        issues = (ArgumentIssue(message=str(error)),)
    reason: Literal["truncated_reply", "unknown_tool", "invalid_arguments"] = "invalid_arguments"
    if truncated:
        reason, issues = "truncated_reply", (ArgumentIssue(message=_TRUNCATED),)
    elif name not in tools:
        reason, issues = "unknown_tool", (ArgumentIssue(message=_unknown(name, tools)),)
    elif not issues:
        arguments, issues = checked(arguments, compile_schema(tools[name].input_schema), budget)
    if not issues:
        return ToolCall(call_id=call_id, tool=name, arguments=arguments, provider_call_id=provider_call_id)
    return InvalidToolCall(
        call_id=call_id,
        tool=_ILLEGAL_IN_NAME.sub("_", name)[:64] or "_",
        issues=issues,
        reason=reason,
        raw=cut(encodable(raw.arguments), RAW_MAX_BYTES),
        arguments=arguments,
        provider_call_id=provider_call_id,
    )


def read_arguments(text: str) -> dict[str, JsonValue]:
    """The one JSON object in a text; nothing at all means `{}`. Prose and code fences around it are left out.

    Raises `UnreadableArguments` for two objects or none, an unfinished one, one inside something else, a key written
    twice, a number that JSON or this machine does not have, more than ARGUMENTS_MAX_DEPTH levels. Lone surrogates
    become U+FFFD.
    """
    text = encodable(text)
    if not text.strip():
        return {}
    try:
        try:
            value = _DECODER.decode(text)
        except json.JSONDecodeError as error:
            value = _embedded(text, error)
    except RecursionError:
        raise UnreadableArguments(f"{_ONE_OBJECT} of at most {ARGUMENTS_MAX_DEPTH} levels") from None
    except UnreadableArguments:
        raise
    except ValueError as error:
        raise UnreadableArguments(f"the arguments are not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnreadableArguments(f"{_ONE_OBJECT}, not {_KINDS.get(type(value), 'null')}")
    if depth_of(value) > ARGUMENTS_MAX_DEPTH:
        raise UnreadableArguments(f"{_ONE_OBJECT} of at most {ARGUMENTS_MAX_DEPTH} levels")
    return {key: legal_json(item) for key, item in value.items()}


def _embedded(text: str, whole: json.JSONDecodeError) -> JsonValue:
    """The one object in a text that is not JSON as a whole."""
    found: list[tuple[JsonValue, int, int]] = []
    end = 0
    while opening := _OPENS_OBJECT.search(text, end):
        try:
            value, end = _DECODER.raw_decode(text, opening.start())
        except json.JSONDecodeError as error:
            raise _not_json(error) from None
        found.append((value, opening.start(), end))
        if len(found) > 1:
            raise UnreadableArguments(f"{_ONE_OBJECT}; there is more than one")
    if not found:
        raise _not_json(whole)
    value, start, end = found[0]
    # An object inside an open bracket is a part of what the model meant, not all of it.
    if not (_is_balanced(text[:start]) and _is_balanced(text[end:])):
        raise _not_json(whole)
    return value


def _is_balanced(prose: str) -> bool:
    opened: list[str] = []
    for character in re.findall(r"[{}\[\]]", prose):
        if character in "{[":
            opened.append(character)
        elif not opened or opened.pop() != _OPENERS[character]:
            return False
    return not opened


def _not_json(error: json.JSONDecodeError) -> UnreadableArguments:
    return UnreadableArguments(f"the arguments are not valid JSON: {error.msg} at character {error.pos}")


def _distinct(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    members: dict[str, JsonValue] = {}
    for key, value in ((encodable(key), value) for key, value in pairs):
        if key in members:
            raise UnreadableArguments(f"the key {shown(key)} is there twice: JSON readers differ in which one counts")
        members[key] = value
    return members


def _constant(name: str) -> JsonValue:
    raise UnreadableArguments(f"the arguments are not valid JSON: JSON has no {name}")


def _finite(digits: str) -> float:
    number = float(digits)
    if isinf(number):
        raise UnreadableArguments(f"the number {short(digits)} is too large")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_constant, parse_float=_finite)


def checked(
    arguments: dict[str, JsonValue], validator: Validator, budget: Budget | None = None
) -> tuple[dict[str, JsonValue], tuple[ArgumentIssue, ...]]:
    """The arguments with 1.0 as 1 where the schema wants an integer, and what is wrong with them."""
    if issues := validator.issues(arguments, budget):
        return arguments, issues
    schema = validator.schema
    return {key: _with_integers(value, _property(schema, key), validator) for key, value in arguments.items()}, ()


def _with_integers(value: JsonValue, schema: JsonValue, validator: Validator) -> JsonValue:
    """The value with 1.0 as 1 where the schema says integer, so that a tool in any language reads an integer.

    Follows properties, items and references. Inside alternatives (anyOf, oneOf) numbers stay as the model wrote them.
    """
    schema = validator.target(schema)
    match value:
        case float() if isinstance(schema, dict) and schema.get("type") == "integer":
            return int(value)
        case dict():
            return {key: _with_integers(item, _property(schema, key), validator) for key, item in value.items()}
        case list():
            items = schema.get("items") if isinstance(schema, dict) else None
            return [_with_integers(item, items, validator) for item in value]
    return value


def _property(schema: JsonValue, name: str) -> JsonValue:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties.get(name) if isinstance(properties, dict) else None


def _unknown(name: str, available: Iterable[str]) -> str:
    names = list(available)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    listed = ", ".join(names[:_MOST_NAMES]) + more if names else "none"
    return f"there is no tool {shown(name)}. Available tools: {listed}"
