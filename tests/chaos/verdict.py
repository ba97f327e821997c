"""What a run came to, held against the world: nothing lost, nothing doubled, nothing unknown that is not reported."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from contracts.effects import EffectState
from contracts.events import Event
from contracts.runs import AgentRunResult, ToolResultRecord
from tests.chaos.plans import STEPS, Expected, Plan
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


def judge(plan: Plan, result: AgentRunResult, effects: Sequence[Effect], events: Iterable[Event]) -> Tally:
    """Each step of a run that has ended."""
    tally = Tally()
    ended = "failed" if plan.fails else "completed"
    if result.status != ended or len(result.tool_results) != len(STEPS):
        tally.complaints.append(f"it is {result.status} after {len(result.tool_results)} calls: {result.error}")
    states = {effect.call_id: effect.state for effect in result.effects}
    told_unknown = {event.data["call_id"] for event in events if event.type == "effect_unknown"}
    for (step, tool), record in zip(STEPS.items(), result.tool_results, strict=False):
        found = [effect.key for effect in effects if effect.step == step]
        state = states.get(record.call_id)
        unknown = tool == "wire" and not record.ok and plan.expected(step) == "done"
        if unknown:
            reported = _says_unknown(record) and state == "unknown" and record.call_id in told_unknown
            tally.unknown += reported
            tally.unreported += not reported
        wanted = 1 if plan.expected(step) == "done" else 0
        tally.doubled += max(0, len(found) - wanted)
        if not unknown:
            tally.lost += wanted > 0 and record.idempotency_key not in found
            if state != _STATES[plan.expected(step)]:
                tally.complaints.append(f"{tool} {step} is {state} in the ledger: {record.error}")
    if tally.lost or tally.doubled or tally.unreported:
        tally.complaints.append(f"{tally.lost} lost, {tally.doubled} doubled, {tally.unreported} unreported: {effects}")
    tally.complaints = [f"{result.workflow_id}: {complaint}" for complaint in tally.complaints]
    return tally


_STATES: Mapping[Expected, EffectState | None] = {"done": "done", "undone": "compensated", "not run": None}


def _says_unknown(record: ToolResultRecord) -> bool:
    return record.error is not None and record.error.category == "unknown_outcome"
