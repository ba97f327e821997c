"""Text and values made fit to cross a process boundary: encodable, legal JSON, bounded."""

import json
import math
import re

from pydantic import JsonValue

_SURROGATE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD: nothing else in a Python string fails to encode."""
    return _SURROGATE.sub("\ufffd", text)


def legal_json(value: JsonValue) -> JsonValue:
    """The value with encodable texts, and NaN and infinities as the strings "NaN", "Infinity" and "-Infinity"."""
    match value:
        case str():
            return encodable(value)
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {encodable(key): legal_json(item) for key, item in value.items()}
        case list() | tuple():
            return [legal_json(item) for item in value]
    return value


def surrogates(value: JsonValue) -> int:
    """How many lone surrogates there are in the texts of a value, keys included: what `legal_json` replaces."""
    match value:
        case str():
            return len(_SURROGATE.findall(value))
        case dict():
            return sum(surrogates(key) + surrogates(item) for key, item in value.items())
        case list() | tuple():
            return sum(map(surrogates, value))
    return 0


def json_size(value: JsonValue) -> int:
    """How many bytes the value takes as JSON without white space."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def head(text: str, max_bytes: int) -> str:
    """As much of the beginning as fits into max_bytes of UTF-8, no character split."""
    return text.encode()[:max_bytes].decode(errors="ignore")


def cut(text: str, max_bytes: int, original_bytes: int = 0) -> str:
    """The text, or its head within max_bytes with a marker that says how much there was.

    `original_bytes` is the size of the whole where this text is already a head of it.
    """
    size = max(len(text.encode()), original_bytes)
    if size <= max_bytes:
        return text
    marker = f" [cut: this is the beginning of {size} bytes]"
    return head(text, max(0, max_bytes - len(marker))) + marker
