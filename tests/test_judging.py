"""What it may cost to judge a value that a model wrote: counted in steps, not in seconds."""

import pytest
from pydantic import JsonValue

from activities.arguments import propose
from activities.keywords import MOST_STEPS, SEARCHED_MAX_CHARACTERS, Budget, identity
from activities.providers.interface import RawToolCall
from activities.schemas import compile_schema
from contracts.messages import InvalidToolCall, ToolCall
from contracts.tools import ToolContract

Schema = dict[str, JsonValue]
TOO_MUCH = "too much to check: send less, or nest it less deeply"


def holding(schema: JsonValue, **definitions: JsonValue) -> Schema:
    return {"type": "object", "properties": {"v": schema}, "$defs": definitions}


def judged(schema: Schema, value: JsonValue) -> tuple[list[str], int]:
    """What is said about the value, and the steps that it took to find out."""
    budget = Budget()
    issues = compile_schema(schema).issues({"v": value}, budget)
    return [issue.message for issue in issues], MOST_STEPS - budget.left


def mixed(count: int) -> list[JsonValue]:
    items: list[JsonValue] = [number if number % 2 else str(number) for number in range(count - 2)]
    return [*items, {"a": [1]}, [None, True]]


def test_finding_an_item_twice_takes_steps_in_proportion_to_the_items() -> None:
    schema = holding({"uniqueItems": True})
    found, steps = judged(schema, mixed(4_000))
    more_found, more_steps = judged(schema, mixed(40_000))
    assert found == more_found == []
    assert 4_000 < steps < 6_000
    assert more_steps < 11 * steps
    assert judged(schema, [*mixed(4_000), {"a": [1.0]}])[0] != []


def test_numbers_chosen_to_collide_are_told_apart_as_fast_as_others() -> None:
    # Python's hash of an integer is its rest modulo this prime.
    items: list[JsonValue] = [number * (2**61 - 1) for number in range(30_000)]
    assert judged(holding({"uniqueItems": True}), items)[0] == []


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (0, -0.0, True),
        (0, None, False),
        (1, "1", False),
        (10**300, 1e300, True),
        (9007199254740993, 9007199254740992.0, False),
        (0.1, 0.1, True),
        (1.5, 15, False),
        (-120, -1.2e2, True),
        (120, 12, False),
        ([1, [2.0]], [1.0, [2]], True),
        ([True], [1], False),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (["a,b"], ["a", "b"], False),
        ("\u00e9", "e\u0301", False),
    ],
)
def test_values_are_equal_as_json_schema_says(one: JsonValue, other: JsonValue, equal: bool) -> None:
    assert (identity(one) == identity(other)) is equal
    assert (judged(holding({"uniqueItems": True}), [one, other])[0] == []) is not equal
    assert (judged(holding({"enum": ["x", other]}), one)[0] == []) is equal
    assert (judged(holding({"const": other}), one)[0] == []) is equal


# Both branches look at both sides, whatever the operator: each level of the value doubles the work.
def operation(op: str) -> JsonValue:
    sides: JsonValue = {"op": {"const": op}, "left": {"$ref": "#/$defs/e"}, "right": {"$ref": "#/$defs/e"}}
    return {"type": "object", "properties": sides, "required": ["op", "left", "right"]}


EXPRESSION: JsonValue = {"oneOf": [{"type": "integer"}, operation("and"), operation("or")]}


