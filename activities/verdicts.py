"""What validation says: JSON Schema's keywords made exact, and their errors in words for a model."""

import json
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.protocols import Validator as JsonSchemaValidator
from jsonschema.validators import extend
from pydantic import JsonValue

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
            text = f"must be one of {_listed(wanted)}; it is {shown(value)}"
        case "type":
            text = f"must be of type {wanted if isinstance(wanted, str) else ' or '.join(wanted)}; it is {shown(value)}"
        case _:
            phrase = _PHRASES.get(keyword, f"does not satisfy {keyword} {{}}")
            text = f"{phrase.format(shown(wanted))}; it is {shown(value)}"
    return [ArgumentIssue(pointer=pointer(error.absolute_path), message=text)]


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
    reasons = "; or ".join(told(causes[0])[0].message for causes in alternatives.values())
    return [
        ArgumentIssue(
            pointer=pointer(error.absolute_path), message=short(f"matches no alternative: {reasons}", _LIST_CHARS)
        )
    ]


def _required(_: JsonSchemaValidator, names: list[str], value: JsonValue, schema: object) -> Iterator[ValidationError]:
    """As the library's, with one error a field and the field in its path."""
    for name in names:
        if isinstance(value, dict) and name not in value:
            yield ValidationError(f"missing field {shown(name)}", path=[name])


def _additional(
    validator: JsonSchemaValidator, rule: JsonValue, value: JsonValue, schema: dict[str, dict[str, JsonValue]]
) -> Iterator[ValidationError]:
    """As the library's, with one error a field and the field in its path."""
    if rule is not False or not isinstance(value, dict):
        yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, rule, value, schema)
        return
    declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    expected = f"the fields are {_listed(declared)}" if declared else "there are no fields"
    for name in value:
        if name not in declared and not any(re.search(_expression(pattern), name) for pattern in patterns):
            yield ValidationError(f"unknown field; {expected}", path=[name])


def _pattern(_: JsonSchemaValidator, pattern: str, value: JsonValue, schema: object) -> Iterator[ValidationError]:
    if isinstance(value, str) and not re.search(_expression(pattern), value):
        yield ValidationError("pattern")


def _multiple_of(_: JsonSchemaValidator, step: float, value: JsonValue, schema: object) -> Iterator[ValidationError]:
    """Exact, in the decimals that were written: 0.3 is a multiple of 0.1, which it is not in binary."""
    if isinstance(value, int | float) and not isinstance(value, bool) and _exact(value) % _exact(step):
        yield ValidationError("multipleOf")


def _exact(number: float) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


@lru_cache(maxsize=1024)
def _expression(pattern: str) -> str:
    """The pattern with JSON Schema's `$`, the end of the text: Python's also matches before a last newline."""
    return re.sub(
        r"\\.|\[(?:\\.|[^\]\\])*\]|\$", lambda part: r"\Z" if part[0] == "$" else part[0], pattern, flags=re.S
    )


# One class for checking and judging. The keywords replaced are those whose errors or arithmetic would be too coarse.
# The stubs of jsonschema leave `extend` untyped.
ExactValidator: type[JsonSchemaValidator] = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {"required": _required, "additionalProperties": _additional, "pattern": _pattern, "multipleOf": _multiple_of},
)


def pointer(path: Iterable[str | int]) -> str:
    """The JSON Pointer of a path, "/" for the whole."""
    return short("".join(f"/{escaped(str(step))}" for step in path), _LIST_CHARS) or "/"


def escaped(name: str) -> str:
    """The name as a step of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _listed(values: Iterable[object]) -> str:
    return short(", ".join(shown(value) for value in values), _LIST_CHARS)


def shown(value: object) -> str:
    """The value as JSON, cut."""
    return short(json.dumps(value, ensure_ascii=False, default=str))


def short(text: str, most: int = _SHOWN_CHARS) -> str:
    """The text, or its first `most` characters with dots."""
    return text if len(text) <= most else f"{text[:most]}..."
