"""What the model reads of a result: whole where it fits, else an envelope within both limits."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from contracts.canonical import canonical_json
from contracts.outcomes import (
    OUTCOME_MAX_BYTES,
    ErrorCategory,
    Projection,
    ProjectionReport,
    ToolErrorInfo,
    ToolOutcome,
    bounded,
    failure,
    full_text,
)
from contracts.policies import OutputLimits
from contracts.projection import (
    HINT,
    LARGEST_NUMBER,
    OMITTED,
    Estimator,
    ProjectionError,
    audit,
    check_limits,
    check_report,
    estimate_tokens,
    model_text,
    project,
    try_project,
)

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"
VECTORS = json.loads((CASES / "vectors.json").read_text())
SMALLEST = OutputLimits(max_bytes=256, max_tokens=64)
CATEGORIES: tuple[ErrorCategory, ...] = get_args(ErrorCategory)

# The same examples each time, and none kept on disk.
PROPERTY = settings(deadline=None, derandomize=True, database=None, max_examples=80)

# One to four bytes, one to six in JSON; no other, as a table of all characters takes hypothesis seconds to make.
CHARACTERS = 'ab 09{}:,.-"\\/\n\t\x00\x1f\x7f\x80äéß\u2028界\ufffd\uffff🙂\U0010ffff'
TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=400),
    st.builds(
        lambda piece, times, end: piece * times + end,
        st.text(CHARACTERS, min_size=1, max_size=12),
        st.integers(1, 400),
        st.text(CHARACTERS, max_size=3),
    ),
)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(CHARACTERS, max_size=9), inner, max_size=5),
    max_leaves=8,
)
FAILURES = st.builds(
    lambda category, code, message, retryable: ToolOutcome(
        ok=False, error=ToolErrorInfo(category=category, code=code, message=message, retryable=retryable)
    ),
    st.sampled_from(CATEGORIES),
    st.text(CHARACTERS, max_size=80) | st.sampled_from(["110", "not_found", '"' * 60, "界" * 60, "\x00" * 60]),
    TEXTS,
    st.booleans(),
)
OUTCOMES = st.one_of(
    TEXTS.map(lambda text: ToolOutcome(ok=True, text=text)),
    DATA.map(lambda data: ToolOutcome(ok=True, data=data)),
    FAILURES,
)
LIMITS = st.builds(
    lambda size, tokens: OutputLimits(max_bytes=size, max_tokens=tokens), st.integers(256, 3_000), st.integers(64, 900)
)


def text_outcome(text: str) -> ToolOutcome:
    return ToolOutcome(ok=True, text=text)


def read(outcome: ToolOutcome, projection: Projection) -> str:
    return model_text(outcome.model_copy(update={"projection": projection}))


def ends(shown: str) -> tuple[str, str]:
    """Beginning and end around the marker, which none of the generated texts contains."""
    start, end = shown.split(OMITTED)
    return start, end


def preview(outcome: ToolOutcome, text: str) -> str:
    """The part of an envelope that is the tool's own, its form checked on the way."""
    if outcome.ok and outcome.data is None:
        warning, shown = text.split("\n", 1)
        assert warning.startswith("Warning: tool output truncated (original bytes: ")
        return shown
    envelope = json.loads(text)
    assert set(envelope) == {"ok", "preview", "truncation"} | (set() if outcome.ok else {"error"})
    assert envelope["ok"] is outcome.ok
    assert text == canonical_json(envelope)
    return str(envelope["preview"])


def reason(*args: Any) -> str:
    with pytest.raises(ProjectionError) as caught:
        project(*args)
    return caught.value.reason


# Tokens and preflight.


@pytest.mark.parametrize("case", VECTORS["tokens"])
def test_tokens_are_a_quarter_of_the_ascii_and_all_else_one_by_one(case: dict[str, Any]) -> None:
    assert estimate_tokens(case["text"]) == case["tokens"]


@pytest.mark.parametrize("case", VECTORS["preflight"])
def test_the_published_limits_are_accepted_and_refused(case: dict[str, Any]) -> None:
    limits = OutputLimits.model_construct(max_bytes=case["max_bytes"], max_tokens=case["max_tokens"])
    assert try_project(text_outcome("a"), limits).error == case["error"]
    if case["ok"]:
        check_limits(limits)
        return
    with pytest.raises(ProjectionError, match=case["error"]):
        check_limits(limits)


