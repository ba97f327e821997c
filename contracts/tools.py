"""What the runtime may know of a tool, and what a tool receives."""

from datetime import datetime
from typing import Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from contracts.context import ExecutionContext
from contracts.records import Record

SideEffect = Literal["none", "read", "write", "destructive"]
Idempotency = Literal["unknown", "idempotent", "idempotent_with_key", "non_idempotent"]
Approval = Literal["never", "always"]

# Activity types of the runtime itself, and the name that stands for a provider's own web search.
RESERVED_NAMES = frozenset(
    {"load_agent", "call_model", "review_calls", "verify_decision", "notify", "request_cancel", "web_search"}
)
# What every provider accepts as a function name. Names are lower-case: two that differ in case would collide.
NAME_PATTERN = r"^[a-z0-9_-]{1,64}$"


class RetryRule(Record):
    """How often and when a failed attempt is repeated. Intervals are in seconds."""

    max_attempts: int = Field(default=1, ge=1, le=100)
    initial_interval: float = Field(default=0.1, gt=0, le=3600)
    max_interval: float = Field(default=5.0, gt=0, le=86_400)
    multiplier: float = Field(default=2.0, ge=1, le=100)

    @model_validator(mode="after")
    def _intervals_grow(self) -> Self:
        if self.initial_interval > self.max_interval:
            raise ValueError("retry.initial_interval is above retry.max_interval")
        return self


class ToolContract(Record):
    """Everything the runtime may know of a tool. Frozen into a run's history when the run starts.

    Only name, description and input_schema are shown to the model. `timeout` (seconds) bounds one attempt;
    `heartbeat_timeout` (seconds) is how long a lost worker goes unnoticed.
    """

    name: str = Field(pattern=NAME_PATTERN)
    version: str = Field(default="1", min_length=1, max_length=100)
    description: str = Field(min_length=1, max_length=4_096)
    input_schema: dict[str, JsonValue]
    side_effect: SideEffect
    idempotency: Idempotency = "unknown"
    approval: Approval = "never"
    timeout: float = Field(default=60.0, gt=0, le=86_400)
    heartbeat_timeout: float = Field(default=10.0, ge=1, le=3_600)
    retry: RetryRule = RetryRule()

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        if name in RESERVED_NAMES:
            raise ValueError(f"{name!r} is reserved")
        return name

    @model_validator(mode="after")
    def _retries_are_safe(self) -> Self:
        if self.retry.max_attempts > 1 and not self.repeatable:
            raise ValueError(
                f"retry.max_attempts is {self.retry.max_attempts}, but a {self.side_effect} tool with idempotency "
                f"{self.idempotency!r} must not be repeated: declare it idempotent, or allow one attempt"
            )
        return self

    @property
    def has_effect(self) -> bool:
        """Whether a call may change the world."""
        return self.side_effect in ("write", "destructive")

    @property
    def repeatable(self) -> bool:
        """Whether an attempt with an unknown outcome may simply be made again."""
        return not self.has_effect or self.idempotency in ("idempotent", "idempotent_with_key")


class ToolInvocation(Record):
    """What a tool receives beside its arguments.

    `idempotency_key` is the same for every attempt of this call, and for no other call. `attempt` counts from 1.
    `deadline` is when the attempt is given up (UTC). `action_digest` names the tool, version and arguments that were
    approved.
    """

    call_id: str
    tool: str
    version: str
    arguments: dict[str, JsonValue]
    idempotency_key: str
    action_digest: str
    attempt: int = 1
    deadline: datetime | None = None
    context: ExecutionContext = ExecutionContext()
