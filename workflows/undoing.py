"""One effect, undone by its tool's own undo."""

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

from contracts.context import ExecutionContext
from contracts.effects import Compensation, LedgerEntry
from contracts.outcomes import failure
from contracts.policies import CompensationRule
from contracts.records import MalformedPayload
from contracts.tools import ToolContract, UndoOutcome, UndoRequest
from workflows import options as activity_options
from workflows.failures import attempts_of, error_category, error_text, was_refused


async def undo(contract: ToolContract, rule: CompensationRule, request: UndoRequest) -> Compensation:
    """What undoing the call came to, once the undo's own retry policy is spent. Whatever it answers, it is a
    `Compensation`; only a cancellation is raised. Its caller shields it from those."""
    try:
        answered = await _answer(contract, rule, request)
        # An undo that answers nothing has done it.
        undone = UndoOutcome.from_wire(answered.payload.data or b"{}")
    except (ActivityError, MalformedPayload) as error:
        return Compensation(
            state="failed",
            text=error_text(error),
            attempts=attempts_of(error, rule.max_attempts) if isinstance(error, ActivityError) else 1,
            category=error_category(error),
        )
    return Compensation(state=undone.state, text=undone.text, attempts=undone.attempts)


async def _answer(contract: ToolContract, rule: CompensationRule, request: UndoRequest) -> RawValue:
    """What the undo answered. A worker that lacks it does nothing; it is then offered again, a bounded number of times,
    as a call of its tool is."""
    config = activity_options.undo(contract, rule)
    for offer in range(activity_options.OFFERS):
        try:
            answered: RawValue = await workflow.execute_activity(
                f"{contract.name}.undo", request, result_type=RawValue, **config
            )
            return answered
        except ActivityError as error:
            is_last = offer == activity_options.OFFERS - 1
            # Earlier versions took this for the undo's last word.
            if is_last or not was_refused(error) or not workflow.patched("an undo is offered again"):
                raise
        await workflow.sleep(activity_options.offer_delay(offer))
    raise AssertionError("the last offer returns or raises")


def undo_request(entry: LedgerEntry, context: ExecutionContext) -> UndoRequest | None:
    """What the undo of a ledger's entry is given, with the context of its run; None where there is nothing to undo."""
    if entry.invocation is None or not entry.is_undoable:
        return None
    # A call whose end nobody saw before the run ended has no outcome of its own.
    outcome = entry.outcome or failure("unknown_outcome", "nobody saw how this call ended")
    invocation = entry.invocation.model_copy(update={"context": context})
    return UndoRequest(invocation=invocation, outcome=outcome, compensation_token=outcome.compensation_token)
