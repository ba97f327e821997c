"""The next execution of a run: when to go on in one, and what goes along."""

from temporalio import workflow

from contracts.activities import LEAVES_BETWEEN_CALLS, LEAVES_THE_OLDEST
from contracts.runs import AgentRunInput
from workflows.carry import CARRY_MAX_BYTES, LATEST_MAX_BYTES
from workflows.history import is_full
from workflows.interruption import Interruption
from workflows.run_state import RunState
from workflows.transcript import Transcript


class Continuation:
    """Takes one run on to its next execution. Nothing is in flight when it does: what still ran would be lost."""

    def __init__(self, state: RunState, interruption: Interruption) -> None:
        self._state = state
        self._interruption = interruption

    def may_leave(self) -> bool:
        """Whether to go on in a new execution between two calls, if the state fits. Raises CancelledError where no call
        may begin any more: a decision that comes together with a cancellation would let one."""
        self._interruption.check()
        state = self._state
        suggested = state.behaviour >= LEAVES_BETWEEN_CALLS and workflow.info().is_continue_as_new_suggested()
        return suggested and state.can_carry()

    async def leave(self) -> None:
        """Go on in a new execution, if the state fits into its input. A transcript only grows: one that did not fit is
        not packed again, and the run goes on in this execution while it can. When that is full, the oldest messages
        are left behind."""
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._interruption.check()
        state = self._state
        if state.can_carry():
            self._leave_with(state.transcript)
            state.too_large_to_carry = True
        if state.behaviour >= LEAVES_THE_OLDEST and is_full():
            for max_bytes in LATEST_MAX_BYTES:
                self._leave_with(state.transcript.latest(max_bytes))

    def _leave_with(self, transcript: Transcript) -> None:
        carried = self._state.carry(transcript).pack()
        if len(carried) <= CARRY_MAX_BYTES:
            workflow.continue_as_new(
                AgentRunInput(agent=self._state.agent.name, carried=carried),
                # A run stays with its worker's version. Here nothing will be replayed: it moves to the current one.
                initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
            )
