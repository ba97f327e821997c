"""What the runtime may know of a tool, and what a tool receives."""

import math
from datetime import datetime
from typing import Literal, Protocol, Self

from pydantic import Field, JsonValue, PrivateAttr, field_validator, model_validator

from contracts.context import ExecutionContext
from contracts.outcomes import ToolOutcome, says_done
from contracts.policies import (
    RETRY_AFTER_MAX_SECONDS,
    Approval,
    Capability,
    CompensationRule,
    HeartbeatRule,
    Idempotency,
    OutputLimits,
    OutputValidation,
    ResourceVersionRule,
    RetryRule,
    SideEffect,
)
from contracts.records import AuthoredRecord, Record

# Activity types of the runtime itself, and the name that stands for a provider's own web search.
RESERVED_NAMES = frozenset(
    {
        "load_agent",
        "call_model",
        "review_calls",
        "verify_decision",
        "notify",
        "request_cancel",
        "read_ledger",
        "settle_outcome",
        "web_search",
    }
)
# What every provider accepts as a function name. Names are lower-case: two that differ in case would collide.
NAME_PATTERN = r"^[a-z0-9_-]{1,64}$"


class ToolContract(AuthoredRecord):
    """Everything the runtime may know of a tool. Frozen into a run's history when the run starts.

    Only name, description and input_schema are shown to the model. `side_effect` says what a call may change: nothing
    ("none", "read"), something ("write"), or something that cannot be had back ("destructive"); `idempotency` whether
    it may be repeated, and `approval` whether a person decides first. A success is held against `output_schema`:
    `output_validation` "strict" makes one that breaks it a failure with code invalid_output, "warn" keeps it and says
    so in its metadata, "disabled" does not look. Durations are in seconds: `timeout` bounds one
    attempt, `lost_after` is how long a lost worker goes unnoticed, and `heartbeat` is for a tool that reports progress
    by itself. `settings` names what the worker must have set for the tool; values never enter history. `task_queue` is
    set for a tool that runs in another process or language, and `taken_within` is how long a call waits for a worker
    there; `completes_later` for one whose result comes from outside,
    by Temporal's asynchronous completion. `model_output` tightens what the model reads of a result.
    """

    schema_version: Literal[3] = 3
    name: str = Field(pattern=NAME_PATTERN)
    version: str = Field(default="1", min_length=1, max_length=100)
    description: str = Field(min_length=1, max_length=4_096)
    input_schema: dict[str, JsonValue]
    output_schema: dict[str, JsonValue] | None = None
    output_validation: OutputValidation = "strict"
    side_effect: SideEffect
    idempotency: Idempotency = "unknown"
    approval: Approval = "never"
    timeout: float = Field(default=60.0, gt=0, le=2_592_000, allow_inf_nan=False)
    lost_after: float = Field(default=10.0, ge=1, le=3_600, allow_inf_nan=False)
    heartbeat: HeartbeatRule | None = None
    retry: RetryRule = RetryRule()
    compensation: CompensationRule | None = None
    reconciles: bool = False
    resource_version: ResourceVersionRule | None = None
    capabilities: tuple[Capability, ...] = ()
    model_output: OutputLimits | None = None
    settings: tuple[str, ...] = ()
    task_queue: str | None = Field(default=None, min_length=1, max_length=200)
    taken_within: float = Field(default=600.0, gt=0, le=2_592_000, allow_inf_nan=False)
    completes_later: bool = False
    metadata: dict[str, str] = {}

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        if name in RESERVED_NAMES:
            raise ValueError(f"{name!r} is reserved")
        return name

    @field_validator("capabilities")
    @classmethod
    def _capabilities_are_distinct(cls, capabilities: tuple[Capability, ...]) -> tuple[Capability, ...]:
        names = [capability.name for capability in capabilities]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two capabilities are named {name!r}")
        return capabilities

    @model_validator(mode="after")
    def _promises_can_be_kept(self) -> Self:
        if self.retry.max_attempts > 1 and not self.repeatable and self.compensation is None:
            raise ValueError(
                f"retry.max_attempts is {self.retry.max_attempts}, but a {self.side_effect} tool with idempotency "
                f"{self.idempotency!r} must not be repeated: declare it idempotent, give it compensation, or allow one "
                "attempt"
            )
        if not self.has_effect and (self.compensation is not None or self.reconciles):
            raise ValueError(f"a tool with side effect {self.side_effect!r} has no effect to undo or to find out about")
        if self.completes_later and self.heartbeat is not None:
            raise ValueError("a tool that completes later cannot report progress: its attempt has ended")
        return self

    @property
    def has_effect(self) -> bool:
        """Whether a call may change the world."""
        return self.side_effect in ("write", "destructive")

    @property
    def repeatable(self) -> bool:
        """Whether an attempt with an unknown outcome may simply be made again. What has no effect may, unless its
        contract says otherwise: a read may cost money, or take what it reads."""
        if self.idempotency == "unknown":
            return not self.has_effect
        return self.idempotency != "non_idempotent"

    def repeats(self, outcome: ToolOutcome) -> bool:
        """Whether a failed outcome is of a kind that another attempt may mend. An effect that was done is never
        repeated for its result, whatever `retry.retryable` says."""
        if outcome.error is None or (self.has_effect and says_done(outcome)):
            return False
        if self.retry.retryable:
            return outcome.error.category in self.retry.retryable
        return outcome.error.retryable

    def delay_after(self, outcome: ToolOutcome, attempt: int, spread: float) -> float:
        """Seconds to wait between this attempt (from 1) and the next: as the rule says, and at least as long as the
        failure asked for in its metadata `retry_after`, within RETRY_AFTER_MAX_SECONDS. `spread` is as for the rule."""
        delay = self.retry.delay(attempt, spread)
        asked = outcome.metadata.get("retry_after")
        if not isinstance(asked, int | float) or not math.isfinite(asked):
            return delay
        return max(delay, min(asked, RETRY_AFTER_MAX_SECONDS))