@pytest.mark.parametrize("part", ["Warning: tool output truncated", '"ok":true', *[f'"{name}"' for name in CATEGORIES]])
def test_preflight_measures_every_envelope_with_the_largest_numbers(part: str) -> None:
    def expensive(text: str) -> int:
        return 65 if part in text and str(LARGEST_NUMBER) in text else 1

    with pytest.raises(ProjectionError, match="envelope_exceeds_limits"):
        check_limits(SMALLEST, expensive)


def test_preflight_knows_the_longest_code() -> None:
    with pytest.raises(ProjectionError, match="envelope_exceeds_limits"):
        check_limits(SMALLEST, lambda text: 65 if "xxxxxxxxx" in text else 1)
    with pytest.raises(ProjectionError, match="envelope_exceeds_limits"):
        check_limits(SMALLEST, lambda text: 65 if "界" in text else 1)


@PROPERTY
@given(outcome=FAILURES, retryable=st.booleans())
def test_with_the_smallest_limits_every_failure_has_its_envelope(outcome: ToolOutcome, retryable: bool) -> None:
    huge = outcome.model_copy(update={"metadata": {"original_bytes": 10**40}})
    projection = project(huge, SMALLEST)
    assert projection.text is not None
    envelope = json.loads(projection.text)
    assert outcome.error is not None
    told = envelope["error"]
    assert set(told) == {"category", "code", "retryable"}
    assert (told["category"], told["retryable"]) == (outcome.error.category, outcome.error.retryable)
    assert told["code"] == outcome.error.code or outcome.error.code.startswith(told["code"].removesuffix("..."))
    assert envelope["truncation"]["original_bytes"] == LARGEST_NUMBER


def test_a_code_is_whole_up_to_forty_four_characters() -> None:
    for code in ("x" * 44, "x" * 45):
        text = project(failure("internal", "m" * 400, code), SMALLEST).text
        assert text is not None
        assert json.loads(text)["error"]["code"] == (code if len(code) == 44 else "x" * 41 + "...")


# The published cases.


def test_c21_a_small_result_is_read_whole() -> None:
    outcome = text_outcome("unchanged output")
    projection = project(outcome, OutputLimits())
    assert projection.text is None
    assert read(outcome, projection) == "unchanged output"
    assert projection.report == ProjectionReport(
        truncated=False,
        original_bytes=16,
        original_tokens=4,
        projected_bytes=16,
        projected_tokens=4,
        max_bytes=65_536,
        max_tokens=10_000,
    )


def test_c23_a_text_at_both_limits_is_whole_and_one_byte_more_is_cut() -> None:
    assert project(text_outcome("x" * 256), SMALLEST).text is None
    projection = project(text_outcome("x" * 257), SMALLEST)
    report = projection.report
    assert (report.truncated, report.limiting) == (True, "bytes_and_tokens")
    assert (report.projected_bytes, report.projected_tokens) == (253, 64)
    assert projection.text == (
        "Warning: tool output truncated (original bytes: 257, estimated tokens: 65)."
        f"{HINT}\n{'x' * 50}\n... tool output omitted ...\n{'x' * 50}"
    )


@pytest.mark.parametrize(
    ("text", "size", "tokens", "limiting"),
    [
        ("x" * 300, 299, 1_000, "bytes"),
        ("x" * 300, 300, 75, "none"),
        ("x" * 300, 10_000, 74, "tokens"),
        ("x" * 300, 299, 74, "bytes_and_tokens"),
        ("é" * 200, 400, 200, "none"),
        ("é" * 200, 399, 200, "bytes"),
        ("é" * 200, 400, 199, "tokens"),
    ],
)
def test_the_report_names_the_limit_that_was_passed(text: str, size: int, tokens: int, limiting: str) -> None:
    for outcome in (text_outcome(text), ToolOutcome(ok=True, data=text[1:-1])):
        report = project(outcome, OutputLimits(max_bytes=size, max_tokens=tokens)).report
        if outcome.data is None or text.isascii():
            assert (report.limiting, report.truncated) == (limiting, limiting != "none")
        check_report(report)


def test_c25_mixed_text_keeps_its_ends_and_is_cut_alike_each_time() -> None:
    outcome = text_outcome("HEAD-" + "你好🙂, " * 200 + "-TAIL")
    limits = OutputLimits(max_bytes=256, max_tokens=1_000)
    projection = project(outcome, limits)
    assert projection == project(outcome, limits)
    assert projection.text is not None
    start, end = ends(projection.text.split("\n", 1)[1])
    assert start.startswith("HEAD-")
    assert end.endswith("-TAIL")
    assert projection.report.projected_bytes == len(projection.text.encode()) <= 256
    assert projection.report.projected_tokens == estimate_tokens(projection.text)


