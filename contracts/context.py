"""Who a run acts for: identity and correlation, carried to every tool, approval and event."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Self

from pydantic import ValidationInfo, field_validator

from contracts.canonical import digest
from contracts.records import SparseRecord
from contracts.text import cut

_IDENTIFIERS = (
    "run_id",
    "trace_id",
    "request_id",
    "tenant_id",
    "user_id",
    "application_id",
    "workspace_id",
    "conversation_id",
    "agent_id",
    "locale",
)
_METADATA = "context.metadata."
# The first one that is there is who acts.
_SUBJECTS = ("user_id", "agent_id", "application_id", "run_id")

# What a person is shown of a context, in bytes: a value, and all of them with their names.
SHOWN_VALUE_MAX_BYTES = 200
SHOWN_MAX_BYTES = 2_000

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
    readable in the run's history. Raises ValueError for a metadata key that looks like the name of one, where it is
    made in Python; what comes as JSON is refused when a run starts with it.
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

    @field_validator("metadata")
    @classmethod
    def _no_secrets(cls, metadata: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        # A recorded run is read as it is, whatever counts as a secret by now.
        if info.mode == "python" and (secrets := secret_keys(metadata)):
            raise ValueError(f"{secrets[0]} looks like a secret: keep secrets in the worker's settings")
        return metadata

    def identified(self, workflow_id: str, first_execution_run_id: str) -> Self:
        """The context with a run id and a trace id. A run that was given none is called by its workflow id, and its
        trace by a name that is the same over its whole chain of executions: `trace-` and 32 hex digits."""
        trace_id = self.trace_id or f"trace-{digest([workflow_id, first_execution_run_id])[:32]}"
        return self.model_copy(update={"run_id": self.run_id or workflow_id, "trace_id": trace_id})

    @property
    def attributes(self) -> dict[str, str]:
        """The context as flat names and texts, the one way it is shown anywhere: the identifiers that are not empty by
        their own names, the caller's metadata as `context.metadata.<key>`, without keys that look like secrets."""
        identifiers = {name: value for name in _IDENTIFIERS if (value := getattr(self, name))}
        secrets = secret_keys(self.metadata)
        metadata = {f"{_METADATA}{key}": value for key, value in self.metadata.items() if key not in secrets}
        return {**identifiers, **metadata}

    @property
    def shown(self) -> dict[str, str]:
        """The attributes as a person is shown them: long values cut, and as many as fit, the identifiers first."""
        shown, size = dict[str, str](), 0
        for name, value in self.attributes.items():
            short = cut(value, SHOWN_VALUE_MAX_BYTES)
            size += len(name.encode()) + len(short.encode())
            if size > SHOWN_MAX_BYTES:
                break
            shown[name] = short
        return shown

    @property
    def deadline_utc(self) -> datetime | None:
        """The deadline with its time zone: UTC, where it names none."""
        if self.deadline is None or self.deadline.tzinfo is not None:
            return self.deadline
        return self.deadline.replace(tzinfo=UTC)

    def is_over(self, moment: datetime) -> bool:
        """Whether it is too late at this moment."""
        return self.deadline_utc is not None and self.deadline_utc <= moment


def subject_id(attributes: Mapping[str, str]) -> str | None:
    """Who acts, by a context's attributes: the user, else the agent, else the application, else the run itself."""
    return next((attributes[name] for name in _SUBJECTS if name in attributes), None)


def with_host(attributes: Mapping[str, str], host: Mapping[str, str]) -> dict[str, str]:
    """A context's attributes with the host's own beside them. The context's names are its alone, also those it has no
    value for: a host cannot name another subject. Keys that look like secrets are left out."""
    secrets = secret_keys(host)
    own = {
        name: value
        for name, value in host.items()
        if name not in _IDENTIFIERS and not name.startswith(_METADATA) and name not in secrets
    }
    return {**own, **attributes}


def secret_keys(keys: Iterable[str]) -> list[str]:
    """The keys that look like the name of a secret: `api_key`, `userPassword`, `Set-Cookie`, ..."""
    return [key for key in keys if _looks_secret(key)]


def _looks_secret(key: str) -> bool:
    snake = _PUNCTUATION.sub("_", _CAMEL.sub("_", key)).strip("_").lower()
    return snake in _SECRET_ALONE or snake.endswith(tuple(f"_{word}" for word in _SECRET_WORDS))
