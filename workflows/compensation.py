"""What a run does with its effects when it does not complete: it undoes them, the latest first."""

from temporalio import workflow

from contracts.effects import Compensation, LedgerEntry
from contracts.tools import ToolContract
from workflows.endings import Ending
from workflows.history import has_room_to_end
from workflows.interruption import Interruption
from workflows.run_state import RunState
from workflows.shielding import shielded
from workflows.undoing import undo, undo_request
from workflows.visibility import Visibility


async def compensate(state: RunState, ending: Ending, interruption: Interruption, visibility: Visibility) -> None:
    """Undo what the agent, or the run's options, want undone after such an end. No cancellation stops it."""
    if not state.is_loaded or ending.status not in state.compensate_on:
        return
    # Nobody is asked for anything any more.
    state.approvals.withdraw()
    state.status = "running"
    visibility.show()
    for entry in reversed(state.effects.undoable):
        contract = state.agent.tool(entry.effect.tool)
        # What failed for good within the run is an operator's: an undo that may have happened is not guessed at again.
        if contract is not None and entry.effect.state != "compensation_failed":
            await _compensate(state, contract, entry, interruption)


async def _compensate(state: RunState, contract: ToolContract, entry: LedgerEntry, interruption: Interruption) -> None:
    call_id, tool = entry.effect.call_id, entry.effect.tool
    request = undo_request(entry, state.context)
    if request is None or contract.compensation is None:
        return
    state.journal.record("compensation_started", call_id=call_id, tool=tool)
    if has_room_to_end():
        work = undo(contract, contract.compensation, request)
        undone = await shielded(work, interruption.arrived)
    else:
        reason = "the history of this run has no room for it: start CompensateRun"
        undone = Compensation(state="failed", text=reason, attempts=0, category="unavailable")
    state.effects.compensated(call_id, undone)
    if undone.state == "failed":
        workflow.logger.error("an effect could not be undone: %s of %s", call_id, tool)
        state.journal.record("compensation_failed", call_id=call_id, tool=tool, message=undone.text)
    else:
        state.journal.record("compensation_completed", call_id=call_id, tool=tool, state=undone.state, text=undone.text)
