"""What a run takes along when it continues as new, packed into one field and measured before it is sent."""

import base64
import zlib
from datetime import datetime

from contracts.activities import ModelReply
from contracts.agents import AgentSpec
from contracts.approvals import ApprovalRequest, RecordedDecision
from contracts.context import ExecutionContext
from contracts.effects import EffectRecord, LedgerEntry
from contracts.events import Event
from contracts.hooks import HookName
from contracts.messages import Message, Usage
from contracts.models import Cost
from contracts.outcomes import ToolOutcome
from contracts.records import Record, SparseRecord
from contracts.runs import RunOptions, ToolResultRecord, UserMessage

# An input over 2 MiB fails the workflow task for ever: stay below, with room for the fields around it.
CARRY_MAX_BYTES = 1_900_000
# More text than this is not packed at all: it would not fit unless it repeated itself, and packing it would take longer
# than a workflow task should.
CARRY_RAW_MAX_BYTES = 8_000_000
# How much of the latest messages is tried to be taken along where all of them do not fit.
LATEST_MAX_BYTES = (1_200_000, 600_000, 200_000)


class CarriedAnswer(SparseRecord):
    """A call of an open round that is answered already."""

    call_id: str
    outcome: ToolOutcome
    duration_seconds: float = 0.0
    idempotency_key: str | None = None


class Carry(Record):
    """The whole state of a run between two rounds or two calls, or while it waits for people: nothing is in flight."""

    agent: AgentSpec
    context: ExecutionContext
    options: RunOptions
    transcript: tuple[Message, ...]
    events: tuple[Event, ...]
    sequence: int
    rounds: int
    tool_calls: int
    next_call: int
    unknown_tools: int
    usage: Usage
    cost: Cost = Cost()
    fallbacks: int = 0
    model_calls: int = 0
    hooks: tuple[HookName, ...] = ()
    search_attributes: tuple[str, ...] = ()
    effects: tuple[EffectRecord, ...]
    tool_results: tuple[ToolResultRecord, ...]
    tool_results_omitted: int
    previous_run_id: str
    open_reply: ModelReply | None = None
    pending_approvals: tuple[ApprovalRequest, ...] = ()
    decisions: tuple[RecordedDecision, ...] = ()
    answers: tuple[CarriedAnswer, ...] = ()
    # The details of those effects that can still be undone.
    undoable: tuple[LedgerEntry, ...] = ()
    failures_by_tool: dict[str, int] = {}
    waiting_messages: tuple[UserMessage, ...] = ()
    seen_messages: tuple[str, ...] = ()
    transcript_first: int = 0
    transcript_prompt: int = 0
    started_at: datetime | None = None
    deadline: datetime | None = None
    behaviour: int = 0

    def pack(self) -> str:
        """Compressed and in Base64: text shrinks several times, so that far longer runs fit."""
        return base64.b64encode(zlib.compress(self.model_dump_json().encode())).decode()

    @classmethod
    def unpack(cls, packed: str) -> "Carry":
        """The carry that `pack` wrote."""
        return cls.model_validate_json(zlib.decompress(base64.b64decode(packed)))
