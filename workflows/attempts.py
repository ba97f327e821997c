"""One call, from its first attempt to an outcome that stands: retries, undo between them, finding out what happened."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import JsonValue
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

from contracts.activities import ToolActivities
from contracts.effects import Compensation
from contracts.events import EventType
from contracts.outcomes import ToolOutcome, failure, not_certain, says_not_done
from contracts.records import MalformedPayload
from contracts.tools import (
    ReconcileRequest,
    Reconciliation,
    SettleRequest,
    ToolContract,
    ToolInvocation,
    UndoRequest,
)
from workflows import options as activity_options
from workflows.failures import error_text, may_have_run, tool_outcome, was_refused
from workflows.foreign import json_of, passable, told
from workflows.journal import Journal
from workflows.shielding import shielded
from workflows.undoing import undo

T = TypeVar("T")

NOT_RUN = "the run was cancelled; the call did not run"


class Attempts:
    """The attempts of one call. `cancelled` is set when the run was cancelled meanwhile: what is in flight is asked to
    stop, its end is still awaited, and nothing new is begun. `compensation` says what became of an undo."""

    def __init__(self, contract: ToolContract, invocation: ToolInvocation, agent_digest: str, journal: Journal) -> None:
        self._contract = contract
        self._invocation = invocation
        self._agent_digest = agent_digest
        self._journal = journal
        self._scheduled = 0
        self.cancelled = False
        self.compensation: Compensation | None = None

    async def outcome(self) -> ToolOutcome:
        """What the call came to, as its contract's kind of tool says (DESIGN, section 5)."""
        contract = self._contract
        # Where the contract allows repeating, Temporal does it: every attempt is visible there. An effect outside our
        # workers is repeated here, since nobody there remembers what an earlier attempt may have done.
        most = 1 if activity_options.is_repeated_by_temporal(contract) else contract.retry.max_attempts
        after_unknown = False
        for attempt in range(1, most + 1):
            outcome = await self._attempt(attempt, after_unknown)
            if after_unknown and says_not_done(outcome):
                outcome = not_certain(outcome)
            after_unknown |= not outcome.ok and not says_not_done(outcome)
            outcome = await self._known(outcome)
            undone = not outcome.ok and (outcome.compensation_required or is_unknown(outcome))
            if undone:
                outcome = await self._undone(outcome)
            elif not says_not_done(outcome):
                # What an earlier attempt left was undone; what came of this one is another matter.
                self.compensation = None
            again = contract.repeats(outcome) and (contract.repeatable or (undone and self._is_undone))
            if attempt == most or not again or self.cancelled:
                return outcome
            delay = contract.delay_after(outcome, attempt, workflow.random().random())
            if self._invocation.context.is_over(workflow.now() + timedelta(seconds=delay)):
                return _instead(outcome, failure("timeout", "tool retry exceeded its deadline"))
            if not await self._pause(delay):
                return _instead(outcome, failure("cancelled", "tool retry cancelled during backoff"))
        raise AssertionError("the last attempt returns")

    async def _attempt(self, attempt: int, after_unknown: bool) -> ToolOutcome:
        """Schedule the tool's activity. A worker that holds another version refuses it before anything happens; it is
        then offered again, a bounded number of times."""
        contract = self._contract
        for offer in range(activity_options.OFFERS):
            invocation = self._invocation.model_copy(update={"attempt": attempt, "after_unknown": after_unknown})
            try:
                return await self._run(invocation)
            except ActivityError as error:
                after_unknown |= was_refused(error) and may_have_run(error, contract)
                outcome = tool_outcome(error, contract, attempt, after_unknown)
                if not was_refused(error) or (after_unknown and not contract.repeatable) or self.cancelled:
                    return outcome
            if not await self._pause(activity_options.offer_delay(offer).total_seconds()):
                return outcome if after_unknown else failure("cancelled", NOT_RUN, code="not_started")
        return outcome

    async def _run(self, invocation: ToolInvocation) -> ToolOutcome:
        self._scheduled += 1
        suffix = f".{self._scheduled}" if self._scheduled > 1 else ""
        config = activity_options.tool(self._contract, f"{invocation.call_id}{suffix}")
        if self._contract.task_queue is None and not self._contract.completes_later:
            ours = workflow.start_activity(self._contract.name, invocation, result_type=ToolOutcome, **config)
            return await self._end_of(ours)
        outside = workflow.start_activity(self._contract.name, invocation, result_type=RawValue, **config)
        try:
            raw = json_of(await self._end_of(outside))
        except ActivityError as error:
            raw = told(error)
            if raw is None:
                raise
        return await self._settled(invocation, raw)

    async def _end_of(self, activity: workflow.ActivityHandle[T]) -> T:
        """The activity's result, also when the run is cancelled meanwhile: it is asked to stop, and what it came to is
        still recorded. (A cancelled `await` of an activity that then completes would swallow the cancellation.)"""
        try:
            return await asyncio.shield(activity)
        except asyncio.CancelledError:
            self.cancelled = True
            activity.cancel()
            return await activity

    async def _settled(self, invocation: ToolInvocation, raw: JsonValue) -> ToolOutcome:
        """What came from outside, checked and projected by a worker of ours as its own outcomes are."""
        request = SettleRequest(agent_digest=self._agent_digest, invocation=invocation, raw=raw)
        outcome = await self._shielded(
            workflow.execute_activity_method(ToolActivities.settle_outcome, request, **activity_options.SETTLE)
        )
        # At least this one: how many there were before it is not seen from here.
        return outcome.model_copy(update={"metadata": {"tool_attempt": invocation.attempt, **outcome.metadata}})

    async def _known(self, outcome: ToolOutcome) -> ToolOutcome:
        """An unknown outcome is asked about where the tool can: the outside world settles it."""
        if not is_unknown(outcome) or not self._contract.reconciles:
            return outcome
        try:
            answered = await self._shielded(
                workflow.execute_activity(
                    f"{self._contract.name}.reconcile",
                    ReconcileRequest(invocation=self._attempted(outcome)),
                    result_type=RawValue,
                    **activity_options.reconcile(self._contract),
                )
            )
            answer = Reconciliation.from_wire(answered.payload.data)
        except (ActivityError, MalformedPayload) as error:
            self._note("effect_reconciled", state="unknown", message=error_text(error))
            return outcome
        self._note("effect_reconciled", state=answer.state)
        match answer.state:
            case "done":
                found = answer.outcome or ToolOutcome(
                    ok=True, text="The call took effect, as was found out afterwards."
                )
                if answer.outcome is not None and self._contract.task_queue is not None:
                    found = await self._settled(self._attempted(outcome), passable(answer.outcome))
                return _instead(outcome, found)
            case "not_done":
                reason = "the call did not take effect, as was found out afterwards"
                return _instead(outcome, failure("unavailable", reason, code="not_done", retryable=True))
        return outcome

    async def _undone(self, outcome: ToolOutcome) -> ToolOutcome:
        """An attempt that left something behind, or may have, is undone at once. A further attempt is only made after
        that; an undo that fails for good is never silent."""
        rule = self._contract.compensation
        if rule is None:
            return outcome
        self._note("compensation_started")
        request = UndoRequest(
            invocation=self._attempted(outcome), outcome=outcome, compensation_token=outcome.compensation_token
        )
        undone = await self._shielded(undo(self._contract, rule, request))
        self.compensation = undone
        if undone.state == "failed":
            self._note("compensation_failed", message=undone.text)
            return _marked(
                outcome,
                retryable=False,
                compensation_succeeded=False,
                compensation_attempts=undone.attempts,
                compensation_error=undone.text,
                compensation_error_category=undone.category,
            )
        self._note("compensation_completed", state=undone.state, text=undone.text)
        if is_unknown(outcome):
            reason = "the outcome was unknown, so the call was undone: it is as if it had not been made"
            outcome = _instead(outcome, failure("unavailable", reason, code="undone", retryable=True))
        return _marked(outcome, compensation_succeeded=True, compensation_attempts=undone.attempts)

    @property
    def _is_undone(self) -> bool:
        return self.compensation is not None and self.compensation.state != "failed"

    def _attempted(self, outcome: ToolOutcome) -> ToolInvocation:
        """The invocation as the attempt with this outcome had it."""
        attempt = outcome.metadata.get("tool_attempt")
        return self._invocation.model_copy(update={"attempt": attempt if isinstance(attempt, int) else 1})

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Work that a cancellation of the run must not stop: it is noted, and takes effect afterwards."""
        return await shielded(work, self._note_cancelled)

    def _note_cancelled(self) -> None:
        self.cancelled = True

    async def _pause(self, seconds: float) -> bool:
        """Wait. False when the run was cancelled meanwhile."""
        try:
            await workflow.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled = True
        return not self.cancelled

    def _note(self, type: EventType, **data: JsonValue) -> None:
        self._journal.record(type, call_id=self._invocation.call_id, tool=self._contract.name, **data)


def is_unknown(outcome: ToolOutcome) -> bool:
    """Whether nobody saw how the call ended."""
    return outcome.error is not None and outcome.error.category == "unknown_outcome"


def _instead(outcome: ToolOutcome, replacement: ToolOutcome) -> ToolOutcome:
    """Another outcome of the same attempts: what is known of them is kept."""
    return replacement.model_copy(update={"metadata": {**replacement.metadata, **outcome.metadata}})


def _marked(outcome: ToolOutcome, retryable: bool | None = None, **metadata: JsonValue) -> ToolOutcome:
    error = outcome.error
    if error is not None and retryable is not None:
        error = error.model_copy(update={"retryable": retryable})
    return outcome.model_copy(update={"error": error, "metadata": {**outcome.metadata, **metadata}})
