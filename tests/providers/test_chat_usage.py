"""What a Chat Completions server counts, brought to one meaning."""

import pytest
from pydantic import JsonValue

from activities.providers.chat_usage import usage_told
from contracts.messages import Usage
from tests.providers.asking import answered, failed
from tests.providers.chat_chunks import chunk
from tests.providers.model_server import Streamed, chat_reply


@pytest.mark.parametrize(
    "told",
    [
        None,
        "many",
        {},
        {"prompt_tokens": None, "completion_tokens": -3},
        {"prompt_tokens": "9", "completion_tokens": True},
    ],
)
async def test_usage_that_is_not_told_is_none(told: JsonValue) -> None:
    assert (await answered(chat_reply({"content": "Hi"}, usage=told))).usage is None


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"prompt_tokens": 0, "completion_tokens": 0}, Usage()),
        ({"prompt_tokens": 1e300, "completion_tokens": 2.0, "completion_tokens_details": [1]}, Usage(output_tokens=2)),
        (
            {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}},
            Usage(input_tokens=5, cached_input_tokens=5),
        ),
        (
            {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 9}},
            Usage(input_tokens=10, cached_input_tokens=4, cache_write_tokens=6),
        ),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 3}, Usage(input_tokens=9, cached_input_tokens=3)),
        ({"prompt_tokens": 9, "cached_tokens": 3}, Usage(input_tokens=9, cached_input_tokens=3)),
        ({"completion_tokens": 9, "reasoning_tokens": 4}, Usage(output_tokens=9, reasoning_tokens=4)),
    ],
)
def test_tokens_are_counted_as_far_as_it_makes_sense(told: JsonValue, expected: Usage) -> None:
    assert usage_told(told) == expected


@pytest.mark.parametrize(
    ("completion", "reasoning", "total", "output"),
    [
        (100, 60, 110, 100),  # A part of it, as OpenAI counts.
        (2, 129, 141, 131),  # xAI: beside it, and the total says so.
        (100, 60, 170, 160),  # xAI, with a long answer: only the total says so.
        (9, 61, 19, 70),  # Vercel's Gemini: beside it, though the total leaves it out.
        (9, 61, None, 70),
        (10, 0, 20, 10),
    ],
)
def test_output_has_the_reasoning_in_it(completion: int, reasoning: int, total: int | None, output: int) -> None:
    details: JsonValue = {"reasoning_tokens": reasoning}
    told: JsonValue = {
        "prompt_tokens": 10,
        "completion_tokens": completion,
        "total_tokens": total,
        "completion_tokens_details": details,
    }
    usage = usage_told(told)
    assert usage is not None
    assert (usage.output_tokens, usage.reasoning_tokens) == (output, reasoning)


async def test_the_usage_of_a_stream_is_the_last_one_told() -> None:
    tokens: list[JsonValue] = [{"prompt_tokens": 7, "completion_tokens": count} for count in (1, 5)]
    events = [chunk({"content": "Hi"}, usage=tokens[0]), chunk({}, "stop", usage=tokens[1]), chunk({}, usage=None)]
    assert (await answered(Streamed.of_events(*events, "[DONE]"))).usage == Usage(input_tokens=7, output_tokens=5)
    groq = chunk({"content": "Hi"}, "stop", x_groq={"usage": tokens[0]})
    assert (await answered(Streamed.of_events(groq, "[DONE]"))).usage == Usage(input_tokens=7, output_tokens=1)


async def test_a_failure_tells_what_was_billed() -> None:
    tokens: JsonValue = {"prompt_tokens": 7, "completion_tokens": 3}
    billed = Usage(input_tokens=7, output_tokens=3)
    refusal = await failed(chat_reply({"refusal": "No."}, usage=tokens))
    withheld = await failed(chat_reply({}, "content_filter", usage=tokens))
    broken_off = await failed(Streamed.of_events(chunk({"content": "Hel"}, usage=tokens)))
    in_band = await failed(Streamed.of_events(chunk({"content": "Hel"}, usage=tokens), {"error": {"message": "m"}}))
    refused_in_pieces = await failed(Streamed.of_events(chunk({"refusal": "No."}, "stop", usage=tokens), "[DONE]"))
    failures = (refusal, withheld, broken_off, in_band, refused_in_pieces)
    assert [failure.usage for failure in failures] == [billed] * 5
    assert [failure.type for failure in failures] == [
        *("ModelRefused", "ModelRefused", "ModelUnavailable", "ModelUnavailable", "ModelRefused")
    ]
