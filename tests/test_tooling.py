"""What users write: decorated functions, what is refused of them, and how they are called."""

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, Literal, assert_type

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from activities.arguments import read_arguments
from activities.schemas import compile_schema
from activities.tooling import Tool, ToolError, ToolRefused, tool
from contracts.agents import AgentSpec
from contracts.policies import RetryRule
from contracts.tools import ToolContract, ToolInvocation

OrderId = Annotated[str, Field(pattern=r"^ord_\d+$", description="The order's id.")]


class Order(BaseModel):
    order_id: str
    total: Decimal = Decimal("9.99")


class RefundRequest(BaseModel):
    model_config = ConfigDict(strict=True)
    order_id: OrderId
    on: date
    reason: Literal["broken", "late"] = "late"


@tool(side_effect="read")
def find_order(order_id: OrderId, copy: bool = False) -> Order:
    """Look up one
    order.

    Not told to the model.
    """
    return Order(order_id=order_id, total=Decimal(1) if copy else Decimal(2))


@tool(side_effect="write", idempotency="idempotent_with_key", approval="always", timeout=30)
async def Refund_Order(request: RefundRequest, invocation: ToolInvocation) -> dict[str, str]:
    """Refund an order."""
    return {"order": request.order_id, "on": request.on.isoformat(), "key": invocation.idempotency_key}


def invocation_of(made: Tool, arguments: dict[str, JsonValue]) -> ToolInvocation:
    return ToolInvocation(
        call_id="call_1",
        tool=made.name,
        version=made.version,
        arguments=arguments,
        idempotency_key="key",
        action_digest="digest",
    )


def call(made: Tool, **arguments: JsonValue) -> object:
    return made.bind(arguments, invocation_of(made, arguments))()


def test_a_function_gives_name_description_and_schema() -> None:
    assert find_order.name == "find_order"
    assert find_order.description == "Look up one order."
    assert find_order.input_schema == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "pattern": r"^ord_\d+$", "description": "The order's id."},
            "copy": {"type": "boolean", "default": False},
        },
        "required": ["order_id"],
        "additionalProperties": False,
    }


def test_one_model_parameter_is_the_schema_and_the_invocation_is_not_in_it() -> None:
    assert Refund_Order.name == "refund_order"
    properties = Refund_Order.input_schema["properties"]
    assert isinstance(properties, dict)
    assert set(properties) == {"order_id", "on", "reason"}
    assert (Refund_Order.approval, Refund_Order.timeout, Refund_Order.is_async) == ("always", 30, True)


def test_two_parameters_are_two_fields_even_if_one_is_a_model() -> None:
    @tool(side_effect="none", description="Compare.")
    def compare(order: Order, count: int = 1) -> str:
        return f"{type(order).__name__} {order.total} {count}"

    assert call(compare, order={"order_id": "o", "total": "1.50"}) == "Order 1.50 1"


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    @tool(side_effect="none", name="now", description="The time.", version="7")
    def current_time(invocation: ToolInvocation) -> str:
        return invocation.call_id

    assert current_time.input_schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert (current_time.name, current_time.version) == ("now", "7")
    assert call(current_time) == "call_1"


def test_a_tool_is_still_the_function_with_its_types() -> None:
    assert assert_type(find_order("ord_1", copy=True), Order).total == 1


def test_an_agent_keeps_tools_and_writes_only_their_contracts() -> None:
    agent = AgentSpec(name="desk", instructions="i", model="openai:x", tools=(find_order, Refund_Order))
    assert agent.tools[0] is find_order
    written = agent.model_dump(mode="json")["tools"]
    assert [set(one) for one in written] == [set(ToolContract.model_fields)] * 2
    assert AgentSpec.model_validate(agent.model_dump(mode="json")).digest == agent.digest


def test_annotations_may_be_strings() -> None:
    @tool(side_effect="none", description="d")
    def add_days(start: "date", days: "int", invocation: "ToolInvocation") -> "str":
        return f"{start + timedelta(days)} for {invocation.call_id}"

    assert call(add_days, start="2026-11-30", days=2) == "2026-12-02 for call_1"


def test_a_bound_method_brings_its_state() -> None:
    class Desk:
        def __init__(self, orders: dict[str, int]) -> None:
            self.orders = orders

        def total(self, order_id: str) -> int:
            """What an order costs."""
            return self.orders[order_id]

    assert call(tool(side_effect="read")(Desk({"o": 3}).total), order_id="o") == 3


def test_a_parameter_may_be_named_like_a_method_of_pydantic() -> None:
    @tool(side_effect="none", description="d")
    def odd(json: int, json_: int, copy: Annotated[int, Field(ge=1)] = 3, model_fields: int = 4) -> tuple[int, ...]:
        return json, json_, copy, model_fields

    assert call(odd, json=1, json_=2, model_fields=5) == (1, 2, 3, 5)
    properties = odd.input_schema["properties"]
    assert isinstance(properties, dict)
    assert list(properties) == ["json", "json_", "copy", "model_fields"]
    assert properties["copy"] == {"type": "integer", "minimum": 1, "default": 3}


