"""JSON Schema for tool arguments: checked before use, enforced exactly as published.

The dialect is Draft 2020-12. Nothing is ever fetched: a schema that refers outside itself is refused.
`activities/derivation.py` writes schemas from Python types. What a value may cost is bounded, see
`activities/keywords.py`: above all, a pattern that repeats something is searched for in texts of up to 4,096 characters
only. One that backtracks without end, such as (a+)+$, its author must avoid.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from urllib.parse import unquote

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.protocols import Validator as JsonSchemaValidator
from pydantic import JsonValue
from referencing import Registry

from activities.formats import FORMAT_CHECKER, FORMATS
from activities.keywords import Budget, ExactValidator, Unjudged
from activities.verdicts import escaped, pointer, short, shown, told
from contracts.canonical import canonical_json
from contracts.messages import ArgumentIssue

# Levels of JSON, so about half as many objects within objects: `$defs` keep a schema flat.
SCHEMA_MAX_DEPTH = 32
SCHEMA_MAX_BYTES = 65_536
MOST_ISSUES = 20

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$defs"}
)
_KNOWN = _ANNOTATIONS | set(Draft202012Validator.VALIDATORS) - {"$dynamicRef"}
# Enforced as part of another keyword, without which they mean nothing.
_COMPANIONS = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
_NOT_AT_ROOT = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const")

# Where schemas are found in a schema: as a keyword's value, in a list, under names.
SINGLE = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
LISTED = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
NAMED = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})
# Keywords that apply a schema to the very same value, so that a circle of them would never end.
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})


class SchemaRefused(ValueError):
    """A schema that cannot be published or enforced as it stands. The message names the place and the cause."""


def check_schema(schema: dict[str, JsonValue]) -> None:
    """Raise `SchemaRefused` unless the schema is a plain object at the root and can be enforced in every part.

    Refused by name: keywords and formats that the validator does not check, references that leave the schema or never
    end, other dialects. At most SCHEMA_MAX_DEPTH levels of JSON and SCHEMA_MAX_BYTES of canonical JSON.
    """
    _text(schema)
    if schema.get("type") != "object":
        raise SchemaRefused('/: the root must have "type": "object": every provider asks for a plain object')
    for keyword in _NOT_AT_ROOT:
        if keyword in schema:
            raise SchemaRefused(f"/: {keyword} at the root: every provider asks for a plain object there")
    try:
        ExactValidator.check_schema(schema)
    except SchemaError as error:
        raise SchemaRefused(f"{pointer(error.absolute_path)}: {short(error.message)}") from None
    except RecursionError:
        raise SchemaRefused("/: nested too deeply to check") from None
    places = dict(_places("", schema))
    for place, part in places.items():
        _check_keywords(place or "/", part)
    _check_references(places)


def _text(schema: dict[str, JsonValue]) -> str:
    """The schema's canonical JSON, bounded in depth and size."""
    if depth_of(schema) > SCHEMA_MAX_DEPTH:
        raise SchemaRefused(f"/: more than {SCHEMA_MAX_DEPTH} levels deep")
    try:
        text = canonical_json(schema)
        size = len(text.encode())
    except ValueError as error:
        raise SchemaRefused(f"/: not JSON: {error}") from None
    if size > SCHEMA_MAX_BYTES:
        raise SchemaRefused(f"/: {size} bytes of JSON, more than {SCHEMA_MAX_BYTES}")
    return text


