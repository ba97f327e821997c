"""What people send to a run: its signals and updates. Whatever comes, no handler of these ends a run or is retried."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeVar

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from contracts.activities import CancelActivities
from contracts.approvals import RecordedDecision
from contracts.records import MalformedPayload
from contracts.runs import CancelAccepted, CancelRequest
from contracts.text import cut, encodable
from workflows import options as activity_options
from workflows.approval_gate import DecisionRefused
from workflows.inbox import MessageRefused
from workflows.interruption import Interruption
from workflows.run_state import RunState
from workflows.visibility import Visibility

T = TypeVar("T")

# What handlers receive when the caller sent nothing. Arguments are taken raw and decoded inside: one that the converter
# cannot decode would fail the workflow task again and again.
NO_PAYLOAD = RawValue(Payload())


class Doors:
    """Takes signals and updates once the run's state is there. In an execution that continues another, they may come
    before it."""

    def __init__(self, state: RunState, interruption: Interruption, visibility: Visibility) -> None:
        self._state = state
        self._visibility = visibility
        self._interruption = interruption
        self._is_open = False
        self._early: list[tuple[str, Sequence[RawValue]]] = []
        self._signals: dict[str, tuple[str, Callable[[bytes], object]]] = {
            "resolve_approval": ("ApprovalDecision", self._approve),
            "add_message": ("UserMessage", self._add_message),
        }

    def open(self) -> None:
        """The state is there: take what came early, in order."""
        self._is_open = True
        early, self._early = self._early, []
        for name, payloads in early:
            self.signal(name, payloads)

    def signal(self, name: str, payloads: Sequence[RawValue]) -> None:
        """Take one signal. What cannot be taken changes nothing and is recorded; nobody waits for an answer."""
        if not self._is_open:
            self._early.append((name, payloads))
            return
        try:
            if name not in self._signals:
                self._refuse(name, "there is no signal of this name")
                return
            argument, take = self._signals[name]
            if len(payloads) != 1:
                self._refuse(name, f"it takes one {argument}, not {len(payloads)} arguments")
            else:
                take(payloads[0].payload.data)
                self._visibility.show()
        except DecisionRefused:
            pass  # The gate has recorded it.
        except MessageRefused as refusal:
            self._refuse(name, str(refusal))
        except Exception as bug:  # noqa: BLE001 - one signal must not end a run, nor retry its task for ever
            workflow.logger.exception("a bug in a signal handler")
            self._refuse(name, f"InternalError: {type(bug).__name__}")

    async def decide(self, payload: bytes) -> RecordedDecision:
        """Take one decision. Fails the update as `DecisionRefused`."""
        return await self._answer(self._decide, payload)

    async def cancel(self, payload: bytes) -> CancelAccepted:
        """Have the run cancelled. Fails the update as `CancelRefused`, with the run's revision as its detail."""
        return await self._answer(self._cancel, payload)

    async def _answer(self, take: Callable[[bytes], Awaitable[T]], payload: bytes) -> T:
        """What an update answers. A bug fails the update and not the run."""
        try:
            if not self._is_open:
                await workflow.wait_condition(lambda: self._is_open)
            return await take(payload)
        except FailureError:
            raise
        except Exception as bug:  # noqa: BLE001 - see above
            workflow.logger.exception("a bug in an update handler")
            raise ApplicationError(f"{type(bug).__name__}: {bug}", type="InternalError", non_retryable=True) from None

    async def _decide(self, payload: bytes) -> RecordedDecision:
        try:
            recorded = self._state.approvals.decide(payload)
            self._visibility.show()
            return recorded
        except DecisionRefused as refusal:
            raise ApplicationError(str(refusal), type="DecisionRefused", non_retryable=True) from None

    async def _cancel(self, payload: bytes) -> CancelAccepted:
        state = self._state
        try:
            request = CancelRequest.from_wire(payload or b"{}")
        except MalformedPayload as malformed:
            self._refuse_cancel(str(malformed))
        if self._interruption.is_too_late:
            self._refuse_cancel("the run is ending already")
        if request.expected_revision not in (None, state.journal.sequence):
            self._refuse_cancel(f"expected_revision is {request.expected_revision}, the run has moved on")
        state.cancel_reason = cut(encodable(request.reason), 1_000)
        state.journal.record("cancel_accepted", reason=state.cancel_reason)
        accepted = CancelAccepted(revision=state.journal.sequence, reason=state.cancel_reason)
        self._interruption.cancel()
        state.approvals.close()
        # The run stops at once; that it ends as Canceled is the server's to say.
        try:
            await workflow.execute_activity_method(CancelActivities.request_cancel, **activity_options.CANCEL)
        except ActivityError:
            if workflow.cancellation_reason() is None:
                self._interruption.cannot_be_confirmed()
        return accepted

    def _refuse_cancel(self, reason: str) -> NoReturn:
        self._state.journal.record("cancel_refused", reason=reason)
        # The refusal is an event too: this is the revision at which the same request would be taken.
        revision = self._state.journal.sequence
        message = f"{reason}; its revision is {revision}"
        raise ApplicationError(message, revision, type="CancelRefused", non_retryable=True)

    def _approve(self, payload: bytes) -> None:
        self._state.approvals.decide(payload)

    def _add_message(self, payload: bytes) -> None:
        if self._interruption.is_too_late:
            # It would never join the conversation, and must not look as if it had.
            raise MessageRefused("the run is ending already")
        self._state.inbox.take(payload)

    def _refuse(self, name: str, reason: str) -> None:
        self._state.journal.record("signal_refused", name=name, reason=reason)
