"""What the model reads of a result: all of it within two limits, else an envelope that says how much there was."""

import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, get_args

from pydantic import JsonValue, ValidationError

from contracts.canonical import canonical_json
from contracts.outcomes import ErrorCategory, Projection, ProjectionReport, ToolErrorInfo, ToolOutcome, full_text
from contracts.policies import OutputLimits
from contracts.records import SparseRecord

# How many tokens a text has. A pure function: a replay must project a result as the run did.
Estimator = Callable[[str], int]
Fault = Literal["invalid_policy", "envelope_exceeds_limits", "estimator_failure", "serialization_failure"]
Limiting = Literal["none", "bytes", "tokens", "bytes_and_tokens"]

OMITTED = "\n... tool output omitted ...\n"
# A multiple of four characters, so that an envelope is rounded to tokens as one without it: the published numbers hold.
HINT = " To read the missing part, ask for less at once."
# No envelope carries a larger number, and none a longer code (in characters of ASCII JSON): each then fits into 256
# bytes and 64 tokens.
LARGEST_NUMBER = 2**63 - 1
CODE_MAX_LENGTH = 44


class ProjectionError(Exception):
    """A result cannot be projected. The message is `reason`, and holds no word of the result or of the estimator."""

    def __init__(self, reason: Fault) -> None:
        super().__init__(reason)
        self.reason: Fault = reason


class ProjectionResult(SparseRecord):
    """A projection, or why there is none: `error` is "none" exactly where there is a projection."""

    projection: Projection | None = None
    error: Literal["none"] | Fault = "none"


def estimate_tokens(text: str) -> int:
    """A quarter of the ASCII characters, rounded up, and each other code point as one."""
    others = 0 if text.isascii() else len(text) - len(text.encode("ascii", errors="ignore"))
    return (len(text) - others + 3) // 4 + others


def check_limits(limits: OutputLimits, estimator: Estimator = estimate_tokens) -> None:
    """See before any work that every envelope fits: of a text, of data and of a failure of each category, with the
    largest numbers and the longest codes.

    Raises `ProjectionError`: invalid_policy, envelope_exceeds_limits or estimator_failure.
    """
    limits = _valid(limits)
    for outcome in _samples():
        _empty(_Whole(outcome, b"", LARGEST_NUMBER, LARGEST_NUMBER), limits, estimator)


def project(outcome: ToolOutcome, limits: OutputLimits, estimator: Estimator = estimate_tokens) -> Projection:
    """What the model reads of an outcome: `full_text` at or below both limits, else the largest envelope within them.

    A text keeps its beginning and its end around `OMITTED`. Data and failures stay JSON, with such a text as `preview`.
    Of what `bounded` has cut before there is always an envelope, and no end is shown: it is lost.
    Raises `ProjectionError`.
    """
    limits = _valid(limits)
    whole = _whole(outcome, estimator)
    if not whole.cut_before and whole.bytes <= limits.max_bytes and whole.tokens <= limits.max_tokens:
        return Projection(report=_report(whole, limits, whole.bytes, whole.tokens, truncated=False))
    envelope = _largest(whole, limits, estimator)
    report = _report(whole, limits, len(envelope.text.encode()), envelope.tokens, truncated=True)
    return Projection(report=report, text=envelope.text)


def try_project(outcome: ToolOutcome, limits: OutputLimits, estimator: Estimator = estimate_tokens) -> ProjectionResult:
    """As `project`, with the reason as a value in place of an exception."""
    try:
        return ProjectionResult(projection=project(outcome, limits, estimator))
    except ProjectionError as error:
        return ProjectionResult(error=error.reason)


def model_text(outcome: ToolOutcome) -> str:
    """What the model reads: the text of the projection, or all there is."""
    if outcome.projection is None or outcome.projection.text is None:
        return full_text(outcome)
    return outcome.projection.text


