"""What a tool returns, and what the model reads of it."""

import json
from typing import Literal

from pydantic import JsonValue

from contracts.canonical import canonical_json
from contracts.records import SparseRecord
from contracts.text import cut, encodable, head, legal_json

ErrorCategory = Literal[
    "invalid_input",
    "not_found",
    "permission_denied",
    "conflict",
    "rate_limited",
    "timeout",
    "cancelled",
    "unavailable",
    "internal",
    "unknown_outcome",
]

# A whole outcome enters history once, and a batch of them has to fit into the 50 MB that one history may have. What is
# larger belongs into an artifact.
OUTCOME_MAX_BYTES = 262_144
# What the model reads of one outcome.
MODEL_TEXT_MAX_BYTES = 65_536
ERROR_MESSAGE_MAX_BYTES = 2_000
ERROR_CODE_MAX_BYTES = 100
# What the model is told of an effect whose end nobody saw.
MAY_HAVE_HAPPENED = "it may or may not have taken effect: do not repeat it blindly, find out first"


_NOT_DONE = frozenset({"invalid_input", "not_found", "permission_denied", "conflict", "rate_limited", "unavailable"})


class ToolErrorInfo(SparseRecord):
    """Why a call failed. `code` is the tool's own short name for it; `retryable` says whether trying again may help."""

    category: ErrorCategory
    code: str = ""
    message: str = ""
    retryable: bool = False


class Artifact(SparseRecord):
    """Something a tool made that is kept elsewhere. `bytes` is its size, `sha256` 64 hex digits."""

    name: str
    uri: str
    media_type: str = "application/octet-stream"
    bytes: int | None = None
    sha256: str | None = None


class ProjectionReport(SparseRecord):
    """How a result was cut for the model. Tokens are estimates."""

    truncated: bool
    original_bytes: int
    original_tokens: int
    projected_bytes: int
    projected_tokens: int
    max_bytes: int
    max_tokens: int
    limiting: Literal["none", "bytes", "tokens", "bytes_and_tokens"] = "none"


class Projection(SparseRecord):
    """What the model reads in place of a whole result. `text` is left out where it is the whole, byte for byte."""

    report: ProjectionReport
    text: str | None = None


class ToolOutcome(SparseRecord):
    """What a tool returned, complete: `text` or `data` when ok, `error` when not.

    `compensation_required` says that the failed attempt left something to undo, `compensation_token` is handed to the
    undo. `metadata` and `artifacts` are not shown to the model. `projection` is written by the runtime.
    """

    ok: bool
    text: str = ""
    data: JsonValue = None
    error: ToolErrorInfo | None = None
    resource_version: str | None = None
    compensation_required: bool = False
    compensation_token: str | None = None
    artifacts: tuple[Artifact, ...] = ()
    metadata: dict[str, JsonValue] = {}
    projection: Projection | None = None


def failure(category: ErrorCategory, message: str, code: str = "", retryable: bool = False) -> ToolOutcome:
    """A failed outcome, its texts cut and encodable."""
    error = ToolErrorInfo(category=category, code=encodable(code), message=encodable(message), retryable=retryable)
    return ToolOutcome(ok=False, error=_bounded_error(error))


def says_not_done(outcome: ToolOutcome) -> bool:
    """Whether a failure says that nothing happened: the tool or the runtime refused before any effect. An exception, a
    timeout or a cancellation may have come before or after it."""
    error = outcome.error
    return error is not None and (error.category in _NOT_DONE or error.code == "not_started")


def full_text(outcome: ToolOutcome) -> str:
    """All that the model could read of an outcome: its text as is, else its data as compact JSON, else its error."""
    if outcome.ok:
        return outcome.text if outcome.data is None else canonical_json(outcome.data)
    error = outcome.error or ToolErrorInfo(category="internal", message=outcome.text)
    told = {"category": error.category, "code": error.code, "message": error.message, "retryable": error.retryable}
    return json.dumps({"ok": False, "error": told}, ensure_ascii=False)


def bounded(outcome: ToolOutcome) -> ToolOutcome:
    """The outcome made legal JSON, of one mind with itself, and no larger than OUTCOME_MAX_BYTES.

    One that was cut says in its metadata how many bytes of text there were (`original_bytes`).
    """
    legal = ToolOutcome.model_validate(legal_json(outcome.model_dump(mode="python")))
    error = legal.error
    if error is None and not legal.ok:
        error = ToolErrorInfo(category="internal", code="no_reason", message=legal.text or "the tool did not say why")
    legal = legal.model_copy(update={"ok": error is None, "error": error and _bounded_error(error)})
    size = len(legal.model_dump_json().encode())
    if size <= OUTCOME_MAX_BYTES:
        return legal
    # An eighth of the bound: one byte of text may take six in JSON, as an escape.
    whole = full_text(legal)
    text = head(whole, OUTCOME_MAX_BYTES // 8)
    marks: dict[str, JsonValue] = {"original_bytes": len(whole.encode())}
    smaller = legal.model_copy(update={"text": text, "data": None, "artifacts": (), "metadata": marks})
    # What the runtime acts on is kept: an undo that is not asked for leaves its effect behind.
    if len(smaller.model_dump_json().encode()) > OUTCOME_MAX_BYTES:
        smaller = smaller.model_copy(update={"resource_version": None, "compensation_token": None})
    return smaller.model_copy(update={"projection": None})


def _bounded_error(error: ToolErrorInfo) -> ToolErrorInfo:
    cut_texts = {"code": head(error.code, ERROR_CODE_MAX_BYTES), "message": cut(error.message, ERROR_MESSAGE_MAX_BYTES)}
    return error.model_copy(update=cut_texts)
