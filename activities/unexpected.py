"""What the model reads of an exception nobody planned: class, short text and reference, never a stack or a secret."""

import errno
import hashlib
import re

from activities.tool_secrets import ToolSecrets
from contracts.outcomes import MAY_HAVE_HAPPENED, ErrorCategory, ToolOutcome, failure
from contracts.text import encodable, head
from contracts.tools import ToolContract, ToolInvocation

TEXT_MAX_BYTES = 200

# The credentials of a URL, which may hold / and @ themselves, and those of a connection string: `password=...`.
_CREDENTIALS = re.compile(
    r"(?<=://)\S+(?=@)|(?i:(?<=password=)|(?<=passwd=)|(?<=pwd=)|(?<=secret=)|(?<=token=)|(?<=key=))(?:'[^']*'|[^\s;,&]+)"
)
_ERRNO: dict[int, ErrorCategory] = {
    errno.EINVAL: "invalid_input",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.ENOENT: "not_found",
    errno.ETIMEDOUT: "timeout",
    errno.ECANCELED: "cancelled",
}


def unexpected(
    contract: ToolContract, invocation: ToolInvocation, error: BaseException, secrets: ToolSecrets
) -> ToolOutcome:
    """The outcome of an attempt that raised something other than `ToolError`.

    It may be repeated where the contract allows. Nobody knows whether it came before or after an effect: that is an
    unknown outcome. The reference finds the whole exception in the worker's log.
    """
    kind = type(error).__name__
    told = f"{kind}: {_short(error, secrets)} (reference {reference(invocation)})"
    if contract.has_effect:
        told += f"; {MAY_HAVE_HAPPENED}"
        outcome = failure("unknown_outcome", told, code=kind, retryable=contract.repeatable)
    else:
        outcome = failure(_category(error), told, code=kind, retryable=True)
    return outcome.model_copy(update={"metadata": {"tool_exception": True}})


def reference(invocation: ToolInvocation) -> str:
    """Eight hex digits that name this attempt in the log."""
    return hashlib.sha256(f"{invocation.idempotency_key}{invocation.attempt}".encode()).hexdigest()[:8]


def _short(error: BaseException, secrets: ToolSecrets) -> str:
    try:
        lines = secrets.hidden(str(error)).splitlines()
    except BaseException:  # noqa: BLE001 - an exception that cannot even say what it is
        return "(no text)"
    first = _CREDENTIALS.sub("***", encodable(lines[0])) if lines else "(no text)"
    short = head(first, TEXT_MAX_BYTES)
    return short if short == first else f"{short}..."


def _category(error: BaseException) -> ErrorCategory:
    match error:
        case TimeoutError():
            return "timeout"
        case ConnectionError():
            return "unavailable"
        case OSError(errno=number) if number in _ERRNO:
            return _ERRNO[number]
    return "internal"
