"""Answers by a schema: in words, where an API does not take it, and whether OpenAI's strict mode takes it."""

from pydantic import JsonValue

from activities.providers.interface import CompletionRequest
from activities.providers.legal import compact_json

# OpenAI's guide "Structured outputs", "Supported schemas": what strict mode knows, and how deep a schema may nest.
STRICT_MAX_LEVELS = 10
_STRICT_KEYWORDS = frozenset(
    {
        *("type", "enum", "const", "anyOf", "$ref", "$defs", "definitions", "title", "description"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    }
)
_STRICT_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})


def instructed(request: CompletionRequest) -> str:
    """The request's instructions; where the answer must match a schema that is not sent as such (`native_output` off),
    with the schema in words."""
    if request.output_schema is None or request.settings.native_output:
        return request.instructions
    schema = compact_json(request.output_schema)
    return f"{request.instructions}\n\nAnswer with JSON that matches this JSON Schema, and with nothing else:\n{schema}"


def fits_strict_mode(schema: dict[str, JsonValue]) -> bool:
    """Whether OpenAI takes the schema with `strict`, under which the model cannot break it: an object at the root,
    every object closed with all properties required, and no keyword that strict mode does not know."""
    return schema.get("type") == "object" and "anyOf" not in schema and _strict(schema, STRICT_MAX_LEVELS)


def _strict(schema: JsonValue, levels: int) -> bool:
    if not isinstance(schema, dict) or levels < 0 or not schema.keys() <= _STRICT_KEYWORDS:
        return False
    if "format" in schema and str(schema["format"]) not in _STRICT_FORMATS:
        return False
    properties = schema.get("properties", {})
    types = schema.get("type")
    if types == "object" or (isinstance(types, list) and "object" in types) or "properties" in schema:
        required = schema.get("required", [])
        closed = schema.get("additionalProperties") is False
        complete = (
            isinstance(properties, dict) and isinstance(required, list) and set(properties) == set(map(str, required))
        )
        if not (closed and complete):
            return False
    inner = [schema["items"]] if "items" in schema else []
    for name in ("properties", "$defs", "definitions"):
        named = schema.get(name)
        inner += named.values() if isinstance(named, dict) else []
    alternatives = schema.get("anyOf")
    inner += alternatives if isinstance(alternatives, list) else []
    return all(_strict(each, levels - 1) for each in inner)
