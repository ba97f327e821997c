"""JSON Pointers (RFC 6901), for the resource versions that contracts point at."""

from pydantic import JsonValue

from contracts.canonical import canonical_json


class NotThere(Exception):
    """A pointer leads nowhere in this value."""


def at(pointer: str, value: JsonValue) -> JsonValue:
    """What a well-formed pointer points at. Raises `NotThere`."""
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise NotThere(pointer)
    return value


def scalar_text(value: JsonValue) -> str | None:
    """A scalar as text: a string as it is, a number or boolean as JSON. None for null, objects and arrays."""
    match value:
        case None | dict() | list():
            return None
        case str():
            return value
    return canonical_json(value)
