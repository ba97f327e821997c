"""Derivation: what a Python type says to a model, and that it is enforced."""

import json
import threading
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, JsonValue, RootModel

from activities.derivation import derive_schema
from activities.schemas import SchemaRefused, compile_schema


def issues(schema: dict[str, JsonValue], arguments: JsonValue) -> dict[str, str]:
    return {issue.pointer: issue.message for issue in compile_schema(schema).issues(arguments)}


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Weather(BaseModel):
    city: str
    unit: Unit = Field(Unit.CELSIUS, description="Preferred temperature unit.")


class Node(BaseModel):
    name: str
    children: list["Node"] = []


class Preview(BaseModel):
    mode: Literal["preview"]


class Apply(BaseModel):
    mode: Literal["apply"]
    force: bool


Change = Annotated[Preview | Apply, Field(discriminator="mode")]


class Line(BaseModel):
    title: str = Field(min_length=1, title="Shown above the line")
    amount: Decimal
    on: date | None = None


class Order(BaseModel):
    """One order."""

    lines: list[Line]
    labels: dict[str, str] = {}
    change: Change = Preview(mode="preview")


class Dry(BaseModel):
    dry_run: bool
    amount: int
    ratio: float


def test_a_model_with_an_enumeration_gives_the_documented_schema() -> None:
    assert derive_schema(Weather) == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {
                "type": "string",
                "enum": ["celsius", "fahrenheit"],
                "default": "celsius",
                "description": "Preferred temperature unit.",
            },
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_a_model_without_fields_gives_an_empty_closed_object() -> None:
    class Nothing(BaseModel):
        pass

    assert derive_schema(Nothing) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_nested_records_are_closed_and_free_dictionaries_stay_open() -> None:
    schema = derive_schema(Order)
    found = issues(
        schema, {"lines": [{"title": "x", "amount": 1, "extra": 1}], "labels": {"any": "thing"}, "extra": True}
    )
    assert set(found) == {"/lines/0/extra", "/extra"}
    assert schema["description"] == "One order."


def test_a_model_that_allows_extra_fields_keeps_them() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        name: str

    assert not issues(derive_schema(Open), {"name": "x", "more": 1})


def test_generated_titles_are_removed_but_a_property_named_title_and_a_written_title_stay() -> None:
    text = json.dumps(derive_schema(Order))
    assert '"title": {"minLength": 1, "title": "Shown above the line", "type": "string"}' in text
    assert "Amount" not in text
    assert '"title": "Line"' not in text


def test_a_self_referencing_model_gets_a_plain_object_at_the_root() -> None:
    schema = derive_schema(Node)
    assert schema["type"] == "object"
    assert "$ref" not in schema
    assert not issues(schema, {"name": "a", "children": [{"name": "b", "children": [{"name": "c"}]}]})
    assert set(issues(schema, {"name": "a", "children": [{"name": "b", "children": [{}]}]})) == {
        "/children/0/children/0/name"
    }


def test_a_union_at_the_root_is_refused_with_the_models_name() -> None:
    class Choice(RootModel[Change]):
        pass

    with pytest.raises(SchemaRefused, match=r"Choice: .*object"):
        derive_schema(Choice)


def test_a_type_that_json_does_not_have_is_refused() -> None:
    class Odd(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        thread: threading.Thread

    with pytest.raises(SchemaRefused, match="Odd: "):
        derive_schema(Odd)


def test_a_default_that_json_does_not_have_is_refused() -> None:
    class Odd(BaseModel):
        value: object = object()

    with pytest.raises(SchemaRefused, match=r"Odd: .*default"):
        derive_schema(Odd)


def test_what_a_python_type_says_beyond_the_validator_is_not_published() -> None:
    class Place(BaseModel):
        path: Path
        change: Change

    properties = derive_schema(Place)["properties"]
    assert isinstance(properties, dict)
    assert properties["path"] == {"type": "string"}
    assert "discriminator" not in json.dumps(properties)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"dry_run": "NO", "amount": True, "ratio": "NaN"}, {"/dry_run", "/amount", "/ratio"}),
        ({"dry_run": 1, "amount": "5", "ratio": "1e400"}, {"/dry_run", "/amount", "/ratio"}),
        ({"dry_run": False, "amount": 5, "ratio": 0.5, "force": True}, {"/force"}),
        ({"dry_run": False, "amount": 5.0, "ratio": 1}, set()),
    ],
)
def test_r10_types_are_enforced_as_published_one_line_a_field(arguments: JsonValue, fields: set[str]) -> None:
    found = compile_schema(derive_schema(Dry)).issues(arguments)
    assert {issue.pointer for issue in found} == fields
    assert len(found) == len(fields)
    assert not any("\n" in issue.message for issue in found)


def test_an_alternative_is_judged_by_the_one_that_was_meant() -> None:
    schema = derive_schema(Order)
    line: JsonValue = {"title": "x", "amount": 1}
    assert issues(schema, {"lines": [line], "change": {"mode": "apply"}}) == {"/change/force": 'missing field "force"'}
    assert "preview" in issues(schema, {"lines": [line], "change": {"mode": "other"}})["/change"]


def test_every_kind_of_value_has_its_schema() -> None:
    class Inner(BaseModel):
        deep: bool

    class Every(BaseModel):
        text: str
        flag: bool
        whole: int
        number: float
        unit: Unit
        maybe: str | None = None
        listed: list[int]
        inner: Inner
        told: Annotated[int, Field(description="Told.", title="Titled")] = 3

    assert derive_schema(Every) == {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "flag": {"type": "boolean"},
            "whole": {"type": "integer"},
            "number": {"type": "number"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "listed": {"type": "array", "items": {"type": "integer"}},
            "inner": {"$ref": "#/$defs/Inner"},
            "told": {"type": "integer", "default": 3, "description": "Told.", "title": "Titled"},
        },
        "required": ["text", "flag", "whole", "number", "unit", "listed", "inner"],
        "additionalProperties": False,
        "$defs": {
            "Inner": {
                "type": "object",
                "properties": {"deep": {"type": "boolean"}},
                "required": ["deep"],
                "additionalProperties": False,
            }
        },
    }
