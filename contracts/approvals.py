"""Consent: what was asked, what was decided, and the digest that binds the two."""

from datetime import datetime
from typing import Literal

from pydantic import Field, JsonValue

from contracts.canonical import digest
from contracts.policies import Capability, SideEffect
from contracts.records import Record, SparseRecord

Resolution = Literal["approved", "denied", "expired"]


def action_digest(tool: str, version: str, arguments: dict[str, JsonValue]) -> str:
    """What an approval is bound to: SHA-256 of the canonical JSON of {tool, version, arguments}, as 64 lower-case hex
    digits. Raises ValueError for NaN and infinities."""
    return digest({"tool": tool, "version": version, "arguments": arguments})


class ApprovalRequest(Record):
    """A call that waits for a person. `action_digest` is that of `action_digest()`; times are UTC; `approvals` lists
    those who have approved so far. `subject_id` is who asks, and `context` the run's `ExecutionContext.shown`."""

    approval_id: str
    call_id: str
    tool: str
    tool_version: str
    arguments: dict[str, JsonValue]
    action_digest: str
    side_effect: SideEffect
    reason: str
    requested_at: datetime
    expires_at: datetime
    capabilities: tuple[Capability, ...] = ()
    approvals_required: int = 1
    approvals: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    subject_id: str | None = None
    context: dict[str, str] = {}


class ApprovalDecision(SparseRecord):
    """A person's answer to one approval request. `action_digest` is checked when given.

    `arguments` (edited), `scope` "tool" and `signature` are refused by name: this version does not act on them.
    """

    approval_id: str = Field(min_length=1, max_length=200)
    resolution: Literal["approved", "denied"]
    by: str = Field(min_length=1, max_length=200)
    reason: str = Field(default="", max_length=10_000)
    action_digest: str | None = None
    arguments: dict[str, JsonValue] | None = None
    scope: Literal["call", "tool"] = "call"
    signature: str | None = None

    def unsupported(self) -> list[str]:
        """The fields this decision sets that this version would otherwise silently ignore."""
        return [
            name
            for name, is_set in (
                ("arguments", self.arguments is not None),
                ("scope", self.scope != "call"),
                ("signature", self.signature is not None),
            )
            if is_set
        ]


class RecordedDecision(Record):
    """A decision as the run recorded it, `at` in UTC. `resolution` is "expired" when nobody answered in time."""

    approval_id: str
    call_id: str
    tool: str
    action_digest: str
    resolution: Resolution
    by: str
    reason: str
    at: datetime
