"""What validation says: its errors in words for a model."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from jsonschema import ValidationError

from contracts.messages import ArgumentIssue

_SHOWN_CHARS = 100
_LIST_CHARS = 1_000

_PHRASES = {
    "const": "must be {}",
    "exclusiveMaximum": "must be below {}",
    "exclusiveMinimum": "must be above {}",
    "format": "must be a valid {}",
    "maxItems": "must have at most {} items",
    "maxLength": "must have at most {} characters",
    "maxProperties": "must have at most {} fields",
    "maximum": "must be at most {}",
    "minItems": "must have at least {} items",
    "minLength": "must have at least {} characters",
    "minProperties": "must have at least {} fields",
    "minimum": "must be at least {}",
    "multipleOf": "must be a multiple of {}",
    "pattern": "must match the pattern {}",
    "uniqueItems": "must not hold an item twice",
}


def told(error: ValidationError) -> list[ArgumentIssue]:
    """An error of the library in words for a model, values cut."""
    # A schema that is just `false` has no keyword.
    keyword, value = str(error.validator), error.instance
    wanted: Any = error.validator_value
    if error.context and keyword in ("anyOf", "oneOf"):
        return _closest(error)
    match keyword:
        case "required" | "additionalProperties":
            text = error.message
        case "None":
            text = f"is not allowed; it is {shown(value)}"
        case "enum":
            text = f"must be one of {listed(wanted)}; it is {shown(value)}"
        case "type":
            text = f"must be of type {wanted if isinstance(wanted, str) else ' or '.join(wanted)}; it is {shown(value)}"
        case _:
            phrase = _PHRASES.get(keyword, f"does not satisfy {keyword} {{}}")
            text = f"{phrase.format(shown(wanted))}; it is {shown(value)}"
    return [_issue(error, text)]


def _issue(error: ValidationError, text: str) -> ArgumentIssue:
    return ArgumentIssue(
        pointer=pointer(error.absolute_path), message=text, schema_path=pointer(error.absolute_schema_path)
    )


def _closest(error: ValidationError) -> list[ArgumentIssue]:
    """The issues of the alternative that was meant, judged by type and tag; of all where none stands out."""
    alternatives: dict[object, list[ValidationError]] = {}
    for cause in error.context:
        alternatives.setdefault(cause.schema_path[0], []).append(cause)
    meant = [
        causes
        for causes in alternatives.values()
        if not any(cause.validator == "const" or (cause.validator == "type" and not cause.path) for cause in causes)
    ]
    if len(meant) == 1:
        return [issue for cause in meant[0] for issue in told(cause)]
    reasons = (told(causes[0])[0].message for causes in alternatives.values())
    text = f"matches no alternative: {_joined(reasons, '; or ')}"
    return [_issue(error, short(text, _LIST_CHARS))]


def pointer(path: Iterable[str | int]) -> str:
    """The JSON Pointer of a path, "/" for the whole."""
    return short("".join(f"/{escaped(str(step))}" for step in path), _LIST_CHARS) or "/"


def escaped(name: str) -> str:
    """The name as a step of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def listed(values: Iterable[object]) -> str:
    """The values as JSON, each and the whole cut."""
    return short(_joined((shown(value) for value in values), ", "), _LIST_CHARS)


def _joined(texts: Iterable[str], separator: str) -> str:
    """The texts, as many as can be of use: the rest is not even made."""
    taken: list[str] = []
    length = 0
    for text in texts:
        taken.append(text)
        length += len(text)
        if length > _LIST_CHARS:
            break
    return separator.join(taken)


def shown(value: object) -> str:
    """The value as JSON, cut. Only what is shown is written."""
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > _SHOWN_CHARS:
            break
    return short(text)


def _pieces(value: object) -> Iterator[str]:
    match value:
        case str():
            yield json.dumps(value[: _SHOWN_CHARS + 1], ensure_ascii=False)
        case dict():
            yield "{"
            for index, (key, item) in enumerate(value.items()):
                yield ", " if index else ""
                yield from _pieces(str(key))
                yield ": "
                yield from _pieces(item)
            yield "}"
        case list() | tuple():
            yield "["
            for index, item in enumerate(value):
                yield ", " if index else ""
                yield from _pieces(item)
            yield "]"
        case _:
            yield json.dumps(value, ensure_ascii=False, default=str)


def short(text: str, most: int = _SHOWN_CHARS) -> str:
    """The text, or its first `most` characters with dots."""
    return text if len(text) <= most else f"{text[:most]}..."
