"""How long an API asks to wait before it is asked again."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from pydantic import JsonValue

# Seconds, some thirty years: no date beyond it, and no time span either, is more than "never".
LONGEST_SECONDS = 1e9
# Seconds. A limit that is not used up and is full again only after this is not what stopped the request.
WINDOW_MAX_SECONDS = 600.0

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
# As Go writes a time span: "1s", "6m0s", "12ms", "1h2m3.5s".
_SPAN = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|s|m|h|d))+")
_SPAN_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h|d)")
_UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
# Numbers from here on are moments, in seconds or milliseconds since 1970.
_EPOCH_SECONDS_FROM = 1e9
_EPOCH_MILLISECONDS_FROM = 1e12
# One for each limit: of requests, of tokens, of a minute, of a day.
_RESET = re.compile(r"x-ratelimit-reset(-.+)?|anthropic-ratelimit-.+-reset")


def retry_after(status: int, headers: Mapping[str, str], body: JsonValue = None) -> float | None:
    """How long to wait, in seconds from 0 to LONGEST_SECONDS; None where that is not told in a way that can be read.

    What goes first: `retry-after-ms`; `retry-after` as seconds or as an HTTP date (RFC 9110, 10.2.3); the `RetryInfo`
    that a body of Google holds (google.rpc "Error details"). For a 429 then the moments at which limits are full again:
    OpenAI's `x-ratelimit-reset-*` ("Rate limits in headers") and those of servers that took them over,
    `anthropic-ratelimit-*-reset` (Anthropic, "Rate limits, response headers"), `x-ratelimit-reset`, which OpenRouter
    also writes into the body (`error.metadata.headers`). Names of headers are in lower case.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    seconds = None if milliseconds is None else milliseconds / 1_000
    for found in (_number, _until_date):
        seconds = found(headers.get("retry-after", "")) if seconds is None else seconds
    if seconds is None:
        seconds = _retry_info(body)
    if seconds is None and status == 429:
        seconds = _until_reset({**headers, **_headers_in(body)})
    return None if seconds is None else min(max(seconds, 0.0), LONGEST_SECONDS)


def _until_reset(headers: Mapping[str, str]) -> float | None:
    """Until the limits that are used up are full again; where none says that it is, until the others are."""
    used_up, others = list[float](), list[float]()
    for name, written in headers.items():
        seconds = _span(written) if _RESET.fullmatch(name) else None
        # Full already: not the limit that was hit.
        if seconds is None or seconds <= 0:
            continue
        if _number(headers.get(name.replace("reset", "remaining"), "")) == 0:
            used_up.append(seconds)
        elif seconds <= WINDOW_MAX_SECONDS:
            others.append(seconds)
    return max(used_up or others, default=None)


def _span(written: str) -> float | None:
    """Seconds from now: of a number, a moment since 1970, a time span or a date."""
    text = written.strip()
    number = _number(text)
    if number is not None:
        if number >= _EPOCH_SECONDS_FROM:
            moment = number / 1_000 if number >= _EPOCH_MILLISECONDS_FROM else number
            return moment - datetime.now(UTC).timestamp()
        return number
    if _SPAN.fullmatch(text):
        return sum(float(part) * _UNIT_SECONDS[unit] for part, unit in _SPAN_PART.findall(text))
    try:
        return _from_now(datetime.fromisoformat(text))
    except ValueError:
        return _until_date(text)


def _retry_info(body: JsonValue) -> float | None:
    """`retryDelay` of a google.rpc.RetryInfo, as "34s" or "34.07s"."""
    details = _field(_field(body, "error"), "details")
    for detail in details if isinstance(details, list) else []:
        delay = _field(detail, "retryDelay")
        if isinstance(delay, str) and _SPAN.fullmatch(delay):
            return _span(delay)
    return None


def _headers_in(body: JsonValue) -> dict[str, str]:
    """The headers that a router repeats in the body of an error, by name in lower case."""
    headers = _field(_field(_field(body, "error"), "metadata"), "headers")
    found = headers if isinstance(headers, dict) else {}
    return {name.lower(): str(value) for name, value in found.items() if isinstance(value, str | int)}


def _field(value: JsonValue, name: str) -> JsonValue:
    return value.get(name) if isinstance(value, dict) else None


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text.strip()) else None


def _until_date(http_date: str) -> float | None:
    try:
        return _from_now(parsedate_to_datetime(http_date))
    except (ValueError, OverflowError):
        return None


def _from_now(moment: datetime) -> float:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - datetime.now(UTC)).total_seconds()
