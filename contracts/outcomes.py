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

# A whole outcome enters history once: well below the 2 MiB that Temporal takes in one payload.
OUTCOME_MAX_BYTES = 1_048_576
# What the model reads of one outcome.
MODEL_TEXT_MAX_BYTES = 65_536
ERROR_MESSAGE_MAX_BYTES = 2_000


class ToolErrorInfo(SparseRecord):
    """Why a call failed. `code` is the tool's own short name for it; `retryable` says whether trying again may help."""

    category: ErrorCategory
    code: str = ""
    message: str = ""
    retryable: bool = False


class ToolOutcome(SparseRecord):
    """What a tool returned: `text` or `data` when ok, `error` when not. `metadata` is not shown to the model."""

    ok: bool
    text: str = ""
    data: JsonValue = None
    error: ToolErrorInfo | None = None
    metadata: dict[str, JsonValue] = {}


def failure(category: ErrorCategory, message: str, code: str = "", retryable: bool = False) -> ToolOutcome:
    """A failed outcome, its message cut to ERROR_MESSAGE_MAX_BYTES and encodable."""
    text = cut(encodable(message), ERROR_MESSAGE_MAX_BYTES)
    return ToolOutcome(ok=False, error=ToolErrorInfo(category=category, code=code, message=text, retryable=retryable))


def full_text(outcome: ToolOutcome) -> str:
    """All that the model could read of an outcome: its text as is, else its data as compact JSON, else its error."""
    if outcome.ok:
        return outcome.text if outcome.data is None else canonical_json(outcome.data)
    error = outcome.error or ToolErrorInfo(category="internal", message=outcome.text)
    told = {"category": error.category, "code": error.code, "message": error.message, "retryable": error.retryable}
    return json.dumps({"ok": False, "error": told}, ensure_ascii=False)


def bounded(outcome: ToolOutcome) -> ToolOutcome:
    """The outcome made legal JSON and no larger than OUTCOME_MAX_BYTES; a cut one says in metadata how
    many bytes of text there were (`original_bytes`)."""
    legal = ToolOutcome.model_validate(legal_json(outcome.model_dump(mode="python")))
    size = len(legal.model_dump_json().encode())
    if size <= OUTCOME_MAX_BYTES:
        return legal
    # An eighth of the bound: one byte of text may take six in JSON, as an escape.
    whole = full_text(legal)
    text = head(whole, OUTCOME_MAX_BYTES // 8)
    error = legal.error
    if error is not None:
        error = error.model_copy(update={"message": cut(error.message, ERROR_MESSAGE_MAX_BYTES)})
    return ToolOutcome(ok=legal.ok, text=text, error=error, metadata={"original_bytes": len(whole.encode())})