def test_c26_data_and_failures_stay_json() -> None:
    data = ToolOutcome(ok=True, data={"text": '"\\\n' * 1_000})
    projection = project(data, SMALLEST)
    assert projection.text is not None
    assert (len(projection.text.encode()) <= 256, estimate_tokens(projection.text) <= 64) == (True, True)
    shown = json.loads(projection.text)
    size = len(full_text(data).encode())
    tokens = estimate_tokens(full_text(data))
    assert shown["ok"] is True
    assert shown["truncation"] == {"truncated": True, "original_bytes": size, "original_estimated_tokens": tokens}
    start, end = ends(shown["preview"])
    assert start.startswith('{"text":"')
    assert end.endswith('"}')

    failed = failure("timeout", "m" * 1_900, code="110", retryable=True)
    projection = project(failed, SMALLEST)
    assert projection.text is not None
    assert (len(projection.text.encode()) <= 256, estimate_tokens(projection.text) <= 64) == (True, True)
    shown = json.loads(projection.text)
    assert shown["ok"] is False
    assert shown["error"] == {"category": "timeout", "code": "110", "retryable": True}


def test_c28_the_outcome_stays_whole_and_the_audit_is_of_what_was_read() -> None:
    outcome = text_outcome("START" + "y" * 5_000 + "STOP!")
    limits = OutputLimits(max_bytes=1_024).tightened(OutputLimits(max_bytes=256))
    projected = outcome.model_copy(update={"projection": project(outcome, limits)})
    text = model_text(projected)
    assert (len(full_text(projected)), len(text.encode()) <= 256) == (5_010, True)
    assert audit(text) == hashlib.sha256(text.encode()).hexdigest()
    assert projected.projection is not None
    assert projected.projection.report.max_bytes == 256
    again = ToolOutcome.model_validate_json(projected.model_dump_json())
    assert model_text(again) == text
    small = text_outcome("ok")
    assert project(small, limits).report.truncated is False
    assert model_text(small) == "ok"


# What holds for every result.


@PROPERTY
@given(outcome=OUTCOMES, limits=LIMITS)
@example(outcome=ToolOutcome(ok=True, data={}), limits=SMALLEST)
def test_what_is_read_is_within_both_limits_and_whole_where_that_fits(
    outcome: ToolOutcome, limits: OutputLimits
) -> None:
    projection = project(outcome, limits)
    whole, text = full_text(outcome), read(outcome, projection)
    fits = len(whole.encode()) <= limits.max_bytes and estimate_tokens(whole) <= limits.max_tokens
    assert (text == whole) is fits is (projection.text is None) is (not projection.report.truncated)
    assert len(text.encode()) == projection.report.projected_bytes <= limits.max_bytes
    assert estimate_tokens(text) == projection.report.projected_tokens <= limits.max_tokens
    assert len(whole.encode()) == projection.report.original_bytes
    assert estimate_tokens(whole) == projection.report.original_tokens
    check_report(projection.report)
    assert projection == project(outcome, limits)


@PROPERTY
@given(outcome=OUTCOMES, limits=LIMITS)
def test_what_is_shown_is_the_beginning_and_the_end(outcome: ToolOutcome, limits: OutputLimits) -> None:
    projection = project(outcome, limits)
    if projection.text is None:
        return
    shown, whole = preview(outcome, projection.text), full_text(outcome)
    if not shown:
        return
    start, end = ends(shown)
    assert whole.startswith(start)
    assert whole.endswith(end)
    assert len(start) + len(end) < len(whole)
    # A character has four bytes at most: each half may be short of one.
    assert -3 <= len(end.encode()) - len(start.encode()) <= 4


@PROPERTY
@given(piece=st.sampled_from(["x", "é", "界", "🙂", '"', "\n"]), limits=LIMITS, ok=st.booleans())
def test_as_much_is_shown_as_fits(piece: str, limits: OutputLimits, ok: bool) -> None:
    outcome = ToolOutcome(ok=True, data=piece * 4_000) if ok else text_outcome(piece * 4_000)
    report = project(outcome, limits).report
    # One more character at either end, with its escapes; and envelope and preview are rounded up each by itself.
    bytes_left, tokens_left = limits.max_bytes - report.projected_bytes, limits.max_tokens - report.projected_tokens
    assert bytes_left < 2 * len(json.dumps(piece * 2, ensure_ascii=False).encode()) or tokens_left <= 3


