"""The parts of a tool contract: how often, how long, how much, and what must hold. Durations are in seconds."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from contracts.outcomes import ErrorCategory
from contracts.records import AuthoredRecord

SideEffect = Literal["none", "read", "write", "destructive"]
Idempotency = Literal["unknown", "idempotent", "idempotent_with_key", "non_idempotent"]
# `policy` lets a review decide for each call; without a review a person does, as with `always`.
Approval = Literal["never", "policy", "always"]
OutputValidation = Literal["strict", "warn", "disabled"]
Risk = Literal["low", "medium", "high", "critical"]

# How long an attempt may take that finds out whether a call took effect.
RECONCILE_SECONDS = 60.0
# However long a failure asks to wait, it is tried again after this time, in seconds.
RETRY_AFTER_MAX_SECONDS = 3_600.0

_POINTER = re.compile(r"(/([^~/]|~[01])*)+\Z")


def _well_formed(pointer: str) -> str:
    if not _POINTER.match(pointer):
        raise ValueError(f"{pointer!r} is no JSON Pointer: write /name, with ~0 for ~ and ~1 for / inside a name")
    return pointer


JsonPointer = Annotated[str, AfterValidator(_well_formed)]


class RetryRule(AuthoredRecord):
    """How often and when a failed attempt is repeated. Intervals are in seconds; `max_attempts` counts the first one.

    The delay after attempt n is initial_interval * multiplier**(n - 1), at most max_interval, times a random factor
    within 1 +- jitter, and at most max_interval again. `retryable` names the error categories that are repeated; left
    empty, each outcome's own `retryable` decides.
    """

    max_attempts: int = Field(default=1, ge=1, le=100)
    initial_interval: float = Field(default=0.1, gt=0, le=3_600, allow_inf_nan=False)
    max_interval: float = Field(default=5.0, gt=0, le=86_400, allow_inf_nan=False)
    multiplier: float = Field(default=2.0, ge=1, le=100, allow_inf_nan=False)
    jitter: float = Field(default=0.1, ge=0, le=1, allow_inf_nan=False)
    retryable: tuple[ErrorCategory, ...] = ()

    @model_validator(mode="after")
    def _intervals_grow(self) -> Self:
        if self.initial_interval > self.max_interval:
            raise ValueError("retry.initial_interval is above retry.max_interval")
        return self

    def delay(self, attempt: int, spread: float) -> float:
        """Seconds to wait after this attempt (from 1). `spread` is a random number from 0 up to 1."""
        # Bounded by the most attempts there may be: a power that is much larger would overflow.
        backoff = min(self.max_interval, self.initial_interval * self.multiplier ** min(attempt - 1, 100))
        return min(self.max_interval, backoff * (1 - self.jitter + 2 * self.jitter * spread))


class HeartbeatRule(AuthoredRecord):
    """The tool reports progress by itself. Silence longer than `timeout` ends the attempt; reports closer together than
    `minimum_interval` are not passed on. Both are in seconds."""

    timeout: float = Field(gt=0, le=86_400, allow_inf_nan=False)
    minimum_interval: float = Field(default=0.25, gt=0, le=3_600, allow_inf_nan=False)


class CompensationRule(AuthoredRecord):
    """The tool's effect can be undone, by the function given to `@<tool>.undo`. `timeout` is in seconds and bounds each
    of the undo's `max_attempts`."""

    timeout: float = Field(default=60.0, gt=0, le=86_400, allow_inf_nan=False)
    max_attempts: int = Field(default=1, ge=1, le=100)


class ResourceVersionRule(AuthoredRecord):
    """Optimistic concurrency; both places are JSON Pointers. With `require_expected`, a call without a scalar at
    `argument` is not made; the tool finds it as `invocation.expected_resource_version`. A scalar at `outcome` of the
    result is its resource_version."""

    require_expected: bool = False
    argument: JsonPointer = "/resource_version"
    outcome: JsonPointer = "/resource_version"


class OutputLimits(AuthoredRecord):
    """How much of one result the model may read: bytes of UTF-8, and tokens as `projection.estimate_tokens` counts.
    Both limits hold; a tool's own may only be tighter than the run's."""

    max_bytes: int = Field(default=65_536, ge=256, le=1_048_576)
    max_tokens: int = Field(default=10_000, ge=64, le=1_000_000)

    def tightened(self, other: "OutputLimits | None") -> "OutputLimits":
        """The smaller of each limit."""
        if other is None:
            return self
        return OutputLimits(
            max_bytes=min(self.max_bytes, other.max_bytes), max_tokens=min(self.max_tokens, other.max_tokens)
        )


class Capability(AuthoredRecord):
    """Something a tool needs to be allowed to do. Shown to whoever approves its calls."""

    name: str = Field(min_length=1, max_length=100)
    risk: Risk = "low"
    summary: str = Field(default="", max_length=1_000)
    resources: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
