"""`CompensateRun`: an operator has the effects of a closed run undone that are left."""

import asyncio
from collections.abc import Sequence
from typing import NoReturn

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from contracts.activities import LedgerActivities
from contracts.effects import (
    ClosedLedger,
    CompensateRunInput,
    CompensateRunResult,
    Compensation,
    EffectRecord,
    LedgerEntry,
    ReadLedgerRequest,
    UndoneSoFar,
)
from contracts.records import MalformedPayload
from contracts.runs import ErrorType
from contracts.text import cut
from workflows import options as activity_options
from workflows.doors import NO_PAYLOAD
from workflows.effects import latest
from workflows.failures import BUGS, RunFailed, run_failure
from workflows.shielding import shielded
from workflows.undoing import undo, undo_request


@workflow.defn(name="CompensateRun", failure_exception_types=BUGS)
class CompensateRun:
    """Starts with one `CompensateRunInput`, ends with a `CompensateRunResult`, or fails with an `ApplicationError`
    whose first detail is that: as CompensationFailed where an effect is left, as InvalidInput where a named call has
    nothing to undo, after all others were tried."""

    def __init__(self) -> None:
        self._run_id = ""
        self._effects: list[EffectRecord] = []
        self._omitted = 0
        self._left = 0
        self._is_cancelled = False

    @workflow.run
    async def run(self, raw_input: RawValue = NO_PAYLOAD) -> CompensateRunResult:
        """Undo the effects of a run, the latest first, page by page of its ledger."""
        wanted = CompensateRunInput(workflow_id="?")
        try:
            wanted = CompensateRunInput.from_wire(raw_input.payload.data)
            page = await self._read(wanted, self._resume(wanted))
            while True:
                await self._compensate(page, wanted)
                if page.next == 0:
                    break
                if workflow.info().is_continue_as_new_suggested():
                    self._continue_as_new(wanted, page.next)
                page = await self._read(wanted, page.next)
        except MalformedPayload as malformed:
            self._fail(wanted, "InvalidInput", f"the input is not a CompensateRunInput: {malformed}")
        except RunFailed as failed:
            self._fail(wanted, failed.type, failed.message)
        if self._left:
            left = [effect for effect in self._effects if effect.state == "compensation_failed"]
            named = ", ".join(f"{effect.call_id} ({effect.tool})" for effect in left[:10])
            self._fail(wanted, "CompensationFailed", f"{self._left} effects could not be undone: {named}")
        if not_tried := self._not_tried(wanted):
            # Whoever names a call means it: that nothing was done must not look like success.
            named = cut(", ".join(not_tried[:10]), 500)
            self._fail(wanted, "InvalidInput", f"{len(not_tried)} named calls with nothing to undo: {named}")
        return self._result(wanted)

    def _resume(self, wanted: CompensateRunInput) -> int | None:
        """Go on where the previous execution stopped: before which entry of the ledger."""
        carried = wanted.carried
        if carried is None:
            return None
        if workflow.info().continued_run_id is None:
            raise RunFailed(
                "InvalidInput", "carried is written by CompensateRun for its own continuation: leave it out"
            )
        self._effects, self._omitted = list(carried.effects), carried.effects_omitted
        self._left = carried.effects_left
        return carried.before

    def _continue_as_new(self, wanted: CompensateRunInput, before: int) -> NoReturn:
        """A ledger may be longer than one history takes."""
        shown = latest(self._effects)
        carried = UndoneSoFar(
            before=before,
            effects=shown,
            effects_omitted=self._omitted + len(self._effects) - len(shown),
            effects_left=self._left,
        )
        call_ids = self._not_tried(wanted) if wanted.call_ids is not None else None
        workflow.continue_as_new(
            wanted.model_copy(update={"run_id": self._run_id, "call_ids": call_ids, "carried": carried})
        )

    async def _read(self, wanted: CompensateRunInput, before: int | None) -> ClosedLedger:
        run_id = self._run_id or wanted.run_id
        request = ReadLedgerRequest(workflow_id=wanted.workflow_id, run_id=run_id, before=before)
        try:
            page = await workflow.execute_activity_method(
                LedgerActivities.read_ledger, request, **activity_options.LEDGER
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise run_failure(error, otherwise="InternalError") from None
        self._run_id = page.run_id
        return page

    async def _compensate(self, page: ClosedLedger, wanted: CompensateRunInput) -> None:
        contracts = {contract.name: contract for contract in page.contracts}
        for entry in _wanted(page.entries, wanted.call_ids):
            contract = contracts.get(entry.effect.tool)
            request = undo_request(entry, page.context)
            if contract is None or contract.compensation is None or request is None:
                continue
            # An undo that has begun is waited for; after that nothing more is begun.
            undone = await shielded(undo(contract, contract.compensation, request), self._note_cancelled)
            self._effects.append(_settled(entry.effect, undone))
            self._left += undone.state == "failed"
            if self._is_cancelled:
                raise asyncio.CancelledError

    def _not_tried(self, wanted: CompensateRunInput) -> tuple[str, ...]:
        """The calls that were named and not come to."""
        tried = {effect.call_id for effect in self._effects}
        return tuple(call_id for call_id in wanted.call_ids or () if call_id not in tried)

    def _note_cancelled(self) -> None:
        self._is_cancelled = True

    def _result(self, wanted: CompensateRunInput) -> CompensateRunResult:
        shown = latest(self._effects)
        omitted = self._omitted + len(self._effects) - len(shown)
        return CompensateRunResult(
            workflow_id=wanted.workflow_id, run_id=self._run_id, effects=shown, effects_omitted=omitted
        )

    def _fail(self, wanted: CompensateRunInput, type: ErrorType, message: str) -> NoReturn:
        raise ApplicationError(message, self._result(wanted), type=type, non_retryable=True) from None


def _wanted(entries: Sequence[LedgerEntry], call_ids: Sequence[str] | None) -> list[LedgerEntry]:
    return [entry for entry in entries if call_ids is None or entry.effect.call_id in call_ids]


def _settled(effect: EffectRecord, undone: Compensation) -> EffectRecord:
    state = "compensation_failed" if undone.state == "failed" else "compensated"
    return effect.model_copy(update={"state": state, "compensation": undone})