HOSTILE: dict[str, Estimator] = {
    "more for less": lambda text: max(0, 600 - len(text)) if len(text) < 600 else 65,
    "parity": lambda text: 1 if len(text) % 2 else 1_000 if len(text) > 400 else 60,
    "only the envelope": lambda text: 64 if len(text) < 212 else 10**6,
    "beyond addition": lambda text: len(text) ** 2 // 3_000,
    "from the digest": lambda text: int(hashlib.sha256(text.encode()).hexdigest()[:2], 16),
    "nothing": lambda text: 0,
}


@pytest.mark.parametrize("name", HOSTILE)
@PROPERTY
@given(outcome=OUTCOMES, limits=LIMITS)
def test_an_odd_estimator_costs_preview_and_never_a_limit(
    name: str, outcome: ToolOutcome, limits: OutputLimits
) -> None:
    estimator = HOSTILE[name]
    result = try_project(outcome, limits, estimator)
    if result.projection is None:
        assert result.error == "envelope_exceeds_limits"
        return
    text = read(outcome, result.projection)
    assert len(text.encode()) == result.projection.report.projected_bytes <= limits.max_bytes
    assert estimator(text) == result.projection.report.projected_tokens <= limits.max_tokens
    assert result == try_project(outcome, limits, estimator)
    check_report(result.projection.report)


def test_the_empty_envelope_is_what_is_left_when_no_preview_fits() -> None:
    data: JsonValue = ["z" * 900]

    def no_preview(text: str) -> int:
        return 65 if "z" in text or "\\n" in text else 1

    assert project(ToolOutcome(ok=True, data=data), SMALLEST, no_preview).text == (
        '{"ok":true,"preview":"","truncation":{"original_bytes":904,"original_estimated_tokens":65,"truncated":true}}'
    )
    assert project(text_outcome("z" * 900), SMALLEST, no_preview).text == (
        f"Warning: tool output truncated (original bytes: 900, estimated tokens: 65).{HINT}\n{OMITTED}"
    )
    assert reason(text_outcome("y"), SMALLEST, lambda text: 65) == "envelope_exceeds_limits"


def test_an_envelope_never_calls_all_of_a_text_truncated() -> None:
    projection = project(text_outcome("abcdef"), SMALLEST, lambda text: 65 if text in ("abcdef", "") else 1)
    assert projection.text is not None
    assert ends(projection.text.split("\n", 1)[1]) == ("ab", "def")


def test_an_estimator_that_changes_its_mind_is_asked_once_for_what_is_sent() -> None:
    asked: dict[str, int] = {}

    def fickle(text: str) -> int:
        asked[text] = asked.get(text, 0) + 1
        return 10 if asked[text] == 1 and len(text) < 300 else 10**6

    projection = project(text_outcome("z" * 5_000), OutputLimits(max_bytes=2_000), fickle)
    assert projection.report.projected_tokens == 10
    assert projection.text is not None
    assert asked[projection.text] == 1


# Failures.


@pytest.mark.parametrize("answer", [-1, 1.0, None, "7", True, 2**63, 10**400])
def test_an_estimate_that_is_no_number_of_tokens_is_refused(answer: Any) -> None:
    assert reason(text_outcome("a"), SMALLEST, lambda text: answer) == "estimator_failure"
    with pytest.raises(ProjectionError, match="estimator_failure"):
        check_limits(SMALLEST, lambda text: answer)


