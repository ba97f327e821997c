"""What a tool's return value means to the model, and that it always fits into history."""

import enum
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, JsonValue

from activities.returned import outcome_of
from contracts.outcomes import OUTCOME_MAX_BYTES, ToolOutcome, failure, full_text


class Receipt(BaseModel):
    order_id: str
    total: Decimal = Decimal("9.99")


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    at: datetime


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"a": [1, None, True]}, {"a": [1, None, True]}),
        ([], []),
        (False, False),
        (0, 0),
        (2**70, 2**70),
        (date(2026, 11, 30), "2026-11-30"),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Colour.RED, "red"),
        ((1, {2}), [1, [2]]),
        (Receipt(order_id="o"), {"order_id": "o", "total": "9.99"}),
        (Point(1, datetime(2026, 11, 30, tzinfo=UTC)), {"x": 1, "at": "2026-11-30T00:00:00Z"}),
        ({1: "a"}, {"1": "a"}),
        (b"text", "text"),
        ({"a": b"\xff\xfe"}, {"a": "__4="}),
        (
            {"score": float("nan"), "max": [float("inf"), -float("inf")]},
            {"score": "NaN", "max": ["Infinity", "-Infinity"]},
        ),
    ],
)
def test_a_result_becomes_legal_json_data(value: object, data: JsonValue) -> None:
    outcome = outcome_of(value)
    assert outcome == ToolOutcome(ok=True, data=data)
    assert ToolOutcome.model_validate_json(outcome.model_dump_json()) == outcome


@pytest.mark.parametrize(
    ("value", "data", "replaced"),
    [
        (["ok \ud83d", "\ude00 \ud83d"], ["ok \ufffd", "\ufffd \ufffd"], 3),
        # A key cannot be written at all and is replaced before anything is counted.
        ({"a": [{"\udcff.txt": 1}], 2: "\ud83d"}, {"a": [{"\ufffd.txt": 1}], "2": "\ufffd"}, 1),
        (["\ufffd"], ["\ufffd"], 0),
    ],
)
def test_what_cannot_be_encoded_is_replaced_and_noted(value: object, data: JsonValue, replaced: int) -> None:
    noted: dict[str, JsonValue] = {"replaced_characters": replaced} if replaced else {}
    assert outcome_of(value) == ToolOutcome(ok=True, data=data, metadata=noted)


def test_texts_outcomes_and_nothing_are_taken_as_they_are() -> None:
    assert outcome_of("ok \ud83d") == ToolOutcome(ok=True, text="ok \ufffd", metadata={"replaced_characters": 1})
    assert outcome_of(None) == ToolOutcome(ok=True)
    assert full_text(outcome_of(None)) == ""
    assert outcome_of(failure("conflict", "no")) == failure("conflict", "no")


def circular() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(180):
        value = [value]
    return value


@pytest.mark.parametrize("value", [object(), {"a": object()}, circular(), deep(), [10**5_000], threading.Lock()])
def test_a_result_that_json_cannot_hold_is_told_after_the_tool_ran(value: object) -> None:
    outcome = outcome_of(value)
    assert outcome.error is not None
    assert (outcome.error.category, outcome.error.code, outcome.error.retryable) == (
        "internal",
        "result_not_json",
        False,
    )
    kind = type(value).__name__
    assert outcome.error.message == f"the tool ran, but its result of type {kind} cannot be written as JSON"


def test_a_result_too_large_is_cut_and_says_so() -> None:
    outcome = outcome_of({"text": "x" * (OUTCOME_MAX_BYTES + 1)})
    assert len(outcome.model_dump_json()) < OUTCOME_MAX_BYTES
    assert outcome.metadata == {"original_bytes": OUTCOME_MAX_BYTES + 12}
