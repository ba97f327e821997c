"""A run as its caller sees it: what starts it, what it shows, what it ends with."""

from typing import Literal

from pydantic import Field, JsonValue

from contracts.approvals import ApprovalRequest
from contracts.context import ExecutionContext
from contracts.messages import Message, Usage
from contracts.outcomes import ToolErrorInfo, ToolOutcome
from contracts.policies import OutputLimits
from contracts.records import Record, SparseRecord

RunStatus = Literal["created", "running", "waiting_for_approval", "completed", "failed", "cancelled"]

EffectState = Literal["done", "failed", "unknown", "compensated", "compensation_failed"]

ErrorType = Literal[
    "InvalidInput",
    "UnknownAgent",
    "MaxRoundsExceeded",
    "MaxToolCallsExceeded",
    "ContextWindowExceeded",
    "ModelRefused",
    "ModelUnavailable",
    "ModelAuthentication",
    "ModelBadRequest",
    "ModelBehaviour",
    "ToolFailed",
    "ApprovalDenied",
    "ApprovalExpired",
    "PayloadTooLarge",
    "InternalError",
]


class RunOptions(SparseRecord):
    """What a caller may tighten. None means: as the agent says. A value that widens a limit is refused at start.

    `approve` "all" has every call wait for a decision. `on_tool_error` "fail_run" ends the run at the first failure, as
    ToolFailed. `tool_concurrency` "auto" runs calls without effect side by side and the others one by one.
    """

    max_rounds: int | None = Field(default=None, ge=0)
    max_tool_calls: int | None = Field(default=None, ge=0)
    approval_expires_seconds: int | None = Field(default=None, ge=1)
    approve: Literal["contract", "all"] = "contract"
    on_tool_error: Literal["tell_model", "fail_run"] = "tell_model"
    tool_concurrency: Literal["auto", "parallel", "sequential"] = "auto"
    tool_output: OutputLimits | None = None


# Options of the public protocol that this version does not act on. They are refused by name, never ignored.
UNSUPPORTED_OPTIONS = (
    "max_total_tokens",
    "max_cost_usd",
    "deadline_seconds",
    "stop_on_tools",
    "output_schema",
    "compensate_on",
)


class AgentRunInput(Record):
    """Starts a run. `prompt` is appended after `messages`; one of the two is needed.

    `carried` is written by the run itself when it continues as new.
    """

    agent: str = Field(min_length=1, max_length=64)
    prompt: str | None = None
    messages: tuple[Message, ...] = ()
    context: ExecutionContext = ExecutionContext()
    options: RunOptions = RunOptions()
    carried: str | None = None


class LimitUse(Record):
    """How much of a limit is used."""

    used: int
    max: int


class EffectRecord(Record):
    """What became of a call that may have changed the world. Written before the first attempt, as `unknown`."""

    call_id: str
    tool: str
    state: EffectState


class ToolResultRecord(SparseRecord):
    """One answered call. `text` is what the model read; `attempts` is 0 for a call that never ran; `duration_ms` is
    from the first attempt's scheduling to the outcome, in milliseconds."""

    call_id: str
    tool: str
    ok: bool
    text: str = ""
    error: ToolErrorInfo | None = None
    duration_ms: int = 0
    attempts: int = 0
    idempotency_key: str | None = None
    truncated: bool = False


class ToolResultsQuery(Record):
    """Argument of the query `tool_results`: outcomes from `start` on, about `max_bytes` of JSON, at least one."""

    start: int = Field(default=0, ge=0)
    max_bytes: int = Field(default=524_288, ge=1, le=524_288)


class CompleteResult(SparseRecord):
    """One answered call with its complete outcome."""

    call_id: str
    tool: str
    outcome: ToolOutcome


class ToolResultsPage(Record):
    """Outcomes `start` to `next` - 1 of `total`. Those before `first_available` are in an earlier execution of the run,
    whose id is the state's `previous_run_id`."""

    records: tuple[CompleteResult, ...]
    next: int
    total: int
    first_available: int


class RunError(Record):
    """Why a run did not complete."""

    type: ErrorType
    message: str


class AgentRunState(Record):
    """Answer of the query `state`. `revision` rises by one with every event."""

    status: RunStatus
    revision: int
    round: int
    agent: str | None
    pending_approvals: tuple[ApprovalRequest, ...]
    usage: Usage
    limits: dict[str, LimitUse]
    effects: tuple[EffectRecord, ...]
    last_sequence: int
    error: RunError | None
    previous_run_id: str | None


class AgentRunResult(Record):
    """What a run ends with; a failed one carries it as the first detail of its error.

    Bounded: long texts are cut and say so, and `tool_results_omitted` counts the oldest results left out.
    """

    workflow_id: str
    run_id: str
    status: RunStatus
    text: str = ""
    finish_reason: str | None = None
    rounds: int = 0
    tool_results: tuple[ToolResultRecord, ...] = ()
    tool_results_omitted: int = 0
    usage: Usage = Usage()
    effects: tuple[EffectRecord, ...] = ()
    last_sequence: int = 0
    error: RunError | None = None


def widening(name: str, wanted: int | None, allowed: int) -> str | None:
    """Why this option may not be set, or None: a run may tighten what its agent allows, never widen it."""
    if wanted is None or wanted <= allowed:
        return None
    return f"options.{name} is {wanted}, but the agent allows at most {allowed}: leave it out or lower it"


def unsupported_options(options: JsonValue) -> list[str]:
    """The names of options that this version would otherwise silently ignore."""
    return [name for name in UNSUPPORTED_OPTIONS if isinstance(options, dict) and options.get(name) is not None]
