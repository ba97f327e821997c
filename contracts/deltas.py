"""What people who watch see of a reply while it is written, and how to put it together again.

Deltas are told at least once and by the way: they are in no history, and what counts is what the run records.
"""

from bisect import insort
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import attrgetter
from typing import Literal

from contracts.messages import Usage
from contracts.records import Record, SparseRecord

DeltaType = Literal[
    "model_first_event",
    "model_content_delta",
    "model_reasoning_delta",
    "model_reasoning_completed",
    "model_refusal_delta",
    "tool_call_building",
    "tool_call_ready",
    "model_completed",
    "model_failed",
]


class DeltaEvent(SparseRecord):
    """One thing that happened to one attempt of one model call.

    `key` names the call and is the same for each of its attempts; `attempt` counts from 1, and `sequence` from 1 within
    an attempt, without gaps. After a reset of the workflow a call is made again under another `run_id`. What else a
    type has is documented in docs/protocol.md: `text` is a piece for the deltas and tool_call_building, and the whole
    for model_completed; `call` is the position of a tool call in the reply, from 0.
    """

    workflow_id: str
    run_id: str
    key: str
    attempt: int
    sequence: int
    type: DeltaType
    text: str = ""
    call: int | None = None
    call_id: str = ""
    tool: str = ""
    finish_reason: str | None = None
    usage: Usage = Usage()
    error: str = ""
    retried: bool = False


class DeltaBatch(Record):
    """What a receiver of posted deltas gets: events of one attempt, in order."""

    events: tuple[DeltaEvent, ...]


@dataclass(frozen=True)
class BuildingCall:
    """A tool call that is being written. Nothing runs of it, and nobody is asked about it, before it is ready."""

    call: int
    tool: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class ReadyCall:
    """A tool call of the whole reply, valid by its schema. Whether it runs is up to the run."""

    call_id: str
    tool: str


@dataclass(frozen=True)
class _Shown:
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    building: tuple[BuildingCall, ...] = ()
    ready: tuple[ReadyCall, ...] = ()
    end: DeltaEvent | None = None

    def after(self, event: DeltaEvent) -> "_Shown":
        match event.type:
            case "model_content_delta":
                return replace(self, text=self.text + event.text)
            case "model_reasoning_delta":
                return replace(self, reasoning=self.reasoning + event.text)
            case "model_refusal_delta":
                return replace(self, refusal=self.refusal + event.text)
            case "tool_call_building":
                return replace(self, building=_built(self.building, event))
            case "tool_call_ready":
                return replace(self, ready=(*self.ready, ReadyCall(event.call_id, event.tool)))
            case "model_completed":
                return replace(self, text=event.text, building=(), end=event)
            case "model_failed":
                return replace(self, building=(), end=event)
        return self


@dataclass(frozen=True)
class DeltaView:
    """One model call as a viewer shows it: a pure fold over its events, in any order, repeated or lost.

    A higher attempt takes the place of what was shown, and a lower one changes nothing any more. Events of other calls,
    and of other runs, change nothing. Two views that took the same events are equal.
    """

    run_id: str
    key: str
    attempt: int = 0
    # Up to here nothing of the attempt is missing.
    sequence: int = 0
    _prefix: _Shown = field(default_factory=_Shown, repr=False)
    _beyond: tuple[DeltaEvent, ...] = field(default=(), repr=False)

    def after(self, event: DeltaEvent) -> "DeltaView":
        """The view with one more event."""
        if (event.run_id, event.key) != (self.run_id, self.key) or event.attempt < self.attempt:
            return self
        if event.attempt > self.attempt:
            return DeltaView(self.run_id, self.key, event.attempt).after(event)
        if event.sequence <= self.sequence or any(held.sequence == event.sequence for held in self._beyond):
            return self
        beyond = [*self._beyond]
        insort(beyond, event, key=attrgetter("sequence"))
        sequence, shown = self.sequence, self._prefix
        while beyond and beyond[0].sequence == sequence + 1:
            sequence, shown = sequence + 1, shown.after(beyond.pop(0))
        return replace(self, sequence=sequence, _prefix=shown, _beyond=tuple(beyond))

    @property
    def position(self) -> tuple[int, int]:
        """(attempt, sequence) up to which nothing is missing: a viewer that comes back asks for what is greater."""
        return self.attempt, self.sequence

    @property
    def gap(self) -> bool:
        """Whether an event is missing before one that was seen: what is shown may lack a piece."""
        return bool(self._beyond)

    @property
    def complete(self) -> bool:
        """Whether the model has answered. Then the text is whole, whatever was missing of it before."""
        return self._end == "model_completed"

    @property
    def failed(self) -> bool:
        """Whether the attempt failed. What it said stays until another attempt begins to speak."""
        return self._end == "model_failed"

    @property
    def text(self) -> str:
        """The reply's text, as far as it is known."""
        return self._shown.text

    @property
    def reasoning(self) -> str:
        """What the model let be seen of its reasoning."""
        return self._shown.reasoning

    @property
    def refusal(self) -> str:
        """The words in which the model refused."""
        return self._shown.refusal

    @property
    def building(self) -> tuple[BuildingCall, ...]:
        """The tool calls that are being written, in the reply's order; none once the attempt is over."""
        return self._shown.building

    @property
    def ready(self) -> tuple[ReadyCall, ...]:
        """The tool calls of the whole reply that may run."""
        return self._shown.ready

    @property
    def _shown(self) -> _Shown:
        return reduce(_Shown.after, self._beyond, self._prefix)

    @property
    def _end(self) -> str:
        end = self._shown.end
        return end.type if end else ""


def _built(building: tuple[BuildingCall, ...], event: DeltaEvent) -> tuple[BuildingCall, ...]:
    by_call = {each.call: each for each in building}
    known = by_call.get(event.call or 0, BuildingCall(event.call or 0))
    by_call[known.call] = BuildingCall(known.call, event.tool or known.tool, known.arguments + event.text)
    return tuple(by_call[call] for call in sorted(by_call))
