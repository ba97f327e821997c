"""The run's event log. Revision and sequence are one number: each event is one change of the run."""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from pydantic import JsonValue
from temporalio import workflow

from contracts.events import Event, EventsPage, EventsQuery, EventType
from contracts.text import cut, encodable

HELD_EVENTS = 2_000
CARRIED_EVENTS = 200
TEXT_MAX_BYTES = 1_000
PAGE_MAX_BYTES = 1_048_576


class Journal:
    """Numbers events without gaps over the whole chain of executions and holds the latest ones."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=HELD_EVENTS)
        self.sequence = 0

    def resume(self, carried: Iterable[Event], sequence: int) -> None:
        """Go on where the previous execution stopped. What a signal recorded before that comes after it."""
        early = [event.model_copy(update={"sequence": sequence + event.sequence}) for event in self._events]
        self._events = deque([*carried, *early], maxlen=HELD_EVENTS)
        self.sequence += sequence

    def record(self, type: EventType, **data: JsonValue) -> None:
        """Add one event; long texts in it are cut, so that nobody can fill the log with one signal."""
        self.sequence += 1
        bounded = {name: _bounded(value) for name, value in data.items() if value is not None}
        self._events.append(Event(sequence=self.sequence, type=type, at=workflow.now(), data=bounded))

    def page(self, query: EventsQuery) -> EventsPage:
        """What comes after a sequence number."""
        first = self._events[0].sequence if self._events else self.sequence + 1
        later = (event for event in self._events if event.sequence > query.after_sequence)
        page: list[Event] = []
        size = 0
        for event in islice(later, query.limit):
            size += len(event.model_dump_json())
            if size > PAGE_MAX_BYTES and page:
                break
            page.append(event)
        return EventsPage(events=tuple(page), first_available=first)

    def latest(self) -> tuple[Event, ...]:
        """What travels to the next execution of the chain."""
        return tuple(self._events)[-CARRIED_EVENTS:]


def _bounded(value: JsonValue) -> JsonValue:
    return cut(encodable(value), TEXT_MAX_BYTES) if isinstance(value, str) else value
