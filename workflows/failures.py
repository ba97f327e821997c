"""How a run fails: one exception with one of the public names, and what an activity's failure means for it."""

from typing import get_args

from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

from contracts.outcomes import ToolOutcome, failure
from contracts.runs import ErrorType
from contracts.text import cut, encodable
from contracts.tools import ToolContract
from workflows.options import NEVER_RAN

MESSAGE_MAX_BYTES = 2_000

# Bugs of these classes fail a run by name even where no `except` of ours is reached. `Exception` is not listed:
# it would also end every waiting run at a nondeterministic deploy, which must only pause them.
BUGS: list[type[BaseException]] = [
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    RuntimeError,
    ArithmeticError,
    OSError,
]


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


def never_ran(error: ActivityError) -> bool:
    """Whether a worker refused the call before anything happened."""
    return isinstance(error.cause, ApplicationError) and error.cause.type in NEVER_RAN


def tool_outcome(error: ActivityError, contract: ToolContract) -> ToolOutcome:
    """What a tool's failed activity means. An effect whose end nobody saw is unknown, never "not done"."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type == "ToolFailed" and cause.details:
        return ToolOutcome.model_validate(cause.details[0])
    if isinstance(cause, CancelledError) and not (contract.has_effect and error.started_event_id):
        return failure("cancelled", "the call was cancelled")
    if never_ran(error) or (isinstance(cause, ActivityTimeoutError) and cause.type == TimeoutType.SCHEDULE_TO_START):
        reason = f"no worker serves version {contract.version} of {contract.name}; the call did not run"
        return failure("unavailable", reason, code="no_worker", retryable=True)
    if contract.has_effect:
        return failure(
            "unknown_outcome",
            "the outcome of this call is unknown: it may or may not have taken effect. "
            "Do not repeat it blindly; find out first.",
        )
    if isinstance(cause, ActivityTimeoutError):
        return failure("timeout", f"no answer within {contract.timeout:g} seconds", retryable=True)
    return failure("internal", str(cause or error))