def audit(text: str) -> str:
    """SHA-256 of what the model read, in UTF-8, as 64 lower-case hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_report(report: ProjectionReport) -> None:
    """Refuse a report that no projection can have made.

    A truncated one may be within both limits: what `bounded` has cut before. Raises ValueError.
    """
    original = report.original_bytes, report.original_tokens
    projected = report.projected_bytes, report.projected_tokens
    if min(*original, *projected) < 0:
        raise ValueError("a projection report has a negative number")
    if report.limiting != _limiting(*original, report.max_bytes, report.max_tokens):
        raise ValueError("a projection report's limiting factor does not match its numbers")
    if _limiting(*projected, report.max_bytes, report.max_tokens) != "none":
        raise ValueError("a projection report's text is above its limits")
    if not report.truncated and projected != original:
        raise ValueError("a projection report has other numbers for a text that is whole")


class _Whole(NamedTuple):
    """All there is of a result. `raw` is its text in UTF-8; `bytes` and `tokens` are those of the original, of which
    `raw` is only the beginning where it was cut before."""

    outcome: ToolOutcome
    raw: bytes
    bytes: int
    tokens: int
    cut_before: bool = False

    def shown(self, size: int) -> tuple[str, str]:
        """The beginning and the end, no character split, `size` bytes together at most."""
        first = size if self.cut_before else size // 2
        # The text is valid UTF-8: only a character that a cut has split is ignored.
        start = self.raw[:first].decode(errors="ignore")
        return start, self.raw[len(self.raw) - (size - first) :].decode(errors="ignore")

    def envelope(self, start: str = "", end: str = "") -> str:
        if self.outcome.ok and self.outcome.data is None:
            numbers = f"(original bytes: {self.bytes}, estimated tokens: {self.tokens})"
            return f"Warning: tool output truncated {numbers}.{HINT}\n{start}{OMITTED}{end}"
        told: dict[str, JsonValue] = {
            "ok": self.outcome.ok,
            "preview": f"{start}{OMITTED}{end}" if start or end else "",
            "truncation": {
                "truncated": True,
                "original_bytes": self.bytes,
                "original_estimated_tokens": self.tokens,
            },
        }
        if not self.outcome.ok:
            error = self.outcome.error or ToolErrorInfo(category="internal")
            code = _short(error.code)
            told["error"] = {"category": error.category, "code": code, "retryable": error.retryable}
        return canonical_json(told)


class _Envelope(NamedTuple):
    """A text for the model and its estimated tokens, measured once: an estimator may not say the same twice."""

    text: str
    tokens: int


def _whole(outcome: ToolOutcome, estimator: Estimator) -> _Whole:
    try:
        text = full_text(outcome)
        raw = text.encode()
    except (ValueError, TypeError, RecursionError):
        raw = None
    if raw is None:
        # Outside the except clause, here and below: the error would otherwise bring along what it was raised for.
        raise ProjectionError("serialization_failure")
    size, tokens = len(raw), _tokens(text, estimator)
    known = outcome.metadata.get("original_bytes")
    # A tool may write this key as well: only a number above what is there tells of a cut.
    if type(known) is not int or known <= size:
        return _Whole(outcome, raw, size, tokens)
    original = min(known, LARGEST_NUMBER)
    scaled = min(-(-tokens * original // max(size, 1)), LARGEST_NUMBER)
    return _Whole(outcome, raw, original, scaled, cut_before=True)


def _largest(whole: _Whole, limits: OutputLimits, estimator: Estimator) -> _Envelope:
    """The envelope that shows most, found by bisection. Only one that was measured to fit is returned, so that an
    estimator with which more text has fewer tokens costs preview and never a limit."""
    best = empty = _empty(whole, limits, estimator)
    low, high = 0, min(limits.max_bytes - len(empty.text.encode()), len(whole.raw))
    while low < high:
        middle = (low + high + 1) // 2
        start, end = whole.shown(middle)
        # As in the published cases, what is shown has to fit beside the envelope as well, each rounded up by itself.
        fitting = None
        if empty.tokens + _tokens(start + end, estimator) <= limits.max_tokens:
            fitting = _fitting(whole.envelope(start, end), limits, estimator)
        if fitting is None:
            high = middle - 1
        else:
            low, best = middle, fitting
    return best


def _empty(whole: _Whole, limits: OutputLimits, estimator: Estimator) -> _Envelope:
    empty = _fitting(whole.envelope(), limits, estimator)
    if empty is None:
        raise ProjectionError("envelope_exceeds_limits")
    return empty


def _fitting(text: str, limits: OutputLimits, estimator: Estimator) -> _Envelope | None:
    if len(text.encode()) > limits.max_bytes:
        return None
    tokens = _tokens(text, estimator)
    return _Envelope(text, tokens) if tokens <= limits.max_tokens else None


def _tokens(text: str, estimator: Estimator) -> int:
    tokens = -1
    # An estimator may be anybody's, and its words may quote the text.
    with contextlib.suppress(Exception):
        tokens = estimator(text)
    if type(tokens) is not int or not 0 <= tokens <= LARGEST_NUMBER:
        raise ProjectionError("estimator_failure")
    return tokens


def _valid(limits: OutputLimits) -> OutputLimits:
    """The limits, checked again: a copy or a construction may have left validation out."""
    try:
        return OutputLimits(max_bytes=limits.max_bytes, max_tokens=limits.max_tokens)
    except ValidationError:
        raise ProjectionError("invalid_policy") from None


def _short(code: str) -> str:
    """The code within CODE_MAX_LENGTH, dots in place of what was cut."""
    if len(json.dumps(code)) - 2 <= CODE_MAX_LENGTH:
        return code
    start = code[: CODE_MAX_LENGTH - 3]
    while len(json.dumps(start)) - 2 > CODE_MAX_LENGTH - 3:
        start = start[:-1]
    return start + "..."


def _samples() -> Iterator[ToolOutcome]:
    """One outcome for each envelope: codes that are cut to the most bytes, and to the most characters beyond ASCII."""
    yield ToolOutcome(ok=True)
    yield ToolOutcome(ok=True, data={})
    codes = "x" * CODE_MAX_LENGTH, "界" * CODE_MAX_LENGTH
    categories: tuple[ErrorCategory, ...] = get_args(ErrorCategory)
    for category, code, retryable in itertools.product(categories, codes, (False, True)):
        yield ToolOutcome(ok=False, error=ToolErrorInfo(category=category, code=code, retryable=retryable))


def _report(whole: _Whole, limits: OutputLimits, size: int, tokens: int, truncated: bool) -> ProjectionReport:
    return ProjectionReport(
        truncated=truncated,
        original_bytes=whole.bytes,
        original_tokens=whole.tokens,
        projected_bytes=size,
        projected_tokens=tokens,
        max_bytes=limits.max_bytes,
        max_tokens=limits.max_tokens,
        limiting=_limiting(whole.bytes, whole.tokens, limits.max_bytes, limits.max_tokens),
    )


def _limiting(size: int, tokens: int, max_bytes: int, max_tokens: int) -> Limiting:
    if size > max_bytes:
        return "bytes_and_tokens" if tokens > max_tokens else "bytes"
    return "tokens" if tokens > max_tokens else "none"