class ToolControl(Protocol):
    """What the runtime offers a running attempt."""

    def still_mine(self) -> bool:
        """Whether this attempt is the one that counts."""
        ...

    def heartbeat(self, progress: float | None, message: str) -> None:
        """Report that the work goes on."""
        ...

    def setting(self, name: str) -> str:
        """The value of one of the settings that the contract names."""
        ...

    def completion_token(self) -> bytes:
        """What completes this attempt from outside."""
        ...


class ToolInvocation(Record):
    """What a tool receives beside its arguments.

    `idempotency_key` is the same for every attempt of this call, and for no other call. `attempt` counts from 1.
    `deadline` is when the attempt is given up (UTC). `expected_resource_version` is what the contract's
    `resource_version` read from the arguments, a text or None. `action_digest` names the tool, version and arguments
    that were approved. `output_limits` is how much of the result the model may read. `after_unknown` says that an
    earlier attempt may have taken effect: a failure of this one does not mean that nothing happened.
    """

    call_id: str
    tool: str
    version: str
    arguments: dict[str, JsonValue]
    idempotency_key: str
    action_digest: str
    attempt: int = 1
    deadline: datetime | None = None
    expected_resource_version: str | None = None
    output_limits: OutputLimits = OutputLimits()
    after_unknown: bool = False
    context: ExecutionContext = ExecutionContext()

    _control: ToolControl | None = PrivateAttr(default=None)

    def controlled_by(self, control: ToolControl) -> Self:
        """This invocation, connected to the attempt it belongs to."""
        connected = self.model_copy()
        connected._control = control
        return connected

    def still_mine(self) -> bool:
        """False once the attempt has timed out, was cancelled or lost: do not write any more, another attempt may run.

        A plain function cannot be stopped from outside, so a long one asks before each effect.
        """
        return self._control is None or self._control.still_mine()

    def heartbeat(self, progress: float | None = None, message: str = "") -> None:
        """Report progress, from 0 to 1, and a short message. What a contract with `heartbeat` promises to do."""
        if self._control is not None:
            self._control.heartbeat(progress, message)

    def setting(self, name: str) -> str:
        """The value of a setting that the contract names, from the worker's environment. Raises KeyError for others."""
        if self._control is None:
            raise KeyError(name)
        return self._control.setting(name)

    def completion_token(self) -> bytes:
        """The token by which somebody else completes this attempt later. Every attempt has its own. Raises RuntimeError
        outside an attempt."""
        if self._control is None:
            raise RuntimeError("there is no attempt to complete")
        return self._control.completion_token()


class UndoRequest(Record):
    """What an undo receives: the call, its outcome as it was, and the token that the outcome carried."""

    invocation: ToolInvocation
    outcome: ToolOutcome
    compensation_token: str | None = None


class UndoOutcome(Record):
    """What an undo came to. `attempts` is written by the runtime."""

    state: Literal["compensated", "nothing_to_undo"] = "compensated"
    text: str = ""
    attempts: int = 1


class Reconciliation(Record):
    """What the outside world says of a call whose end nobody saw. `outcome` is what to tell the model when done."""

    state: Literal["done", "not_done", "unknown"]
    outcome: ToolOutcome | None = None


class ReconcileRequest(Record):
    """What a reconciliation receives."""

    invocation: ToolInvocation


class SettleRequest(Record):
    """A raw outcome from outside, to be checked and projected as the worker's own are.

    `raw` is whatever came; `agent_digest` names the agent whose contract of `invocation.tool` holds.
    """

    agent_digest: str
    invocation: ToolInvocation
    raw: JsonValue
