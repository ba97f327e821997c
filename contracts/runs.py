"""A run as its caller sees it: what starts it, what it shows, what it ends with."""

from typing import Literal

from pydantic import Field, JsonValue

from contracts.agents import Unfinished
from contracts.approvals import ApprovalRequest
from contracts.context import ExecutionContext
from contracts.effects import EffectRecord
from contracts.messages import Message, ToolCall, Usage
from contracts.models import Cost
from contracts.outcomes import ToolErrorInfo, ToolOutcome
from contracts.policies import OutputLimits
from contracts.records import FromOutside, Record, SparseRecord

RunStatus = Literal["created", "running", "waiting_for_approval", "completed", "failed", "cancelled", "timed_out"]

ErrorType = Literal[
    "InvalidInput",
    "UnknownAgent",
    "MaxRoundsExceeded",
    "MaxToolCallsExceeded",
    "TokenBudgetExceeded",
    "CostBudgetExceeded",
    "DeadlineExceeded",
    "ContextWindowExceeded",
    "ModelRefused",
    "ModelUnavailable",
    "ModelAuthentication",
    "ModelBadRequest",
    "ModelBehaviour",
    "ToolFailed",
    "ApprovalDenied",
    "ApprovalExpired",
    "CompensationFailed",
    "PayloadTooLarge",
    "InternalError",
]


class RunOptions(SparseRecord):
    """What a caller may tighten. None means: as the agent says. A value that widens a limit is refused at start.

    `approve` "all" has every call wait for a decision. `on_tool_error` "fail_run" ends the run at the first failure, as
    ToolFailed. `tool_concurrency` "auto" runs calls without effect side by side and the others one by one.
    `output_schema` is for an agent that has none of its own. `stop_on_tools` and `compensate_on` add to the agent's.
    """

    max_rounds: int | None = Field(default=None, ge=0)
    max_tool_calls: int | None = Field(default=None, ge=0)
    max_total_tokens: int | None = Field(default=None, ge=0)
    max_cost_usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    deadline_seconds: int | None = Field(default=None, ge=1)
    approval_expires_seconds: int | None = Field(default=None, ge=1)
    approve: Literal["contract", "all"] = "contract"
    on_tool_error: Literal["tell_model", "fail_run"] = "tell_model"
    tool_concurrency: Literal["auto", "parallel", "sequential"] = "auto"
    tool_output: OutputLimits | None = None
    output_schema: dict[str, JsonValue] | None = None
    stop_on_tools: FromOutside[str] = ()
    compensate_on: FromOutside[Unfinished] = ()


class AgentRunInput(Record):
    """Starts a run. `prompt` is appended after `messages`; one of the two is needed.

    `carried` is written by the run itself when it continues as new.
    """

    agent: str = Field(min_length=1, max_length=64)
    prompt: str | None = None
    messages: FromOutside[Message] = ()
    context: ExecutionContext = ExecutionContext()
    options: RunOptions = RunOptions()
    carried: str | None = None


class LimitUse(Record):
    """How much of a limit is used."""

    used: int | float
    max: int | float


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
    """Answer of the query `state`. `revision` rises by one with every event; `model` is the one that is asked next."""

    status: RunStatus
    revision: int
    round: int
    agent: str | None
    pending_approvals: tuple[ApprovalRequest, ...]
    usage: Usage
    cost: Cost = Cost()
    model: str | None = None
    limits: dict[str, LimitUse]
    effects: tuple[EffectRecord, ...]
    last_sequence: int
    error: RunError | None
    previous_run_id: str | None


class Stop(Record):
    """Why a run ended before the calls of its last reply, and what they were. `calls` is empty where they are too large
    to repeat: they are in the transcript."""

    reason: str
    calls: tuple[ToolCall, ...] = ()


class AgentRunResult(Record):
    """What a run ends with; a failed one carries it as the first detail of its error. `stop` is there for a run that
    met a stop condition.

    `output` is the answer as JSON, where an output_schema was asked for. Bounded: long texts are cut and say so, and
    `tool_results_omitted` counts the oldest results left out.
    """

    workflow_id: str
    run_id: str
    status: RunStatus
    text: str = ""
    output: JsonValue = None
    finish_reason: str | None = None
    rounds: int = 0
    tool_results: tuple[ToolResultRecord, ...] = ()
    tool_results_omitted: int = 0
    usage: Usage = Usage()
    cost: Cost = Cost()
    effects: tuple[EffectRecord, ...] = ()
    last_sequence: int = 0
    error: RunError | None = None
    stop: Stop | None = None


def widening(name: str, wanted: float | None, allowed: float | None) -> str | None:
    """Why this option may not be set, or None: a run may tighten what its agent allows, never widen it. None allows
    anything."""
    if wanted is None or allowed is None or wanted <= allowed:
        return None
    return f"options.{name} is {wanted}, but the agent allows at most {allowed}: leave it out or lower it"


class CancelRequest(Record):
    """Argument of the update `cancel_run`. One with another `expected_revision` than the run's is refused."""

    reason: str = Field(default="", max_length=10_000)
    expected_revision: int | None = Field(default=None, ge=0)


class CancelAccepted(Record):
    """Answer of the update `cancel_run`: the revision at which the run took it."""

    revision: int
    reason: str


class UserMessage(Record):
    """Argument of the signal `add_message`: what a user says while the run works. The same id counts once."""

    id: str = Field(min_length=1, max_length=200)
    text: str = Field(min_length=1)