def depth_of(value: object) -> int:
    """How many containers are nested in each other: 0 for a plain value, 1 for `{}`. Safe at any depth."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, Mapping | list | tuple)]:
        depth += 1
        level = [item for one in level for item in (one.values() if isinstance(one, Mapping) else one)]
    return depth


def _parts(schema: JsonValue) -> Iterator[tuple[str, str, JsonValue]]:
    """The schemas right inside a schema: keyword, JSON Pointer from here, schema."""
    for keyword, value in schema.items() if isinstance(schema, dict) else ():
        if keyword in SINGLE:
            yield keyword, f"/{keyword}", value
        elif keyword in LISTED and isinstance(value, list):
            yield from ((keyword, f"/{keyword}/{index}", part) for index, part in enumerate(value))
        elif keyword in NAMED and isinstance(value, dict):
            yield from ((keyword, f"/{keyword}/{escaped(name)}", part) for name, part in value.items())


def _places(place: str, schema: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """Every schema in a schema, itself included, by its JSON Pointer."""
    yield place, schema
    for _, step, part in _parts(schema):
        yield from _places(place + step, part)


def patterns_in(schema: dict[str, JsonValue]) -> Iterator[tuple[str, str]]:
    """Every pattern in a schema that `check_schema` accepts, with the JSON Pointer of the schema that has it."""
    for place, part in _places("", schema):
        if isinstance(part, dict):
            named = part.get("patternProperties")
            for pattern in (part.get("pattern"), *(named if isinstance(named, dict) else ())):
                if isinstance(pattern, str):
                    yield place or "/", pattern


def _check_keywords(place: str, schema: JsonValue) -> None:
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        match keyword:
            case "$schema":
                if not isinstance(value, str) or value.removesuffix("#") != _DIALECT:
                    raise SchemaRefused(f"{place}: $schema {shown(value)}: only {_DIALECT} is supported")
            case "format" if value not in FORMATS:
                raise SchemaRefused(f"{place}: format {shown(value)} is not checked by the validator")
            case _ if keyword not in _KNOWN and _COMPANIONS.get(keyword) not in schema:
                # Where it points to is what the schema's author looks for.
                named = f"{shown(keyword)}: {shown(value)}" if keyword.startswith("$") else shown(keyword)
                raise SchemaRefused(f"{place}: keyword {named} is not enforced by the validator")


def _check_references(places: Mapping[str, JsonValue]) -> None:
    """References end at a schema of this document, and no circle of them comes back to the same value."""
    same_value: dict[str, list[str]] = {}
    for place, schema in places.items():
        same_value[place] = [place + step for keyword, step, _ in _parts(schema) if keyword in _IN_PLACE]
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if isinstance(reference, str):
            target = unquote(reference[1:])
            if not reference.startswith("#") or target not in places:
                raise SchemaRefused(f"{place or '/'}: $ref {shown(reference)} names no schema in this document")
            same_value[place].append(target)
    try:
        TopologicalSorter(same_value).prepare()
    except CycleError as error:
        circle = " -> ".join(f"#{place}" for place in error.args[1])
        raise SchemaRefused(f"references that never end: {short(circle)}") from None


@dataclass(frozen=True)
class Validator:
    """A checked schema, ready to judge arguments. Made by `compile_schema`."""

    schema: dict[str, JsonValue]
    _compiled: JsonSchemaValidator
    _places: Mapping[str, JsonValue]

    def issues(self, arguments: JsonValue, budget: Budget | None = None) -> tuple[ArgumentIssue, ...]:
        """What is wrong with the arguments, at most MOST_ISSUES; empty when they are valid.

        Nothing is coerced: true is no integer, "5" is not 5. 1.0 is an integer, as JSON Schema says. What costs more to
        judge than the budget (None: one of their own) has left is an issue too.
        """
        try:
            with (budget or Budget()).applied():
                found = (issue for error in self._compiled.iter_errors(arguments) for issue in told(error))
                return tuple(islice(found, MOST_ISSUES))
        except Unjudged as reason:
            return (ArgumentIssue(message=str(reason)),)
        except RecursionError:
            return (ArgumentIssue(message="nested too deeply to check"),)

    def target(self, schema: JsonValue) -> JsonValue:
        """The schema that a chain of references leads to; itself, when it holds none."""
        while isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
            schema = self._places[unquote(reference[1:])]
        return schema


def compile_schema(schema: dict[str, JsonValue]) -> Validator:
    """The validator of a schema, cached by its canonical text. Raises `SchemaRefused` as `check_schema` does."""
    return _compiled(_text(schema))


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Validator:
    schema = json.loads(text)
    check_schema(schema)
    places = dict(_places("", schema))
    for part in places.values():
        if isinstance(part, dict):
            # Where it is written, the library would go on with its own keywords instead of ours.
            part.pop("$schema", None)
    # A registry of its own without a retriever: the library's default one fetches over HTTP.
    compiled = ExactValidator(schema, registry=Registry(), format_checker=FORMAT_CHECKER)
    return Validator(schema, compiled, places)
