"""A schema for the answer as Anthropic's structured outputs take it."""

from pydantic import JsonValue

from activities.providers.legal import compact_json
from activities.schemas import LISTED, NAMED, SINGLE

# "Structured outputs: JSON Schema limitations".
_NOT_TAKEN = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"}
    | {"maxItems", "uniqueItems", "minContains", "maxContains", "minProperties", "maxProperties"}
)


def native_schema(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The schema with every object closed that does not say otherwise, and with bounds told in words: the API refuses
    open objects and most bounds. What is left out here is still held against the answer when it comes."""
    found: dict[str, JsonValue] = {}
    bounds: dict[str, JsonValue] = {}
    for keyword, value in schema.items():
        if keyword in _NOT_TAKEN or (keyword == "minItems" and value not in (0, 1)):
            bounds[keyword] = value
        else:
            found[keyword] = _inside(keyword, value)
    if found.get("type") == "object":
        found.setdefault("additionalProperties", False)
    if bounds:
        said = found.get("description")
        words = f"Must match: {compact_json(bounds)}"
        found["description"] = f"{said} {words}" if isinstance(said, str) else words
    return found


def _inside(keyword: str, value: JsonValue) -> JsonValue:
    if keyword in SINGLE:
        return _native(value)
    if keyword in LISTED and isinstance(value, list):
        return [_native(part) for part in value]
    if keyword in NAMED and isinstance(value, dict):
        return {name: _native(part) for name, part in value.items()}
    return value


def _native(value: JsonValue) -> JsonValue:
    return native_schema(value) if isinstance(value, dict) else value
