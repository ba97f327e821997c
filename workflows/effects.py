"""The effect ledger: what each call that may change the world came to."""

from collections.abc import Iterable

from contracts.messages import ToolCall
from contracts.outcomes import ToolOutcome
from contracts.runs import EffectRecord
from workflows.journal import Journal

# Only these say that nothing happened: the tool or the runtime refused before the effect. An exception, a timeout or
# a cancellation may have come before or after it.
_NOT_DONE = frozenset({"invalid_input", "not_found", "permission_denied", "conflict", "rate_limited", "unavailable"})


class EffectLedger:
    """One entry a call, written as `unknown` before its first attempt and settled by its outcome."""

    def __init__(self, journal: Journal, records: Iterable[EffectRecord] = ()) -> None:
        self._journal = journal
        self._records = {record.call_id: record for record in records}

    def intend(self, call: ToolCall) -> None:
        """Note that the call is about to be made: from here on its effect is unknown until settled."""
        self._records[call.call_id] = EffectRecord(call_id=call.call_id, tool=call.tool, state="unknown")

    def settle(self, call: ToolCall, outcome: ToolOutcome) -> None:
        """Note what the call came to."""
        if outcome.ok:
            state = "done"
        elif outcome.error is not None and outcome.error.category in _NOT_DONE:
            state = "failed"
        else:
            self._journal.record("effect_unknown", call_id=call.call_id, tool=call.tool)
            return
        self._records[call.call_id] = self._records[call.call_id].model_copy(update={"state": state})

    @property
    def records(self) -> tuple[EffectRecord, ...]:
        """All entries, in call order."""
        return tuple(self._records.values())