def test_retries_are_five_where_the_contract_allows_them_and_one_where_not() -> None:
    @tool(side_effect="write", description="d")
    def write(a: int) -> None: ...

    @tool(side_effect="read", description="d", retry=RetryRule(max_attempts=2))
    def read(a: int) -> None: ...

    attempts = [made.retry.max_attempts for made in (find_order, Refund_Order, write, read)]
    assert attempts == [5, 5, 1, 2]


def test_an_annotation_may_bring_description_and_default_without_changing_the_type() -> None:
    @tool(side_effect="none", description="d")
    def count(to: Annotated[int, Field(default=3, description="How far.")]) -> int:
        return to

    assert count.input_schema["properties"] == {"to": {"type": "integer", "default": 3, "description": "How far."}}
    assert "required" not in count.input_schema
    assert (call(count), call(count, to=5)) == (3, 5)


def test_a_description_may_come_from_an_instance_and_a_parameter_may_have_that_name() -> None:
    class Desk:
        description = "What the French desk costs."

        def total(self, description: str) -> str:
            return description

    desk = Desk()
    made = tool(side_effect="read", description=desk.description)(desk.total)
    assert made.description == "What the French desk costs."
    assert made.input_schema["properties"] == {"description": {"type": "string"}}
    assert call(made, description="mine") == "mine"


def test_a_default_fills_what_is_missing_and_null_is_a_value_only_where_the_schema_says_so() -> None:
    @tool(side_effect="none", description="d")
    def pick(unit: Literal["c", "f"] = "c", limit: int | None = 7) -> str:
        return f"{unit} {limit}"

    assert call(pick) == "c 7"
    assert call(pick, limit=None) == "c None"
    found = compile_schema(pick.input_schema).issues({"unit": None, "limit": None})
    assert {issue.pointer for issue in found} == {"/unit"}


def test_raw_json_becomes_a_call_in_three_public_steps() -> None:
    for text in ("", "{}", '```json\n{"order_id": "ord_1"}\n```'):
        arguments = read_arguments(text)
        valid = not compile_schema(find_order.input_schema).issues(arguments)
        assert valid is bool(arguments)
        if valid:
            assert call(find_order, **arguments) == Order(order_id="ord_1", total=Decimal(2))


def no_docstring(a: int) -> None: ...


def no_annotation(a) -> None:  # type: ignore[no-untyped-def]  # the mistake under test
    """D."""


def many(*a: int) -> None:
    """D."""


def any_name(**a: int) -> None:
    """D."""


def positional(a: int, /) -> None:
    """D."""


def private(_a: int) -> None:
    """D."""


def early(invocation: ToolInvocation, a: int) -> None:
    """D."""


def not_json(a: threading.Thread) -> None:
    """D."""


def not_json_either(a: Callable[[], int]) -> None:
    """D."""


def odd_default(a: object = threading.Thread) -> None:
    """D."""


def bad_pattern(a: Annotated[str, Field(pattern="(")]) -> None:
    """D."""


def unresolved(a: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821  # the mistake under test
    """D."""


def generator(a: int) -> Iterator[int]:
    """D."""
    yield a


@pytest.mark.parametrize(
    ("function", "mistake"),
    [
        (no_docstring, "no docstring"),
        (no_annotation, "'a' has no type annotation"),
        (many, "'a' takes any number of values"),
        (any_name, "'a' takes fields of any name"),
        (positional, "'a' is positional-only"),
        (private, "'_a' starts with an underscore"),
        (early, "'invocation': the ToolInvocation comes last"),
        (not_json, "Thread"),
        (not_json_either, "Callable"),
        (odd_default, "default"),
        (bad_pattern, "regex"),
        (unresolved, "Missing"),
        (generator, "returns its result once"),
        (functools.partial(no_docstring, 1), "returns its result once"),
        (Order, "returns its result once"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_by_name(function: Callable[..., object], mistake: str) -> None:
    with pytest.raises(ToolRefused, match=mistake) as refused:
        tool(side_effect="read")(function)
    assert getattr(function, "__qualname__", "partial") in str(refused.value)


def test_a_contract_that_is_refused_names_the_function() -> None:
    with pytest.raises(ToolRefused, match=r"tool .*odd: .*must not be repeated"):

        @tool(side_effect="write", description="d", retry=RetryRule(max_attempts=3), name="x")
        def odd(a: int) -> None: ...

    with pytest.raises(ToolRefused, match=r"tool .*call_model: name: .*reserved"):

        @tool(side_effect="read", description="d")
        def call_model(a: int) -> None: ...


async def test_arguments_arrive_as_python_types_with_defaults() -> None:
    bound = Refund_Order.bind({"order_id": "ord_1", "on": "2026-11-30"}, invocation_of(Refund_Order, {}))
    result = bound()
    assert asyncio.iscoroutine(result)
    assert await result == {"order": "ord_1", "on": "2026-11-30", "key": "key"}


def test_what_only_python_can_check_is_told_as_invalid_input_without_the_value() -> None:
    def even(value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value

    @tool(side_effect="read", description="d")
    def halve(number: Annotated[int, AfterValidator(even)]) -> int:
        return number // 2

    with pytest.raises(ToolError, match="number: Value error, must be even") as refused:
        call(halve, number=12_345)
    assert (refused.value.category, refused.value.code, refused.value.retryable) == (
        "invalid_input",
        "invalid_arguments",
        False,
    )
    assert "12345" not in str(refused.value)
