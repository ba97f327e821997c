"""What the world is asked about an effect: to undo it, or whether it happened."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.attempt import Attempt
from activities.heartbeats import beating
from activities.in_flight import InFlight
from activities.tooling import Tool, ToolError
from activities.unexpected import reference, unexpected
from contracts.tools import ReconcileRequest, Reconciliation, ToolInvocation, UndoOutcome, UndoRequest

log = logging.getLogger("steadyhand.tools")


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
            connected = request.model_copy(update={"invocation": self._connected(tool, request.invocation)})
            done = await self._made(tool, tool.undo_function, request.invocation, connected)
            return done if isinstance(done, UndoOutcome) else UndoOutcome(text="" if done is None else str(done))

        return undo

    def _reconcile(self, tool: Tool) -> Callable[[ReconcileRequest], Awaitable[Reconciliation]]:
        @activity.defn(name=f"{tool.name}.reconcile")
        async def reconcile(request: ReconcileRequest) -> Reconciliation:
            connected = self._connected(tool, request.invocation)
            found = await self._made(tool, tool.reconcile_function, request.invocation, connected)
            return Reconciliation.model_validate(found)

        return reconcile

    def _connected(self, tool: Tool, invocation: ToolInvocation) -> ToolInvocation:
        return invocation.controlled_by(Attempt(tool, self._settings))

    async def _made(
        self, tool: Tool, function: Callable[..., object] | None, invocation: ToolInvocation, argument: object
    ) -> object:
        """Call the function. Whatever it raises leaves bounded and without secrets, for Temporal to repeat."""
        if function is None:
            raise ApplicationError(f"{tool.name} does not support this", type="NotSupported", non_retryable=True)
        try:
            async with beating():
                return await self._in_flight.run(function, argument)
        except ToolError as error:
            outcome = error.outcome
            raise ApplicationError(
                error.message, outcome, type="ToolFailed", non_retryable=not error.retryable
            ) from None
        except Exception as error:
            log.exception("%s failed (reference %s)", activity.info().activity_type, reference(invocation))
            outcome = unexpected(tool, invocation, error)
            raise ApplicationError(outcome.error.message if outcome.error else "", outcome, type="ToolFailed") from None
