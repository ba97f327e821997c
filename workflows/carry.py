"""What a run takes along when it continues as new, packed into one field and measured before it is sent."""

import base64
import zlib

from contracts.agents import AgentSpec
from contracts.context import ExecutionContext
from contracts.events import Event
from contracts.messages import Message, Usage
from contracts.records import Record
from contracts.runs import EffectRecord, RunOptions, ToolResultRecord

# An input over 2 MiB fails the workflow task for ever: stay below, with room for the fields around it.
CARRY_MAX_BYTES = 1_900_000


class Carry(Record):
    """The whole state of a run between two rounds: nothing in flight, nobody waiting."""

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
    effects: tuple[EffectRecord, ...]
    tool_results: tuple[ToolResultRecord, ...]
    tool_results_omitted: int
    previous_run_id: str

    def pack(self) -> str:
        """Compressed and in Base64: text shrinks several times, so that far longer runs fit."""
        return base64.b64encode(zlib.compress(self.model_dump_json().encode())).decode()

    @classmethod
    def unpack(cls, packed: str) -> "Carry":
        """The carry that `pack` wrote."""
        return cls.model_validate_json(zlib.decompress(base64.b64decode(packed)))
