"""Schemas: what is refused, what is enforced, and in which words."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from pydantic import JsonValue

from activities.formats import FORMATS
from activities.schemas import MOST_ISSUES, SCHEMA_MAX_DEPTH, SchemaRefused, check_schema, compile_schema

Schema = dict[str, JsonValue]


def closed(**properties: JsonValue) -> Schema:
    return {"type": "object", "properties": {**properties}, "additionalProperties": False}


def issues(schema: Schema, arguments: JsonValue) -> dict[str, str]:
    return {issue.pointer: issue.message for issue in compile_schema(schema).issues(arguments)}


def accepts(schema: JsonValue, value: JsonValue) -> bool:
    return not issues(closed(value=schema), {"value": value})


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"$ref": "http://127.0.0.1/x"}, "http://127.0.0.1/x"),
        ({"$ref": "file:///etc/hostname"}, "file:///etc/hostname"),
        ({"$ref": "#/$defs/missing"}, r"#/\$defs/missing"),
        ({"$ref": "#/properties"}, "#/properties"),
        ({"$ref": "x"}, '"x"'),
        ({"$id": "http://127.0.0.1/"}, r"\$id"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "draft-07"),
        ({"$dynamicRef": "#x"}, r"\$dynamicRef"),
        ({"$recursiveRef": "#"}, r"\$recursiveRef"),
        ({"$anchor": "x"}, r"\$anchor"),
        ({"$dynamicAnchor": "x"}, r"\$dynamicAnchor"),
        ({"nullable": True}, "nullable"),
        ({"contentMediaType": "application/json"}, "contentMediaType"),
        ({"then": {"type": "string"}}, "then"),
        ({"minContains": 2}, "minContains"),
        ({"format": "color"}, "color"),
        ({"pattern": "("}, r"/properties/a/pattern"),
        ({"minItems": -1}, "/properties/a/minItems"),
        ({"type": "text"}, "/properties/a/type"),
        ({"items": [{"type": "string"}]}, "/properties/a/items"),
        ({"anyOf": [{"$ref": "#/properties/a"}]}, "never end"),
        ({"default": float("nan")}, "not JSON"),
        ({"const": "\ud800"}, "not JSON"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_and_the_reason_named(part: Schema, named: str) -> None:
    with pytest.raises(SchemaRefused, match=named):
        check_schema(closed(a=part))


@pytest.mark.parametrize(
    "root",
    [
        {},
        {"type": "array"},
        {"type": ["object", "null"]},
        {"oneOf": [{"type": "object"}]},
        {"type": "object", "anyOf": [{"required": ["a"]}]},
        {"type": "object", "$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_root_that_is_no_plain_object_is_refused(root: Schema) -> None:
    with pytest.raises(SchemaRefused):
        check_schema(root)


def test_references_that_only_lead_to_each_other_are_refused() -> None:
    circle: JsonValue = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
    with pytest.raises(SchemaRefused, match=r"#/\$defs/a -> "):
        check_schema({**closed(x={"$ref": "#/$defs/a"}), "$defs": circle})


def test_references_within_the_document_work_with_escapes_and_recursion() -> None:
    schema: Schema = {
        **closed(tree={"$ref": "#"}, id={"$ref": "#/$defs/a~1b%20c"}),
        "$defs": {"a/b c": {"pattern": "^id-"}},
    }
    assert not issues(schema, {"id": "id-1", "tree": {"tree": {"id": "id-2"}}})
    assert set(issues(schema, {"tree": {"id": "bad"}})) == {"/tree/id"}


@pytest.mark.parametrize("name", ["title", "$ref", "$id", "format", "nullable"])
def test_a_property_may_be_named_like_a_keyword(name: str) -> None:
    assert issues({"type": "object", "properties": {name: {"type": "integer"}}}, {name: "x"}).keys() == {f"/{name}"}


def test_a_value_may_look_like_a_refused_keyword() -> None:
    check_schema(closed(a={"enum": [{"$ref": "http://127.0.0.1/"}], "default": {"$id": "x"}}))


def nested(levels: int) -> Schema:
    schema: Schema = {"type": "object"}
    for _ in range((levels - 1) // 2):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_depth_and_size_are_bounded() -> None:
    check_schema(nested(SCHEMA_MAX_DEPTH))
    with pytest.raises(SchemaRefused, match="levels deep"):
        check_schema(nested(SCHEMA_MAX_DEPTH + 1))
    with pytest.raises(SchemaRefused, match="levels deep"):
        compile_schema(nested(5_000))
    with pytest.raises(SchemaRefused, match="bytes of JSON"):
        check_schema(closed(a={"description": "x" * 65_536}))


@pytest.fixture
def hits() -> Iterator[tuple[int, list[str]]]:
    """A listener on loopback: its port, and the paths it was asked for."""
    paths: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            body = b'{"type": "integer"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Listener) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port, paths
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "template",
    [
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:PORT/x"}}},
        {"type": "object", "properties": {"a": {"$ref": "file:///etc/hostname"}}},
        {"type": "object", "$schema": "http://127.0.0.1:PORT/s"},
        {"type": "object", "$id": "http://127.0.0.1:PORT/", "properties": {"a": {"$ref": "x"}}},
        {"type": "object", "properties": {"a": {"$dynamicRef": "http://127.0.0.1:PORT/d"}}},
    ],
)
def test_r44_nothing_is_fetched_for_a_schema_from_outside(template: Schema, hits: tuple[int, list[str]]) -> None:
    port, paths = hits
    schema = json.loads(json.dumps(template).replace("PORT", str(port)))
    with pytest.raises(SchemaRefused):
        check_schema(schema)
    with pytest.raises(SchemaRefused):
        compile_schema(schema)
    assert paths == []


def test_c06_independent_violations_are_all_told() -> None:
    schema = closed(name={"type": "string", "minLength": 2}, count={"type": "integer", "minimum": 1})
    found = issues({**schema, "required": ["name", "count"]}, {"name": "x", "count": 0, "extra": True})
    assert (
        found
        == {
            "/name": 'must have at least 2 characters; it is "x"',
            "/count": "must be at least 1; it is 0",
            "/extra": 'unknown field; the fields are "name", "count"',
        }
        or found["/extra"] == 'unknown field; the fields are "count", "name"'
    )


def test_messages_name_missing_fields_choices_and_types() -> None:
    found = issues({**closed(unit={"enum": ["celsius", "fahrenheit"]}), "required": ["city"]}, {"unit": "kelvin"})
    assert found["/city"] == 'missing field "city"'
    assert found["/unit"] == 'must be one of "celsius", "fahrenheit"; it is "kelvin"'
    assert issues(closed(a={"type": ["integer", "null"]}), {"a": "x"}) == {
        "/a": 'must be of type integer or null; it is "x"'
    }
    assert issues(closed(), []) == {"/": "must be of type object; it is []"}
    assert issues(closed(), {"a": 1}) == {"/a": "unknown field; there are no fields"}


def test_an_optional_value_is_judged_by_its_type() -> None:
    assert issues(closed(a={"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]}), {"a": 1}) == {
        "/a": "must be at least 3; it is 1"
    }


def test_pointers_escape_and_long_values_are_cut() -> None:
    assert set(issues({"type": "object", "properties": {"a/b~c": {"type": "string"}}}, {"a/b~c": 1})) == {"/a~1b~0c"}
    found = issues(closed(a={"type": "integer"}), {"a": "x" * 10_000, "y" * 10_000: 1})
    assert all(len(message) < 300 for message in found.values())
    assert all(len(pointer) < 1_100 for pointer in found)


def test_at_most_twenty_issues_are_told() -> None:
    assert len(compile_schema(closed()).issues({f"f{number}": 1 for number in range(50)})) == MOST_ISSUES


def test_a_value_too_deep_to_check_is_an_issue() -> None:
    value: JsonValue = {}
    for _ in range(5_000):
        value = {"tree": value}
    found = compile_schema({"type": "object", "properties": {"tree": {"$ref": "#"}}}).issues(value)
    assert [issue.message for issue in found] == ["nested too deeply to check"]


@pytest.mark.parametrize(
    ("schema", "value", "valid"),
    [
        ({"type": "integer"}, 2.0, True),
        ({"type": "integer"}, 2.5, False),
        ({"type": "integer"}, True, False),
        ({"type": "number"}, True, False),
        ({"type": "integer"}, "5", False),
        ({"type": ["string", "null"]}, None, True),
        ({"maximum": 9007199254740993}, 9007199254740993, True),
        ({"maximum": 9007199254740993}, 9007199254740994, False),
        ({"const": 9007199254740993}, 9007199254740992, False),
        ({"type": "array", "uniqueItems": True}, [1, 2, 1], False),
        ({"type": "array", "uniqueItems": True}, [1, True], True),
        ({"multipleOf": 0.1}, 0.3, True),
        ({"multipleOf": 0.1}, 0.35, False),
        ({"multipleOf": 3}, 9007199254740993, True),
        ({"oneOf": [{"type": "integer"}, {"minimum": 1}]}, 5, False),
        ({"not": {"type": "integer"}}, 5, False),
        ({"enum": ["a", "b"]}, "c", False),
        ({"enum": [1]}, True, False),
        ({"type": "string", "maxLength": 2}, "é😀", True),
        ({"pattern": r"^ord_[0-9]+$"}, "ord_1", True),
        ({"pattern": r"^ord_[0-9]+$"}, "ord_1\n", False),
        ({"pattern": r"^[$]\$$"}, "$$", True),
        ({"format": "date-time"}, "zz", False),
        ({"format": "uri"}, "not a uri", False),
        ({"format": "uri"}, "urn:a\n", False),
        ({"format": "uri"}, "urn:é", False),
        ({"format": "iri"}, "urn:é\U0001f600", True),
        ({"format": "iri"}, "é:a", False),
        ({"format": "iri"}, "http://[é]/", False),
        ({"format": "iri"}, "urn:\ufdd0", False),
        ({"format": "iri"}, "urn:a?\ue000#a", True),
        ({"format": "iri"}, "urn:a#?\ue000", False),
        ({"format": "iri"}, "/é", False),
        ({"format": "iri-reference"}, "/é?é#é", True),
        ({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "integer"}}, {"b": "x"}, False),
        ({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}, {"x-a": 1}, True),
        ({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}, {"y": 1}, False),
        ({"contains": {"type": "integer"}, "minContains": 2}, [1, "a"], False),
        ({"if": {"type": "integer"}, "then": {"minimum": 3}}, 1, False),
        ({}, None, True),
    ],
)
def test_values_are_judged_as_json_schema_says(schema: Schema, value: JsonValue, valid: bool) -> None:
    assert accepts(schema, value) is valid


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_accepted_format_really_refuses_something(name: str) -> None:
    assert any(not accepts({"format": name}, text) for text in ("\x00 [", "a b", "{", "//["))


def test_equal_schemas_share_one_validator() -> None:
    assert compile_schema({"type": "object", "minProperties": 1}) is compile_schema(
        {"minProperties": 1.0, "type": "object"}
    )
