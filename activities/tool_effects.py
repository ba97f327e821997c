"""What the world is asked about an effect: to undo it, or whether it happened."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.attempt import Attempt
from activities.heartbeats import beating
from activities.in_flight import CapacityExhausted, GivenUp, InFlight, is_cancellation
from activities.settling import settle
from activities.spans import describe_span
from activities.tool_secrets import ToolSecrets
from activities.tooling import Tool, ToolError
from activities.unexpected import reference, unexpected
from contracts.outcomes import ToolOutcome, bounded, failure
from contracts.policies import RECONCILE_SECONDS
from contracts.records import describe
from contracts.text import cut, encodable
from contracts.tools import ReconcileRequest, Reconciliation, ToolInvocation, UndoOutcome, UndoRequest

log = logging.getLogger("steadyhand.tools")

UNDO_TEXT_MAX_BYTES = 2_000


class ToolEffects:
    """The undo and reconciliation activities of one worker's tools: `<tool>.undo` and `<tool>.reconcile`."""

    def __init__(self, tools: Iterable[Tool], settings: Mapping[str, str], in_flight: InFlight) -> None:
        self._tools = tuple(tools)
        self._settings = settings
        self._in_flight = in_flight

    def activities(self) -> list[Callable[..., Awaitable[object]]]:
        """Those that the tools declare."""
        undos = [self._undo(tool) for tool in self._tools if tool.compensation is not None]
        return [*undos, *(self._reconcile(tool) for tool in self._tools if tool.reconciles)]

    def _undo(self, tool: Tool) -> Callable[[UndoRequest], Awaitable[UndoOutcome]]:
        @activity.defn(name=f"{tool.name}.undo")
        async def undo(request: UndoRequest) -> UndoOutcome:
            seconds = tool.compensation.timeout if tool.compensation else 0
            async with self._attempt(tool, request.invocation, seconds) as invocation:
                connected = request.model_copy(update={"invocation": invocation})
                done = await self._made(tool, tool.undo_function, invocation, connected, seconds)
            undone = done if isinstance(done, UndoOutcome) else UndoOutcome(text=done if isinstance(done, str) else "")
            text = cut(encodable(ToolSecrets.of(tool, self._settings).hidden(undone.text)), UNDO_TEXT_MAX_BYTES)
            return undone.model_copy(update={"text": text, "attempts": activity.info().attempt})

        return undo

    def _reconcile(self, tool: Tool) -> Callable[[ReconcileRequest], Awaitable[Reconciliation]]:
        @activity.defn(name=f"{tool.name}.reconcile")
        async def reconcile(request: ReconcileRequest) -> Reconciliation:
            async with self._attempt(tool, request.invocation, RECONCILE_SECONDS) as connected:
                found = await self._made(tool, tool.reconcile_function, connected, connected, RECONCILE_SECONDS)
            try:
                answer = Reconciliation.model_validate(found)
            except ValidationError as error:
                reason = f"what {tool.name} found out is no Reconciliation: {describe(error)}"
                raise ApplicationError(reason, type="ToolFailed", non_retryable=True) from None
            if answer.outcome is None:
                return answer
            secrets = ToolSecrets.of(tool, self._settings)
            return answer.model_copy(
                update={"outcome": settle(tool, request.invocation, answer.outcome, secrets=secrets)}
            )

        return reconcile

    @asynccontextmanager
    async def _attempt(self, tool: Tool, invocation: ToolInvocation, seconds: float) -> AsyncIterator[ToolInvocation]:
        """The invocation as the function receives it, connected until the block ends."""
        describe_span(invocation.context.attributes, activity.info().attempt)
        attempt = Attempt(tool, self._settings)
        deadline = datetime.now(UTC) + timedelta(seconds=seconds)
        try:
            async with beating():
                yield invocation.model_copy(update={"deadline": deadline}).controlled_by(attempt)
        finally:
            attempt.end()

    async def _made(
        self,
        tool: Tool,
        function: Callable[..., object] | None,
        invocation: ToolInvocation,
        argument: object,
        seconds: float,
    ) -> object:
        """Call the function. Whatever it raises leaves bounded and without secrets, for Temporal to repeat."""
        if function is None:
            raise ApplicationError(f"{tool.name} does not support this", type="NotSupported", non_retryable=True)
        secrets = ToolSecrets.of(tool, self._settings)
        try:
            return await self._in_flight.run(activity.info().activity_type, function, argument, seconds)
        except GivenUp as error:
            raise _failed(failure("timeout", str(error), retryable=True), repeatable=True) from None
        except CapacityExhausted:
            reason = "all tool threads of this worker are busy; nothing was done"
            told = failure("unavailable", reason, code="tool_capacity_exhausted", retryable=True)
            raise _failed(told, repeatable=True) from None
        except ToolError as error:
            raise _failed(error.outcome(secrets), repeatable=error.retryable) from None
        except BaseException as error:
            # SystemExit and its like too: as they are, they would leave unbounded and with what they say.
            if is_cancellation(error):
                raise
            log.exception("%s failed (reference %s)", activity.info().activity_type, reference(invocation))
            raise _failed(unexpected(tool, invocation, error, secrets), repeatable=True) from None


def _failed(outcome: ToolOutcome, repeatable: bool) -> ApplicationError:
    message = outcome.error.message if outcome.error else ""
    outcome = bounded(outcome)
    outcome = outcome.model_copy(update={"metadata": {**outcome.metadata, "tool_attempt": activity.info().attempt}})
    return ApplicationError(message, outcome, type="ToolFailed", non_retryable=not repeatable)
