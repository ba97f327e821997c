"""The effect ledger: what each call that may change the world came to, and what is needed to undo it."""

from collections.abc import Iterable, Sequence

from contracts.context import ExecutionContext
from contracts.effects import Compensation, EffectRecord, EffectState, LedgerEntry, LedgerPage, LedgerQuery
from contracts.messages import ToolCall
from contracts.outcomes import ToolOutcome, says_done, says_not_done
from contracts.tools import ToolContract, ToolInvocation
from workflows.journal import Journal

# The latest effects that state and results show: so many, in so many bytes of JSON. An undo's text may be long.
SHOWN_EFFECTS = 1_000
SHOWN_EFFECTS_MAX_BYTES = 524_288


class EffectLedger:
    """One entry a call, written as `unknown` before its first attempt and settled by its outcome."""

    def __init__(
        self, journal: Journal, records: Iterable[EffectRecord] = (), undoable: Iterable[LedgerEntry] = ()
    ) -> None:
        self._journal = journal
        self._entries = {record.call_id: LedgerEntry(effect=record) for record in records}
        self._entries.update({entry.effect.call_id: entry for entry in undoable})
        self._in_flight: set[str] = set()

    def intend(self, call: ToolCall, contract: ToolContract, invocation: ToolInvocation) -> None:
        """Note that the call is about to be made: from here on its effect is unknown until settled."""
        effect = EffectRecord(call_id=call.call_id, tool=call.tool, state="unknown")
        # The context is the run's own, and the same for all.
        kept = invocation.model_copy(update={"context": ExecutionContext()}) if contract.compensation else None
        self._entries[call.call_id] = LedgerEntry(effect=effect, invocation=kept)
        self._in_flight.add(call.call_id)

    def settle(self, call: ToolCall, outcome: ToolOutcome, compensation: Compensation | None = None) -> None:
        """Note what the call came to; `compensation` says how an undo went, where there was one."""
        self._in_flight.discard(call.call_id)
        entry = self._entries[call.call_id]
        if entry.invocation is not None:
            attempt = outcome.metadata.get("tool_attempt")
            attempted = entry.invocation.model_copy(update={"attempt": attempt if isinstance(attempt, int) else 1})
            entry = entry.model_copy(update={"invocation": attempted, "outcome": outcome})
        self._entries[call.call_id] = entry
        if compensation is not None:
            self.compensated(call.call_id, compensation)
        elif says_done(outcome):
            self._set(call.call_id, "done")
        elif says_not_done(outcome):
            self._set(call.call_id, "failed")
        else:
            self._journal.record("effect_unknown", call_id=call.call_id, tool=call.tool)

    def compensated(self, call_id: str, compensation: Compensation) -> None:
        """Note what undoing an effect came to."""
        state: EffectState = "compensation_failed" if compensation.state == "failed" else "compensated"
        self._set(call_id, state, compensation)

    @property
    def records(self) -> tuple[EffectRecord, ...]:
        """All effects, in call order."""
        return tuple(entry.effect for entry in self._entries.values())

    @property
    def shown(self) -> tuple[EffectRecord, ...]:
        """The latest effects, in call order, as many as state and result show."""
        return latest(self.records)

    @property
    def undoable(self) -> tuple[LedgerEntry, ...]:
        """The effects that can still be undone, in call order."""
        return tuple(entry for entry in self._entries.values() if entry.is_undoable)

    @property
    def needs_operator(self) -> bool:
        """Whether nobody knows what a call came to that is over, or it could not be undone."""
        uncertain = (each for each in self.records if each.state in ("unknown", "compensation_failed"))
        return any(each.call_id not in self._in_flight for each in uncertain)

    def page(self, query: LedgerQuery, context: ExecutionContext) -> LedgerPage:
        """Entries before `query.before`, newest first, within `query.max_bytes` but at least one."""
        entries = tuple(self._entries.values())
        first = end = len(entries) if query.before is None else min(query.before, len(entries))
        size = 0
        while first > 0:
            size += len(entries[first - 1].model_dump_json().encode())
            if size > query.max_bytes and first < end:
                break
            first -= 1
        return LedgerPage(entries=entries[first:end][::-1], next=first, total=len(entries), context=context)

    def _set(self, call_id: str, state: EffectState, compensation: Compensation | None = None) -> None:
        entry = self._entries[call_id]
        effect = entry.effect.model_copy(update={"state": state, "compensation": compensation})
        kept = LedgerEntry(effect=effect, invocation=entry.invocation, outcome=entry.outcome)
        # What cannot be undone any more need not be carried along.
        self._entries[call_id] = kept if kept.is_undoable else LedgerEntry(effect=effect)


def latest(effects: Sequence[EffectRecord]) -> tuple[EffectRecord, ...]:
    """The last ones of these, as many as a payload shows."""
    first, size = len(effects), 0
    for effect in effects[: -SHOWN_EFFECTS - 1 : -1]:
        size += len(effect.model_dump_json().encode())
        if size > SHOWN_EFFECTS_MAX_BYTES:
            break
        first -= 1
    return tuple(effects[first:])
