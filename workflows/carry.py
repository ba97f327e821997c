"""What a run takes along when it continues as new, packed into one field and measured before it is sent."""

import base64
import zlib

from contracts.activities import ModelReply
from contracts.agents import AgentSpec
from contracts.approvals import ApprovalRequest, RecordedDecision
from contracts.context import ExecutionContext
from contracts.events import Event
from contracts.hooks import HookName
from contracts.messages import Message, Usage
from contracts.models import Cost
from contracts.records import Record
from contracts.runs import EffectRecord, RunOptions, ToolResultRecord

# An input over 2 MiB fails the workflow task for ever: stay below, with room for the fields around it.
CARRY_MAX_BYTES = 1_900_000
# More text than this is not packed at all: it would not fit unless it repeated itself, and packing it would take longer
# than a workflow task should.
CARRY_RAW_MAX_BYTES = 8_000_000


class Carry(Record):
    """The whole state of a run between two rounds, or while it waits for people: nothing is in flight."""

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

    def pack(self) -> str:
        """Compressed and in Base64: text shrinks several times, so that far longer runs fit."""
        return base64.b64encode(zlib.compress(self.model_dump_json().encode())).decode()

    @classmethod
    def unpack(cls, packed: str) -> "Carry":
        """The carry that `pack` wrote."""
        return cls.model_validate_json(zlib.decompress(base64.b64decode(packed)))