@pytest.mark.parametrize("from_size", [0, 200, 250])
def test_the_words_of_an_estimator_go_nowhere(from_size: int) -> None:
    def leaking(text: str) -> int:
        if len(text) >= from_size:
            raise RuntimeError(f"cannot read {text}")
        return 1

    with pytest.raises(ProjectionError) as caught:
        project(text_outcome("secret" * 100), SMALLEST, leaking)
    error = caught.value
    assert (str(error), error.reason, error.__cause__, error.__context__) == (
        "estimator_failure",
        "estimator_failure",
        None,
        None,
    )
    assert try_project(text_outcome("secret"), SMALLEST, lambda text: 1 // 0).error == "estimator_failure"


@pytest.mark.parametrize("value", [float("nan"), {"a": float("inf")}, "\ud800"])
def test_what_cannot_be_written_is_a_serialization_failure(value: Any) -> None:
    outcome = ToolOutcome.model_construct(ok=True, data=value, metadata={})
    assert reason(outcome, SMALLEST) == "serialization_failure"
    assert reason(ToolOutcome.model_construct(ok=True, text="\udc00", metadata={}), SMALLEST) == "serialization_failure"
    assert project(bounded(outcome), SMALLEST).report.truncated is False


def test_a_result_or_a_reason_never_both() -> None:
    fine = try_project(text_outcome("a"), SMALLEST)
    assert (fine.error, fine.projection) == ("none", project(text_outcome("a"), SMALLEST))
    broken = try_project(text_outcome("a"), OutputLimits.model_construct(max_bytes=256, max_tokens=0))
    assert (broken.error, broken.projection) == ("invalid_policy", None)
    assert type(broken).model_validate_json(broken.model_dump_json()) == broken


# What was cut before.


def test_what_was_cut_before_is_shown_from_its_beginning_and_counts_as_truncated() -> None:
    whole = "".join(f"line {number}\n" for number in range(200_000))
    outcome = bounded(text_outcome(whole))
    assert outcome.metadata["original_bytes"] == len(whole)
    for limits in (SMALLEST, OutputLimits(), OutputLimits(max_bytes=OUTCOME_MAX_BYTES, max_tokens=1_000_000)):
        projection = project(outcome, limits)
        report, text = projection.report, projection.text
        assert (report.truncated, report.original_bytes) == (True, len(whole))
        assert report.original_tokens == estimate_tokens(whole)
        assert text is not None
        assert text.startswith(f"Warning: tool output truncated (original bytes: {len(whole)}, estimated tokens: ")
        start, end = ends(text.split("\n", 1)[1])
        assert (whole.startswith(start), end) == (True, "")
        check_report(report)
    assert start == outcome.text


def test_a_failure_cut_before_keeps_its_category() -> None:
    error = ToolErrorInfo(category="conflict", code="stale", message="m" * 2_000)
    outcome = ToolOutcome(ok=False, error=error, metadata={"original_bytes": 2_000_000})
    projection = project(outcome, OutputLimits())
    assert projection.text is not None
    shown = json.loads(projection.text)
    assert shown["error"] == {"category": "conflict", "code": "stale", "retryable": False}
    assert shown["truncation"]["original_bytes"] == outcome.metadata["original_bytes"]
    assert shown["preview"] == full_text(outcome) + OMITTED


@pytest.mark.parametrize("known", [-1, 0, 3, True, "9", 9.5, None, [9]])
def test_a_number_that_tells_of_no_cut_is_ignored(known: JsonValue) -> None:
    outcome = ToolOutcome(ok=True, text="abc", metadata={"original_bytes": known})
    assert project(outcome, SMALLEST).text is None


# Reports.

CUT = project(text_outcome("x" * 5_000), OutputLimits(max_bytes=1_000)).report
WHOLE = project(text_outcome("x" * 50), OutputLimits(max_bytes=1_000)).report


@pytest.mark.parametrize(
    ("report", "changed", "message"),
    [
        (CUT, {"limiting": "none"}, "limiting"),
        (CUT, {"limiting": "tokens"}, "limiting"),
        (CUT, {"limiting": "bytes_and_tokens"}, "limiting"),
        (CUT, {"truncated": False}, "whole"),
        (CUT, {"projected_bytes": 1_001}, "above"),
        (CUT, {"projected_tokens": 10_001}, "above"),
        (CUT, {"max_bytes": 5_000}, "limiting"),
        (CUT, {"projected_tokens": -1}, "negative"),
        (WHOLE, {"limiting": "bytes"}, "limiting"),
        (WHOLE, {"projected_bytes": 49}, "whole"),
        (WHOLE, {"projected_tokens": 14}, "whole"),
        (WHOLE, {"original_bytes": -1}, "negative"),
    ],
)
def test_a_report_that_contradicts_itself_is_refused(
    report: ProjectionReport, changed: dict[str, Any], message: str
) -> None:
    check_report(report)
    with pytest.raises(ValueError, match=message):
        check_report(report.model_copy(update=changed))


@pytest.mark.parametrize("text", ["x" * 1_000_000, "界" * 333_000, '"\n' * 500_000])
def test_a_megabyte_takes_no_time(text: str) -> None:
    started = time.process_time()
    project(text_outcome(text), OutputLimits())
    assert time.process_time() - started < 0.05
