import pytest
from pydantic import JsonValue

from activities.providers.interface import CompletionRequest
from activities.providers.structured import STRICT_MAX_LEVELS, fits_strict_mode, instructed
from contracts.models import ModelSettings

TEXT: JsonValue = {"type": "string"}


def closed(properties: dict[str, JsonValue], defs: dict[str, JsonValue] | None = None) -> dict[str, JsonValue]:
    schema: dict[str, JsonValue] = {"type": "object", "properties": properties, "required": list(properties)}
    return schema | {"additionalProperties": False} | ({"$defs": defs} if defs else {})


def nested(levels: int) -> dict[str, JsonValue]:
    schema = closed({"a": TEXT})
    for _ in range(levels):
        schema = closed({"a": schema})
    return schema


NODE = closed({"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}})


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        (closed({}), True),
        (closed({"a": TEXT, "b": closed({}) | {"type": ["object", "null"]}}), True),
        (closed({"a": {"type": "string", "enum": ["x"], "description": "d", "format": "date"}}), True),
        (closed({"a": {"type": "array", "items": closed({"b": TEXT}), "minItems": 1}}), True),
        (closed({"a": {"$ref": "#/$defs/node"}}, {"node": NODE}), True),
        ({"type": "object", "properties": {"a": TEXT}, "required": ["a"]}, False),
        (closed({"a": TEXT}) | {"required": []}, False),
        (closed({"a": TEXT}) | {"required": ["a", "b"]}, False),
        (closed({"a": TEXT}) | {"additionalProperties": TEXT}, False),
        (closed({"a": {"type": "object"}}), False),
        (closed({"a": {"type": ["object", "null"]}}), False),
        (closed({"a": {"properties": {"b": TEXT}}}), False),
        (closed({"a": {"type": "array", "items": {"type": "object"}}}), False),
        (closed({"a": {"anyOf": [TEXT, {"type": "object"}]}}), False),
        (closed({"a": TEXT}, {"open": {"type": "object"}}), False),
        (closed({"a": {"type": "string", "minLength": 1}}), False),
        (closed({"a": {"type": "string", "format": "uri"}}), False),
        (closed({"a": {"type": "string", "format": []}}), False),
        (closed({"a": True}), False),
        (closed({"a": {"oneOf": [TEXT]}}), False),
        (closed({}) | {"anyOf": [closed({})]}, False),
        ({"type": "string"}, False),
        ({}, False),
        (nested(STRICT_MAX_LEVELS - 1), True),
        (nested(STRICT_MAX_LEVELS), False),
        (nested(900), False),
    ],
)
def test_strict_mode_takes_closed_objects_with_all_properties_required(
    schema: dict[str, JsonValue], fits: bool
) -> None:
    assert fits_strict_mode(schema) is fits


def test_the_schema_stands_in_the_instructions_only_where_it_is_not_sent() -> None:
    native = CompletionRequest("m", "Be brief.", (), (), output_schema=closed({}))
    in_words = CompletionRequest("m", "Be brief.", (), (), ModelSettings(native_output=False), closed({}))
    assert instructed(native) == "Be brief."
    assert instructed(CompletionRequest("m", "Be brief.", (), (), ModelSettings(native_output=False))) == "Be brief."
    assert instructed(in_words).startswith("Be brief.\n\n")
    assert instructed(in_words).endswith('{"type":"object","properties":{},"required":[],"additionalProperties":false}')
