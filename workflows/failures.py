"""How a run fails: one exception with one of the public names, and what an activity's failure means for it."""

from typing import get_args

from pydantic import ValidationError
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, RetryState, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

from contracts.outcomes import MAY_HAVE_HAPPENED, ErrorCategory, ToolOutcome, failure
from contracts.records import MalformedPayload
from contracts.runs import ErrorType
from contracts.text import cut, encodable
from contracts.tools import ToolContract
from workflows.options import REFUSED

MESSAGE_MAX_BYTES = 2_000

# Bugs of these classes fail a run by name even where no `except` of ours is reached. `Exception` is not listed:
# it would also end every waiting run at a nondeterministic deploy, which must only pause them.
BUGS: tuple[type[BaseException], ...] = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    RuntimeError,
    ArithmeticError,
    OSError,
)


class RunFailed(Exception):
    """Ends the run as failed, with a public error type and a sentence that says what to do."""

    def __init__(self, type: ErrorType, message: str) -> None:
        self.type: ErrorType = type
        self.message = cut(encodable(message), MESSAGE_MAX_BYTES)
        super().__init__(f"{type}: {self.message}")


def run_failure(error: ActivityError, otherwise: ErrorType) -> RunFailed:
    """The named failure an activity ended with; `otherwise` where it gave none, as on a timeout."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        for name in get_args(ErrorType):
            if cause.type == name:
                return RunFailed(name, cause.message)
    return RunFailed(otherwise, f"{error.activity_type}: {cause or error}")


def was_refused(error: ActivityError) -> bool:
    """Whether the last attempt met a worker that lacks the tool in this version, and so did nothing."""
    return isinstance(error.cause, ApplicationError) and error.cause.type in REFUSED


def may_have_run(error: ActivityError, contract: ToolContract) -> bool:
    """Whether an attempt before the refused one may have run. A worker that lacks the tool altogether cannot tell."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type == "ToolVersionMismatch" and cause.details:
        return bool(cause.details[0])
    return contract.repeatable and contract.retry.max_attempts > 1


def error_text(error: ActivityError | MalformedPayload) -> str:
    """What an activity failed with, or why its answer is none, cut, for the record."""
    cause = error.cause if isinstance(error, ActivityError) else error
    return cut(encodable(cause.message if isinstance(cause, ApplicationError) else str(cause or error)), 1_000)


def error_category(error: ActivityError | MalformedPayload) -> ErrorCategory:
    """The category an activity failed with."""
    if isinstance(error, MalformedPayload):
        return "internal"
    told = told_outcome(error)
    if told is not None and told.error is not None:
        return told.error.category
    return "timeout" if isinstance(error.cause, ActivityTimeoutError) else "internal"


def attempts_of(error: ActivityError, most: int) -> int:
    """How many attempts an activity had, as far as its end says."""
    told = told_outcome(error)
    counted = told.metadata.get("tool_attempt") if told else None
    if isinstance(counted, int):
        return counted
    return most if error.retry_state == RetryState.MAXIMUM_ATTEMPTS_REACHED else 1


def tool_outcome(
    error: ActivityError, contract: ToolContract, attempt: int = 1, after_unknown: bool = False
) -> ToolOutcome:
    """What a tool's failed activity means. An effect whose end nobody saw is unknown, never "not done". `attempt` is
    what its first attempt was numbered."""
    if (told := told_outcome(error)) is not None:
        return told
    outcome = _unseen(error, contract, after_unknown)
    if outcome.error is not None and outcome.error.code in ("not_started", "no_worker"):
        return outcome
    made = attempt - 1 + attempts_of(error, contract.retry.max_attempts if contract.repeatable else 1)
    return outcome.model_copy(update={"metadata": {"tool_attempt": made}})


def _unseen(error: ActivityError, contract: ToolContract, after_unknown: bool) -> ToolOutcome:
    """The outcome of an activity whose end says nothing of the tool's."""
    cause = error.cause
    # A call without effect, or one that completes later, is not waited for when it is cancelled, so nobody is told
    # whether it was started. And between two attempts an activity counts as not started, though the first may have
    # taken effect.
    between = bool(error.scheduled_event_id) and contract.repeatable and contract.retry.max_attempts > 1
    not_told = not contract.has_effect or contract.completes_later or between
    not_begun = not error.started_event_id and not after_unknown and not not_told
    if isinstance(cause, CancelledError) and (not_begun or not contract.has_effect):
        return failure("cancelled", "the call was cancelled", code="not_started" if not_begun else "")
    # A timeout that comes after an attempt which failed has that failure as its cause.
    never_taken = (
        isinstance(cause, ActivityTimeoutError) and cause.type == TimeoutType.SCHEDULE_TO_START and cause.cause is None
    )
    if (was_refused(error) or never_taken) and not (after_unknown and contract.has_effect):
        reason = f"no worker serves version {contract.version} of {contract.name}; the call did not run"
        return failure("unavailable", reason, code="no_worker", retryable=True)
    if contract.has_effect:
        reason = f"nobody saw how this call ended; {MAY_HAVE_HAPPENED}"
        return failure("unknown_outcome", reason, retryable=contract.repeatable)
    if isinstance(cause, ActivityTimeoutError):
        lost = cause.type == TimeoutType.HEARTBEAT
        return failure("timeout", "the worker was lost" if lost else f"no answer within {contract.timeout:g} s")
    return failure("internal", error_text(error))


def told_outcome(error: ActivityError) -> ToolOutcome | None:
    """The outcome that a failed attempt carries. A tool in another process may send anything."""
    cause = error.cause
    if not isinstance(cause, ApplicationError) or cause.type != "ToolFailed" or not cause.details:
        return None
    try:
        outcome = ToolOutcome.model_validate(cause.details[0])
    except (ValidationError, RecursionError):
        return None
    # An attempt that failed did not go well, whatever it says.
    return None if outcome.ok else outcome
