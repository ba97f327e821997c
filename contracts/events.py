"""The run's own log: what happened, numbered without gaps over the whole chain of executions."""

from datetime import datetime
from typing import Literal

from pydantic import Field, JsonValue

from contracts.records import Record

EventType = Literal[
    "run_started",
    "model_started",
    "model_completed",
    "model_failed",
    "model_replaced",
    "tool_proposed",
    "tool_invalid",
    "tool_refused",
    "approval_requested",
    "approval_recorded",
    "approval_refused",
    "approval_expired",
    "tool_started",
    "tool_completed",
    "tool_failed",
    "tool_output_truncated",
    "tool_output_projection_recorded",
    "effect_unknown",
    "effect_reconciled",
    "compensation_started",
    "compensation_completed",
    "compensation_failed",
    "message_added",
    "signal_refused",
    "cancel_accepted",
    "cancel_refused",
    "continued_as_new",
    "run_completed",
    "run_failed",
    "run_cancelled",
    "run_timed_out",
]


class Event(Record):
    """One entry. `sequence` counts from 1, `at` is UTC; `data` is documented per type in docs/protocol.md."""

    sequence: int
    type: EventType
    at: datetime
    data: dict[str, JsonValue] = {}


class EventsQuery(Record):
    """Argument of the query `events`: what comes after this sequence number, at most `limit` entries."""

    after_sequence: int = Field(default=0, ge=0)
    limit: int = Field(default=256, ge=1, le=1_000)


class EventsPage(Record):
    """Events in order. Those before `first_available` are no longer held."""

    events: tuple[Event, ...]
    first_available: int