def expression(depth: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(depth):
        value = {"op": "and", "left": value, "right": 1}
    return value


def numbers(count: int) -> JsonValue:
    return list(range(count))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (holding({"$ref": "#/$defs/e"}, e=EXPRESSION), expression(60)),
        (holding({"anyOf": [{"items": {"type": "string", "minLength": n}} for n in range(200)]}), numbers(20_000)),
        (holding({"anyOf": [{"minLength": 1, "type": "string"}] * 1_000}), ["x" * 1_000_000]),
        (holding({"items": {"enum": list(range(5_000))}}), numbers(20_000)),
        (holding({"anyOf": [{"items": {"required": [f"f{n}" for n in range(4_000)]}}]}), [{} for _ in range(20_000)]),
        (holding({"contains": {"anyOf": [{"const": f"c{n}"} for n in range(1_000)]}}), numbers(20_000)),
        (holding({"items": {"pattern": r"\s+$"}}), [" " * 4_000 + "x"] * 200),
        (
            holding({"patternProperties": {f"^f{n}$": False for n in range(2_000)}}),
            {f"g{n}": 1 for n in range(20_000)},
        ),
        (holding({"unevaluatedProperties": False, "allOf": [True]}), {f"f{n}": 1 for n in range(20_000)}),
        (holding({"unevaluatedItems": False, "prefixItems": [True]}), numbers(20_000)),
        (
            holding({"items": {"$ref": "#/properties/v"}, "uniqueItems": True}),
            [0, [0, [0, [0, [0, numbers(120_000)]]]]],
        ),
    ],
)
def test_what_costs_too_much_is_said_to_the_model_instead_of_being_paid(schema: Schema, value: JsonValue) -> None:
    found, steps = judged(schema, value)
    assert found == [TOO_MUCH]
    # What a single keyword charges at once it has not spent yet, so that is no measure of the work done.
    assert steps > MOST_STEPS


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (holding({"items": {"type": "integer"}}), numbers(100_000)),
        (holding({"$ref": "#/$defs/e"}, e=EXPRESSION), expression(8)),
        (holding({"items": {"enum": [f"word{n}" for n in range(3_000)]}}), ["word2999"] * 5_000),
        (holding({"items": {"pattern": r"^[a-z]+-\d+$"}}), ["item-12345678"] * 20_000),
        (holding({"pattern": r"\S"}), "x" * 200_000),
        (holding({"items": {"type": "array", "uniqueItems": True}}), [[1, 2, "3"]] * 20_000),
    ],
)
def test_what_is_large_and_plain_is_within_the_budget(schema: Schema, value: JsonValue) -> None:
    assert judged(schema, value)[0] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": r"^(\s*x)*$"},
        {"not": {"pattern": r"r+m"}},
        {"if": {"pattern": "a+"}, "then": False},
        {"format": "uri"},
        {"not": {"format": "email"}},
    ],
)
def test_a_text_too_long_to_search_is_never_valid(schema: JsonValue) -> None:
    (message,) = judged(holding(schema), "x" * (SEARCHED_MAX_CHARACTERS + 1))[0]
    assert message.startswith("a text of 4097 characters cannot be checked for ")
    assert len(message) < 300


@pytest.mark.parametrize("rule", [{"patternProperties": {"^x+$": True}}, {"propertyNames": {"pattern": "^x+$"}}])
def test_the_names_of_fields_are_searched_up_to_the_same_length(rule: Schema) -> None:
    assert judged(holding(rule), {"x" * 4_096: 1})[0] == []
    for closed in (rule, {"additionalProperties": False, **rule}):
        assert judged(holding(closed), {"x" * 4_097: 1})[0][0].startswith("a text of 4097 characters")


@pytest.mark.parametrize("text", ["a{99999999999999999999}", "(" * 4_000, "[", "(?P<a>x)(?P<a>y)"])
def test_a_text_that_its_formats_parser_stumbles_over_is_not_valid(text: str) -> None:
    assert judged(holding({"format": "regex"}), text)[0][0].startswith('must be a valid "regex"')


def test_a_schema_that_names_its_dialect_is_judged_by_the_same_rules_at_every_level() -> None:
    dialect = "https://json-schema.org/draft/2020-12/schema"
    schema: Schema = {
        "$schema": dialect,
        "type": "object",
        "properties": {"v": {"$ref": "#"}, "id": {"pattern": "^[a-z]+$", "$schema": dialect}, "$schema": {}},
    }
    assert judged(schema, {"v": {"id": "ok", "$schema": 1}})[0] == []
    assert judged(schema, {"v": {"id": "newline\n"}})[0] == ['must match the pattern "^[a-z]+$"; it is "newline\\n"']


def test_one_budget_may_be_shared_by_all_calls_of_a_reply() -> None:
    contract = ToolContract(
        name="sum", description="d", input_schema=holding({"items": {"type": "integer"}}), side_effect="read"
    )
    budget = Budget(1_000)
    raw = RawToolCall("sum", '{"v": [' + "1," * 600 + "1]}")
    first = propose(raw, "call_1", {"sum": contract}, truncated=False, budget=budget)
    second = propose(raw, "call_2", {"sum": contract}, truncated=False, budget=budget)
    assert isinstance(first, ToolCall)
    assert isinstance(second, InvalidToolCall)
    assert [issue.message for issue in second.issues] == [TOO_MUCH]
