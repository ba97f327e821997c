"""The effect ledger: what each call that may change the world came to, and what is needed to undo it."""

from typing import Annotated, Literal

from pydantic import Field

from contracts.context import ExecutionContext
from contracts.outcomes import ErrorCategory, ToolOutcome
from contracts.records import Record, SparseRecord
from contracts.tools import ToolContract, ToolInvocation

CallId = Annotated[str, Field(max_length=20)]
EffectState = Literal["done", "failed", "unknown", "compensated", "compensation_failed"]

LEDGER_PAGE_MAX_BYTES = 524_288


class Compensation(SparseRecord):
    """What undoing an effect came to, within the run or at its end: `text` is the undo's own, or why it failed, and
    `category` of what kind that failure was."""

    state: Literal["compensated", "nothing_to_undo", "failed"]
    text: str = ""
    attempts: int = 1
    category: ErrorCategory | None = None


class EffectRecord(SparseRecord):
    """What became of a call that may have changed the world. Written before the first attempt, as `unknown`."""

    call_id: str
    tool: str
    state: EffectState
    compensation: Compensation | None = None


class LedgerEntry(SparseRecord):
    """An effect as the run keeps it. `invocation`, without the run's context, and `outcome` are there while a call can
    still be undone; None for one whose contract has no compensation, or that did nothing."""

    effect: EffectRecord
    invocation: ToolInvocation | None = None
    outcome: ToolOutcome | None = None

    @property
    def is_undoable(self) -> bool:
        """Whether an undo may have something to do."""
        return self.invocation is not None and self.effect.state in ("done", "unknown", "compensation_failed")


class LedgerQuery(Record):
    """Argument of the query `ledger`: the entries before number `before` (None: the newest), newest first, about
    `max_bytes` of JSON, at least one."""

    before: int | None = Field(default=None, ge=0)
    max_bytes: int = Field(default=LEDGER_PAGE_MAX_BYTES, ge=1, le=LEDGER_PAGE_MAX_BYTES)


class LedgerPage(Record):
    """Entries, newest first. `next` is the `before` of the next page, 0 where there is none; `context` is the run's,
    and that of every invocation."""

    entries: tuple[LedgerEntry, ...]
    next: int
    total: int
    context: ExecutionContext = ExecutionContext()


class UndoneSoFar(Record):
    """What an execution of `CompensateRun` hands on: the latest effects it tried to undo, how many it tried before
    them, how many are left, and the `before` of the ledger's next page."""

    before: int
    effects: tuple[EffectRecord, ...]
    effects_omitted: int
    effects_left: int


class CompensateRunInput(Record):
    """Starts `CompensateRun`: whose effects to undo. Without `run_id` it is the latest execution of that workflow id;
    `call_ids` restricts it to these calls.

    `carried` is written by the workflow itself when it continues as new.
    """

    workflow_id: str = Field(min_length=1, max_length=1_000)
    run_id: str | None = Field(default=None, min_length=1, max_length=200)
    call_ids: tuple[CallId, ...] | None = Field(default=None, max_length=10_000, fail_fast=True)
    carried: UndoneSoFar | None = None


class CompensateRunResult(Record):
    """What `CompensateRun` did: the effects it tried to undo, in the order of trying. `effects_omitted` counts the
    oldest ones left out."""

    workflow_id: str
    run_id: str
    effects: tuple[EffectRecord, ...] = ()
    effects_omitted: int = 0


class ReadLedgerRequest(Record):
    """Which page of a closed run's ledger `read_ledger` reads."""

    workflow_id: str
    run_id: str | None = None
    before: int | None = None


class ClosedLedger(Record):
    """A page of a closed run's ledger: what can still be undone, with the contracts to undo it by."""

    run_id: str
    entries: tuple[LedgerEntry, ...]
    contracts: tuple[ToolContract, ...]
    context: ExecutionContext
    next: int
