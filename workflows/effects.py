"""The effect ledger: what each call that may change the world came to."""

from collections.abc import Iterable

from contracts.messages import ToolCall
from contracts.outcomes import ToolOutcome, says_done, says_not_done
from contracts.runs import EffectRecord, EffectState
from workflows.journal import Journal


class EffectLedger:
    """One entry a call, written as `unknown` before its first attempt and settled by its outcome."""

    def __init__(self, journal: Journal, records: Iterable[EffectRecord] = ()) -> None:
        self._journal = journal
        self._records = {record.call_id: record for record in records}
        self._in_flight: set[str] = set()

    def intend(self, call: ToolCall) -> None:
        """Note that the call is about to be made: from here on its effect is unknown until settled."""
        self._records[call.call_id] = EffectRecord(call_id=call.call_id, tool=call.tool, state="unknown")
        self._in_flight.add(call.call_id)

    def settle(self, call: ToolCall, outcome: ToolOutcome, compensated: bool | None = None) -> None:
        """Note what the call came to; `compensated` says how an undo went, where there was one."""
        self._in_flight.discard(call.call_id)
        state: EffectState
        if compensated is not None:
            state = "compensated" if compensated else "compensation_failed"
        elif says_done(outcome):
            state = "done"
        elif says_not_done(outcome):
            state = "failed"
        else:
            self._journal.record("effect_unknown", call_id=call.call_id, tool=call.tool)
            return
        self._records[call.call_id] = self._records[call.call_id].model_copy(update={"state": state})

    @property
    def records(self) -> tuple[EffectRecord, ...]:
        """All entries, in call order."""
        return tuple(self._records.values())

    @property
    def needs_operator(self) -> bool:
        """Whether nobody knows what a call came to that is over, or it could not be undone."""
        uncertain = (each for each in self._records.values() if each.state in ("unknown", "compensation_failed"))
        return any(each.call_id not in self._in_flight for each in uncertain)
