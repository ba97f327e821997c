"""The run's own log: what happened, numbered without gaps over the whole chain of executions."""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Literal

from pydantic import Field, JsonValue

from contracts.context import subject_id, with_host
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
    """Events in order. Those before `first_available` are no longer held. `attributes` are those of the run's context,
    once for all its events."""

    events: tuple[Event, ...]
    first_available: int
    attributes: dict[str, str] = {}


class EventEnvelope(Record):
    """One event by itself, as audit logs and event streams of several sources take it: what happened (`name`, `data`),
    in which run (`ids`: its run, trace and request id, as far as they are known) and for whom. `at` is UTC."""

    module: Literal["runtime"] = "runtime"
    name: EventType
    ids: dict[str, str]
    subject_id: str | None
    sequence: int
    at: datetime
    attributes: dict[str, str]
    data: dict[str, JsonValue]


def envelope(
    event: Event, attributes: Mapping[str, str], host: Mapping[str, str] = MappingProxyType({})
) -> EventEnvelope:
    """The envelope of an event, with the attributes of the page it came in. `host` is what the host adds of its own; it
    never takes the place of what the run says of itself."""
    ids = {name: attributes[name] for name in ("run_id", "trace_id", "request_id") if name in attributes}
    return EventEnvelope(
        name=event.type,
        ids=ids,
        subject_id=subject_id(attributes),
        sequence=event.sequence,
        at=event.at,
        attributes=with_host(attributes, host),
        data=event.data,
    )
