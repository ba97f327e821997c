"""Who a run acts for: identity and correlation, carried to every tool, approval and event."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from contracts.records import SparseRecord

_SECRET_WORDS = (
    "token",
    "secret",
    "password",
    "credential",
    "credentials",
    "authorization",
    "api_key",
    "access_key",
    "private_key",
    "secret_key",
    "cookie",
)
_SECRET_ALONE = frozenset({*_SECRET_WORDS, "apikey", "proxy_authorization", "set_cookie"})
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PUNCTUATION = re.compile(r"[^0-9A-Za-z]+")


class ExecutionContext(SparseRecord):
    """Identity and correlation of a run. Every field is optional; `metadata` is the caller's own.

    An attempt of a tool ends at `deadline` at the latest. Never a place for secrets: the context is
    readable in the run's history.
    """

    run_id: str | None = None
    trace_id: str | None = None
    request_id: str | None = None
    tenant_id: str | None = None
    user_id: str | None = None
    application_id: str | None = None
    workspace_id: str | None = None
    conversation_id: str | None = None
    agent_id: str | None = None
    locale: str | None = None
    deadline: datetime | None = None
    metadata: dict[str, str] = {}

    @property
    def deadline_utc(self) -> datetime | None:
        """The deadline with its time zone: UTC, where it names none."""
        if self.deadline is None or self.deadline.tzinfo is not None:
            return self.deadline
        return self.deadline.replace(tzinfo=UTC)

    def is_over(self, moment: datetime) -> bool:
        """Whether it is too late at this moment."""
        return self.deadline_utc is not None and self.deadline_utc <= moment


def secret_keys(keys: Iterable[str]) -> list[str]:
    """The keys that look like the name of a secret: `api_key`, `userPassword`, `Set-Cookie`, ..."""
    return [key for key in keys if _looks_secret(key)]


def _looks_secret(key: str) -> bool:
    snake = _PUNCTUATION.sub("_", _CAMEL.sub("_", key)).strip("_").lower()
    return snake in _SECRET_ALONE or snake.endswith(tuple(f"_{word}" for word in _SECRET_WORDS))
