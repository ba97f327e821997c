"""The gate: which calls wait for a person, what was decided, what nobody answered in time."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow

from contracts.approvals import ApprovalDecision, ApprovalRequest, RecordedDecision, Resolution
from contracts.records import MalformedPayload
from workflows.journal import Journal


class DecisionRefused(Exception):
    """A decision that changes nothing. The message says why."""


class ApprovalGate:
    """Pending requests and recorded decisions of one run."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._pending: dict[str, ApprovalRequest] = {}
        self._decided: dict[str, RecordedDecision] = {}
        self._is_closed = False

    @property
    def pending(self) -> tuple[ApprovalRequest, ...]:
        """Requests that wait, in call order."""
        return tuple(self._pending.values())

    def ask(self, request: ApprovalRequest) -> None:
        """Open a request, unless it is open or decided already."""
        if request.approval_id in self._pending or request.approval_id in self._decided:
            return
        self._pending[request.approval_id] = request
        self._journal.record(
            "approval_requested",
            approval_id=request.approval_id,
            call_id=request.call_id,
            tool=request.tool,
            action_digest=request.action_digest,
            expires_at=request.expires_at.isoformat(),
        )

    @property
    def decided(self) -> tuple[RecordedDecision, ...]:
        """Decisions so far."""
        return tuple(self._decided.values())

    def resume(self, pending: Iterable[ApprovalRequest], decided: Iterable[RecordedDecision]) -> None:
        """Go on where the previous execution stopped: same ids, same expiry."""
        self._pending = {request.approval_id: request for request in pending}
        self._decided = {decision.approval_id: decision for decision in decided}

    async def settled(self, can_leave: Callable[[], bool]) -> bool:
        """Wait until no request is open; nobody's answer is "expired". False when the server suggests meanwhile to
        continue as new, and the run can: whoever sends many signals must not fill up the history."""

        def leaves() -> bool:
            return workflow.info().is_continue_as_new_suggested() and can_leave()

        while self._pending:
            if leaves():
                return False
            left = min(request.expires_at for request in self._pending.values()) - workflow.now()
            if left > timedelta(0):
                with suppress(TimeoutError):
                    await workflow.wait_condition(
                        lambda: not self._pending or leaves(), timeout=left, timeout_summary=self._summary()
                    )
            self._expire()
        return True

    def decide(self, payload: bytes) -> RecordedDecision:
        """Take one decision, given as JSON. Raises `DecisionRefused`; a refusal is recorded and changes nothing."""
        approval_id = None
        try:
            decision = ApprovalDecision.from_wire(payload)
            approval_id = decision.approval_id
            request = self._request_for(decision)
        except (MalformedPayload, DecisionRefused) as refusal:
            self._journal.record("approval_refused", approval_id=approval_id, reason=str(refusal))
            raise DecisionRefused(str(refusal)) from None
        return self._settle(request, decision.resolution, decision.by, decision.reason)

    def close(self) -> None:
        """Take no decision any more: the run is being stopped."""
        self._is_closed = True

    def withdraw(self) -> None:
        """Close what is still open because the run ends."""
        self._pending.clear()

    def _summary(self) -> str:
        """What the timeline shows while the run waits."""
        return f"waiting for approval: {', '.join(request.tool for request in self.pending)}"[:200]

    def _request_for(self, decision: ApprovalDecision) -> ApprovalRequest:
        if self._is_closed:
            raise DecisionRefused("the run is being stopped")
        decided = self._decided.get(decision.approval_id)
        if decided is not None:
            raise DecisionRefused(f"{decision.approval_id} is already {decided.resolution} by {decided.by}")
        request = self._pending.get(decision.approval_id)
        if request is None:
            raise DecisionRefused(f"no approval {decision.approval_id} is open in this run")
        if workflow.now() >= request.expires_at:
            raise DecisionRefused(f"{decision.approval_id} expired at {request.expires_at.isoformat()}")
        if unsupported := decision.unsupported():
            raise DecisionRefused(f"this version does not support {', '.join(unsupported)} in a decision")
        if decision.action_digest not in (None, request.action_digest):
            raise DecisionRefused(f"action_digest does not match: {request.action_digest} is what would run")
        return request

    def _expire(self) -> None:
        for request in self.pending:
            if workflow.now() >= request.expires_at:
                self._settle(request, "expired", "nobody", f"nobody decided by {request.expires_at.isoformat()}")

    def _settle(self, request: ApprovalRequest, resolution: Resolution, by: str, reason: str) -> RecordedDecision:
        recorded = RecordedDecision(
            approval_id=request.approval_id,
            call_id=request.call_id,
            tool=request.tool,
            action_digest=request.action_digest,
            resolution=resolution,
            by=by,
            reason=reason,
            at=workflow.now(),
        )
        del self._pending[request.approval_id]
        self._decided[request.approval_id] = recorded
        self._journal.record(
            "approval_expired" if resolution == "expired" else "approval_recorded",
            approval_id=request.approval_id,
            call_id=request.call_id,
            tool=request.tool,
            resolution=resolution,
            by=by,
            reason=reason,
        )
        return recorded
