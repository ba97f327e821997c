"""What the run makes of a model's replies: content decides, an empty turn is asked again within a bound, and a failed
request is retried by Temporal or ends the run by name."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.tooling import tool
from tests.providers.model_server import ModelServer, Response, chat_reply
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, attempts, event_types, failure_of, histories, transcript_of
from tests.support.loopback import loopback_client


@tool(side_effect="read")
def lookup(q: str) -> str:
    """Look something up."""
    return f"found {q}"


AGENT = scripted_agent(lookup).model_copy(update={"model": "openai:any"})
CALL: JsonValue = {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": '{"q":"a"}'}}
ANSWER = chat_reply({"role": "assistant", "content": "Done."})
EMPTY = chat_reply({"role": "assistant", "content": None}, "tool_calls")
BLANK = chat_reply({"role": "assistant", "content": " \n"})


@asynccontextmanager
async def served(harness: Harness, *replies: Response) -> AsyncIterator[ModelServer]:
    async with ModelServer(replies) as server, loopback_client() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, "any-key-at-all")
        async with harness.worker(AGENT, providers={"openai": model}):
            yield server


@pytest.mark.parametrize("finish_reason", ["stop", "other", None])
async def test_calls_run_whatever_the_finish_reason_says(harness: Harness, finish_reason: str | None) -> None:
    asked = chat_reply({"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]}, finish_reason)
    async with served(harness, asked, ANSWER):
        result = await (await harness.start(PROMPT)).result()
    assert (result.text, result.tool_results[0].text) == ("Done.", "found a")
    assert result.finish_reason == "stop", "that of the answer"


@pytest.mark.parametrize("empty", [EMPTY, BLANK])
async def test_an_empty_reply_is_asked_again_and_leaves_nothing_illegal_behind(
    harness: Harness, empty: Response
) -> None:
    async with served(harness, empty, ANSWER) as server:
        run = await harness.start(PROMPT)
        result = await run.result()
        texts = [(message.role, message.text) for message in (await transcript_of(run)).messages]
    assert result.text == "Done."
    assert len(server.requests) == 2
    assert [role for role, _ in texts] == ["user", "user", "assistant"]
    assert texts[1][1].startswith("Your last reply was empty.")


async def test_empty_replies_without_end_are_a_named_failure(harness: Harness) -> None:
    async with served(harness, EMPTY, EMPTY, EMPTY) as server:
        error, partial = await failure_of(await harness.start(PROMPT))
    assert error.type == "ModelBehaviour"
    assert len(server.requests) == 3
    assert partial.rounds == 0


@pytest.mark.parametrize(
    ("status", "error_type"),
    [(400, "ModelBadRequest"), (401, "ModelAuthentication"), (403, "ModelAuthentication"), (404, "ModelBadRequest")],
)
async def test_a_refused_request_ends_the_run_by_name_after_one_attempt(
    harness: Harness, status: int, error_type: str
) -> None:
    refusal = Response.of({"error": {"message": "no", "type": "invalid_request_error"}}, status)
    async with served(harness, refusal) as server:
        run = await harness.start(PROMPT)
        error, _ = await failure_of(run)
        assert (await event_types(run))[-2:] == ["model_failed", "run_failed"]
    assert error.type == error_type
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 529])
async def test_a_passing_failure_is_retried_by_temporal_and_counted_once(harness: Harness, status: int) -> None:
    failed = Response(
        status, {"content-type": "application/json", "retry-after": "0"}, b'{"error":{"message":"later"}}'
    )
    usage: JsonValue = {"prompt_tokens": 9, "completion_tokens": 3}
    answer = chat_reply({"role": "assistant", "content": "Done."}, usage=usage)
    replies: Sequence[Response] = (failed, answer)
    async with served(harness, *replies):
        run = await harness.start(PROMPT)
        result = await run.result()
    assert attempts((await histories(harness.client, run.id))[0], "call_model") == [2]
    assert (result.usage.input_tokens, result.usage.output_tokens) == (9, 3)


async def test_a_refusal_in_words_is_told_apart(harness: Harness) -> None:
    refusal = chat_reply({"role": "assistant", "content": None, "refusal": "I cannot help with that."})
    async with served(harness, refusal):
        error, _ = await failure_of(await harness.start(PROMPT))
    assert error.type == "ModelRefused"
