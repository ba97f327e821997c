"""What a tool returns, and what the model reads of it."""

import json
from typing import Literal

from pydantic import JsonValue

from contracts.canonical import canonical_json
from contracts.records import FromOutside, SparseRecord
from contracts.text import cut, encodable, head, legal_json, surrogates

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
ERROR_MESSAGE_MAX_BYTES = 2_000
# What is kept of an outcome's metadata where the outcome is cut.
METADATA_MAX_BYTES = 16_384
ERROR_CODE_MAX_BYTES = 100
# What the model is told of an effect whose end nobody saw.
MAY_HAVE_HAPPENED = "it may or may not have taken effect: do not repeat it blindly, find out first"


_NOT_DONE = frozenset({"invalid_input", "not_found", "permission_denied", "conflict", "rate_limited", "unavailable"})
# The tool did its work and returned; only what it returned could not be used.
_DONE = frozenset({"result_not_json", "invalid_output", "result_refused"})


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
    """How a result was cut for the model. Bytes are of UTF-8, tokens are estimates; `limiting` names the limits that
    the original passes."""

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
    undo. `metadata` is not shown to the model, `artifacts` are beside `data`. `projection` is written by the runtime.
    """

    ok: bool
    text: str = ""
    data: JsonValue = None
    error: ToolErrorInfo | None = None
    resource_version: str | None = None
    compensation_required: bool = False
    compensation_token: str | None = None
    artifacts: FromOutside[Artifact] = ()
    metadata: dict[str, JsonValue] = {}
    projection: Projection | None = None


def failure(category: ErrorCategory, message: str, code: str = "", retryable: bool = False) -> ToolOutcome:
    """A failed outcome, its texts cut and encodable."""
    error = ToolErrorInfo(category=category, code=encodable(code), message=encodable(message), retryable=retryable)
    return ToolOutcome(ok=False, error=_bounded_error(error))


def says_done(outcome: ToolOutcome) -> bool:
    """Whether the tool did its work: a success, or one whose result could not be used."""
    return outcome.ok or (outcome.error is not None and outcome.error.code in _DONE)


def says_not_done(outcome: ToolOutcome) -> bool:
    """Whether a failure says that nothing happened: the tool or the runtime refused before any effect. An exception, a
    timeout or a cancellation may have come before or after it."""
    error = outcome.error
    if error is None or says_done(outcome):
        return False
    return error.category in _NOT_DONE or error.code == "not_started"


def not_certain(outcome: ToolOutcome) -> ToolOutcome:
    """The outcome of an attempt that did nothing, after one that may have done something."""
    error = outcome.error
    reason = (
        f"{error.message if error else ''}; an earlier attempt of this call may have succeeded, {MAY_HAVE_HAPPENED}"
    )
    told = failure(
        "unknown_outcome", reason, code=error.code if error else "", retryable=bool(error and error.retryable)
    )
    return outcome.model_copy(update={"error": told.error})


def full_text(outcome: ToolOutcome) -> str:
    """All that the model could read of an outcome.

    Of a success its text as is, or its data as canonical JSON; where data comes with a text or artifacts, canonical
    JSON {ok, message, data, artifacts}. Of a failure JSON {ok, error {category, code, message, retryable}}; one
    without a message says its text, code or category there.
    """
    if outcome.ok:
        if outcome.data is None:
            return outcome.text
        if not outcome.text and not outcome.artifacts:
            return canonical_json(outcome.data)
        artifacts: list[JsonValue] = [artifact.model_dump(mode="json") for artifact in outcome.artifacts]
        return canonical_json({"ok": True, "message": outcome.text, "data": outcome.data, "artifacts": artifacts})
    error = outcome.error or ToolErrorInfo(category="internal")
    message = error.message or outcome.text or error.code or error.category
    told = {"category": error.category, "code": error.code, "message": message, "retryable": error.retryable}
    return json.dumps({"ok": False, "error": told}, ensure_ascii=False)


def bounded(outcome: ToolOutcome) -> ToolOutcome:
    """The outcome made legal JSON, of one mind with itself, and no larger than OUTCOME_MAX_BYTES.

    One that was cut says in its metadata how many bytes of text there were (`original_bytes`), and one with lone
    surrogates in it how many were replaced by U+FFFD (`replaced_characters`). What undo, later calls
    and the record need is kept: artifacts, resource version, compensation, small metadata. Where even that is too
    large only `compensation_required` is left of it.
    """
    raw = outcome.model_dump(mode="python")
    if lost := surrogates(raw):
        raw["metadata"] = {**outcome.metadata, "replaced_characters": lost}
    legal = ToolOutcome.model_validate(legal_json(raw))
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
    metadata: dict[str, JsonValue] = {"original_bytes": len(whole.encode())}
    if len(canonical_json(legal.metadata).encode()) <= METADATA_MAX_BYTES:
        metadata = {**legal.metadata, **metadata}
    kept = legal.model_copy(update={"text": text, "data": None, "metadata": metadata, "projection": None})
    if len(kept.model_dump_json().encode()) <= OUTCOME_MAX_BYTES:
        return kept
    required = legal.compensation_required
    return ToolOutcome(ok=legal.ok, text=text, error=legal.error, compensation_required=required, metadata=metadata)


def _bounded_error(error: ToolErrorInfo) -> ToolErrorInfo:
    cut_texts = {"code": head(error.code, ERROR_CODE_MAX_BYTES), "message": cut(error.message, ERROR_MESSAGE_MAX_BYTES)}
    return error.model_copy(update=cut_texts)
