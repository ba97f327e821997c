"""Canonical JSON and the digests made of it: equal values have one text, in any language."""

import hashlib
import json
import math
from decimal import Decimal

from pydantic import JsonValue


def canonical_json(value: JsonValue) -> str:
    """The one text of a JSON value, as in RFC 8785 but for two things: integers stay exact whatever their size, and
    keys are sorted by code point.

    No white space, 1.0 written as 1, other numbers in ECMAScript's shortest form.
    Raises ValueError for NaN and infinities, which JSON does not have.
    """
    if not _holds_floats(value):
        # The same text, many times faster: one payload may hold a million items.
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return _canonical(value)


def _holds_floats(value: JsonValue) -> bool:
    level = [value]
    while level:
        inner: list[JsonValue] = []
        for item in level:
            if isinstance(item, float):
                return True
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list | tuple):
                inner.extend(item)
        level = inner
    return False


def digest(value: JsonValue) -> str:
    """SHA-256 of the canonical JSON in UTF-8, as 64 lower-case hex digits. Raises ValueError as `canonical_json`
    does."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _canonical(value: JsonValue) -> str:
    match value:
        case float():
            return _number(value)
        case dict():
            members = (f"{json.dumps(key, ensure_ascii=False)}:{_canonical(value[key])}" for key in sorted(value))
            return "{" + ",".join(members) + "}"
        case list() | tuple():
            return "[" + ",".join(map(_canonical, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """ECMAScript's Number::toString: plain notation from 1e-6 up to 1e21, exponents without padding."""
    if not math.isfinite(value):
        raise ValueError("JSON has no NaN and no infinity")
    text = repr(value)
    if "e" not in text:
        # Python's own notation is the same here, but for the zeros.
        return text.removesuffix(".0") if value else "0"
    sign, digits, exponent = Decimal(text).normalize().as_tuple()
    assert isinstance(exponent, int)
    point = len(digits) + exponent
    text = "".join(map(str, digits))
    if point > 21 or point < -5:
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        text = f"{text[0]}{fraction}e{'+' if point > 0 else '-'}{abs(point - 1)}"
    elif point <= 0:
        text = f"0.{'0' * -point}{text}"
    elif point < len(text):
        text = f"{text[:point]}.{text[point:]}"
    else:
        text += "0" * (point - len(text))
    return f"-{text}" if sign else text
