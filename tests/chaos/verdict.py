"""What a run came to, held against the world: nothing lost, nothing doubled, nothing unknown that is not reported."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from contracts.events import Event
from contracts.runs import AgentRunResult, ToolResultRecord
from tests.chaos.plans import STEPS
from tests.chaos.world import Effect


@dataclass
class Tally:
    """What was counted at one boundary. `unknown` are outcomes of the third kind of tool that nobody saw and the run
    says so, `unreported` those of which it says anything else."""

    kills: int = 0
    lost: int = 0
    doubled: int = 0
    unknown: int = 0
    unreported: int = 0
    complaints: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Count these too."""
        self.kills += other.kills
        self.lost += other.lost
        self.doubled += other.doubled
        self.unknown += other.unknown
        self.unreported += other.unreported
        self.complaints += other.complaints

    @property
    def clean(self) -> bool:
        """Whether it is as promised."""
        return not (self.lost or self.doubled or self.unreported or self.complaints)


def judge(result: AgentRunResult, effects: Sequence[Effect], events: Iterable[Event]) -> Tally:
    """Each step of a run that has ended."""
    tally = Tally()
    told_unknown = {event.data["call_id"] for event in events if event.type == "effect_unknown"}
    states = {effect.call_id: effect.state for effect in result.effects}
    if len(result.tool_results) != len(STEPS) or result.status != "completed":
        tally.complaints.append(f"{result.workflow_id} is {result.status} after {len(result.tool_results)} calls")
    for (step, tool), record in zip(STEPS.items(), result.tool_results, strict=False):
        state = states.get(record.call_id)
        name = f"{result.workflow_id}, {tool} {step}"
        unknown = tool == "wire" and not record.ok
        reported = _says_unknown(record) and state == "unknown" and record.call_id in told_unknown
        done = [effect for effect in effects if effect.step == step]
        _judge_step(tally, record, done, name, unknown=unknown, reported=reported)
        if record.ok and state != "done":
            tally.complaints.append(f"{name}: it went well, and the ledger says {state}")
    return tally


def _judge_step(
    tally: Tally, record: ToolResultRecord, effects: Sequence[Effect], name: str, *, unknown: bool, reported: bool
) -> None:
    if len(effects) > 1:
        tally.doubled += 1
        tally.complaints.append(f"{name}: done {len(effects)} times")
    if unknown:
        tally.unknown += reported
        tally.unreported += not reported
        if not reported:
            tally.complaints.append(f"{name}: nobody saw its end, and the run does not say so: {record.error}")
    elif not record.ok or record.idempotency_key not in {effect.key for effect in effects}:
        tally.lost += 1
        tally.complaints.append(f"{name}: lost ({record.error or 'said to be done'})")


def _says_unknown(record: ToolResultRecord) -> bool:
    return record.error is not None and record.error.category == "unknown_outcome"
