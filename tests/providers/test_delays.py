"""How long a provider asks to wait, in all the ways in which providers say it."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from pydantic import JsonValue

from activities.providers.delays import LONGEST_SECONDS, retry_after
from tests.providers.asking import failed
from tests.providers.model_server import Response
from tests.providers.recordings import Recording, recordings

ALL = [
    recording
    for api in ("openai.chat", "openai.responses", "anthropic.messages")
    for streaming in (True, False)
    for recording in recordings(api, streaming)
]
# Too large for its limit, and never sent again: what OpenAI's headers say of limits is beside the point.
NEVER_SENT_AGAIN = {
    "openai/chat_json_openai_gpt_5_nano_handles_context_length_exceeded_errors",
    "openai/chat_json_openai_gpt_5_nano_handles_context_length_exceeded_errors_v2",
}


def in_future(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def google(delay: str) -> JsonValue:
    """A 429 as the Gemini API answers it ("Error handling" of google.rpc)."""
    return {
        "error": {
            "code": 429,
            "message": "You exceeded your current quota, please check your plan and billing details.",
            "status": "RESOURCE_EXHAUSTED",
            "details": [
                {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "PerMinute"}]},
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
            ],
        }
    }


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "41"}, 41.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "7200"}, 7200.0),
        ({"retry-after": "9" * 400}, LONGEST_SECONDS),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 9999 07:28:00 GMT"}, LONGEST_SECONDS),
        ({"retry-after": "Wed, 99 Oct 2015 07:28:00 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 9999 07:28:00 -9999999999999"}, None),
        ({"retry-after": "1", "retry-after-ms": "0"}, 0.0),
        ({"retry-after": "1", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "1", "retry-after-ms": "x"}, 1.0),
        ({"retry-after": "1", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 1.0),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_the_delay_that_http_knows_goes_first(status: int, headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(status, headers) == seconds


@pytest.mark.parametrize("seconds", [120, 5_000])
def test_a_delay_as_a_date_counts_from_now(seconds: int) -> None:
    told = retry_after(503, {"retry-after": format_datetime(in_future(seconds), usegmt=True)})
    assert told is not None
    assert seconds - 60 < told <= seconds


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("12ms", 0.012),
        ("1h2m3.5s", 3723.5),
        ("2m59.56s", 179.56),
        ("7.66s", 7.66),
        ("1d1h", 90_000.0),
        ("33011.382867", 33011.382867),
        ("60", 60.0),
        # Azure's: nothing to wait for, or nothing known.
        ("0", None),
        ("-1", None),
        ("0s", None),
        ("", None),
        ("soon", None),
        ("1s later", None),
        ("1x", None),
        ("1" * 400 + "h", LONGEST_SECONDS),
    ],
)
def test_a_limit_that_is_used_up_is_waited_for(written: str, seconds: float | None) -> None:
    headers = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": written}
    told = retry_after(429, headers)
    assert told == (None if seconds is None else pytest.approx(seconds))
    # Only a 429 is about limits: every other reply tells of them as well.
    assert retry_after(500, headers) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        # OpenAI: the requests are used up, the tokens are not.
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-remaining-tokens": "149984",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-reset-tokens": "6m0s",
            },
            1.0,
        ),
        # Both are.
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-reset-tokens": "6m0s",
            },
            360.0,
        ),
        # Fewer are left than the request needs, so no limit says that it is used up.
        (
            {
                "x-ratelimit-remaining-requests": "4999",
                "x-ratelimit-remaining-tokens": "120",
                "x-ratelimit-reset-requests": "12ms",
                "x-ratelimit-reset-tokens": "4.2s",
            },
            4.2,
        ),
        # Cerebras, "Rate limits": the day's limit is far from used up.
        (
            {
                "x-ratelimit-remaining-requests-day": "14000",
                "x-ratelimit-remaining-tokens-minute": "12",
                "x-ratelimit-reset-requests-day": "33011.382867",
                "x-ratelimit-reset-tokens-minute": "11.5",
            },
            11.5,
        ),
        ({"x-ratelimit-reset-requests": "33011"}, None),
        # Together's.
        ({"x-ratelimit-limit": "2", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "2"}, 2.0),
        ({"x-ratelimit-reset-requests": "120ms", "x-ratelimit-reset-tokens": "0s"}, 0.12),
        ({"x-ratelimit-limit-req-minute": "60", "x-ratelimit-remaining-req-minute": "0"}, None),
        # Anthropic's, all of them full again long ago.
        (
            {"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "1970-01-01T00:00:00Z"},
            None,
        ),
        ({"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "tomorrow"}, None),
    ],
)
def test_of_several_limits_the_one_that_was_hit_counts(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(429, headers) == seconds


@pytest.mark.parametrize(
    "written",
    [
        lambda moment: moment.isoformat(timespec="seconds").replace("+00:00", "Z"),
        lambda moment: moment.isoformat(),
        lambda moment: format_datetime(moment, usegmt=True),
        lambda moment: f"{moment.timestamp():.0f}",
        lambda moment: f"{moment.timestamp() * 1_000:.0f}",
    ],
)
def test_the_moment_at_which_a_limit_is_full_again_counts_from_now(written: Callable[[datetime], str]) -> None:
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": written(in_future(90))}
    told = retry_after(429, headers)
    assert told is not None
    assert 30 < told <= 91


def test_anthropic_tells_moments_for_each_of_its_limits() -> None:
    """Anthropic, "Rate limits, response headers": the tokens that come in are used up, those that go out are not."""
    headers = {
        "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-input-tokens-reset": in_future(90).isoformat(),
        "anthropic-ratelimit-output-tokens-remaining": "8000",
        "anthropic-ratelimit-output-tokens-reset": in_future(500).isoformat(),
    }
    told = retry_after(429, headers)
    assert told is not None
    assert 30 < told <= 90


def test_openrouter_repeats_its_headers_in_the_body() -> None:
    """OpenRouter, "Rate limits": what a free model's 429 says."""
    reset = f"{in_future(90).timestamp() * 1_000:.0f}"
    headers: JsonValue = {"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}
    body: JsonValue = {"error": {"code": 429, "message": "Rate limit exceeded", "metadata": {"headers": headers}}}
    told = retry_after(429, {}, body)
    assert told is not None
    assert 30 < told <= 91


@pytest.mark.parametrize(
    ("delay", "seconds"), [("34s", 34.0), ("34.074824224s", 34.074824224), ("0s", 0.0), ("", None), ("x", None)]
)
def test_google_tells_its_delay_in_the_body(delay: str, seconds: float | None) -> None:
    assert retry_after(429, {}, google(delay)) == seconds
    assert retry_after(429, {"retry-after": "5"}, google(delay)) == 5.0


@pytest.mark.parametrize("details", [None, {}, [], [None], ["34s"], [{"retryDelay": 34}]])
def test_a_body_that_tells_no_delay_tells_none(details: JsonValue) -> None:
    assert retry_after(429, {}, {"error": {"details": details}}) is None
    assert retry_after(429, {}, {"error": {"metadata": details}}) is None


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_delay_in_the_body_reaches_the_failure(wrapped: bool) -> None:
    body = google("34s")
    failure = await failed(Response.of([body] if wrapped else body, 429))
    assert (failure.type, failure.retryable, failure.retry_after) == ("ModelUnavailable", True, 34.0)
    assert "exceeded your current quota" in str(failure)


async def test_a_delay_beyond_every_bound_is_handed_on_as_it_is_told() -> None:
    assert (await failed((503, {"retry-after": "86400"}, ""))).retry_after == 86_400.0


@pytest.mark.parametrize("recording", ALL, ids=lambda recording: recording.id)
def test_every_recorded_response_tells_the_delay_that_is_expected(recording: Recording) -> None:
    response = recording.response
    try:
        body = json.loads(response.body)
    except ValueError:
        body = None
    told = retry_after(response.status, response.headers, body)
    if recording.id in NEVER_SENT_AGAIN:
        assert told is not None
        assert told < 1
    else:
        assert told == recording.expected["retry_after_s"]
