"""Whole runs on replies of Chat Completions that others' agents broke on, streamed and not. The server refuses every
request that a provider would refuse."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.tooling import tool
from contracts.events import Event
from contracts.models import ModelSettings
from contracts.runs import AgentRunResult
from tests.providers.chat_chunks import chunk, streamed
from tests.providers.model_server import ModelServer, RecordedConversation, Response, Streamed, chat_reply
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, attempts, events_of, failure_of, histories
from tests.support.loopback import loopback_client

ran: list[str] = []


@tool(side_effect="write")
def lookup(q: str) -> str:
    """Look something up."""
    ran.append(q)
    return f"found {q}"


@tool(side_effect="write")
def write(path: str, content: str = "") -> str:
    """Write a file."""
    ran.append(path)
    return ""


@tool(side_effect="write")
def build(steps: list[str]) -> str:
    """Run commands."""
    ran.extend(steps)
    return "built"


AGENT = scripted_agent(lookup, write, build).model_copy(
    update={"model": "openai:any", "settings": ModelSettings(max_output_tokens=16)}
)
DONE = chat_reply({"role": "assistant", "content": "Done."}, usage={"prompt_tokens": 10, "completion_tokens": 2})


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def calling(
    finish_reason: str | None, *calls: tuple[str, str], output: int = 8, content: str | None = None
) -> Response:
    """A reply with these calls, each a tool's name and the arguments as the model wrote them."""
    wire: list[JsonValue] = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    message: JsonValue = {"role": "assistant", "content": content, "tool_calls": wire}
    return chat_reply(message, finish_reason, usage={"prompt_tokens": 10, "completion_tokens": output})


@asynccontextmanager
async def served(harness: Harness, *replies: Response) -> AsyncIterator[RecordedConversation]:
    played = RecordedConversation(replies)
    async with ModelServer(played) as server, loopback_client() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, "any-key-at-all")
        async with harness.worker(AGENT, providers={"openai": model}):
            yield played
    assert played.refused == []
    assert played.left == 0


async def run_on(harness: Harness, *replies: Response) -> tuple[Handle, AgentRunResult, list[Event]]:
    """A run that plays all of the replies, how it ends, and what it says about calls that must not run."""
    async with served(harness, *replies):
        run = await harness.start(PROMPT)
        result = await run.result()
        return run, result, [event for event in await events_of(run) if event.type == "tool_invalid"]


def both_ways(*replies: Response) -> Sequence[Response]:
    """The replies, whole and streamed in turns."""
    return [streamed(reply) if n % 2 else reply for n, reply in enumerate(replies)]


@pytest.mark.parametrize("finish_reason", ["stop", "other", None])
@pytest.mark.parametrize("stream", [False, True])
async def test_calls_run_once_whatever_the_finish_reason_says(
    harness: Harness, finish_reason: str | None, stream: bool
) -> None:
    asked = calling(finish_reason, ("lookup", '{"q":"a"}'), content="Let me look.")
    if stream:
        # Without a finish reason, only the marker ends a stream.
        asked = streamed(asked)
    _, result, _ = await run_on(harness, asked, DONE)
    assert (result.text, ran, result.tool_results[0].text) == ("Done.", ["a"], "found a")
    assert (result.usage.input_tokens, result.usage.output_tokens) == (20, 10)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_of_nothing_is_asked_again_within_a_bound(harness: Harness, stream: bool) -> None:
    nothing = chat_reply({"role": "assistant", "content": None}, "tool_calls")
    if stream:
        nothing = streamed(nothing)
    async with served(harness, nothing, nothing, nothing):
        error, _ = await failure_of(await harness.start(PROMPT))
    assert error.type == "ModelBehaviour"


@pytest.mark.parametrize("empty", [None, "", " \n"])
async def test_a_reply_of_nothing_leaves_nothing_that_a_provider_refuses(harness: Harness, empty: str | None) -> None:
    nothing = chat_reply({"role": "assistant", "content": empty, "reasoning_content": "Hm."})
    silent = calling("tool_calls", ("write", '{"path":"a"}'), content=empty)
    _, result, _ = await run_on(harness, *both_ways(nothing, silent, nothing, DONE))
    assert (result.text, ran) == ("Done.", ["a"])
    assert result.tool_results[0].text == ""


@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_that_are_no_json_are_told_to_the_model_and_kept_for_audit(
    harness: Harness, stream: bool
) -> None:
    half = '{"path": "/tmp/a", "content": "abc'
    asked = calling("tool_calls", ("write", half))
    _, result, (invalid,) = await run_on(harness, streamed(asked) if stream else asked, DONE)
    assert (result.text, ran) == ("Done.", [])
    (answer,) = result.tool_results
    assert not answer.ok
    assert "JSON" in answer.text
    assert invalid.data["raw"] == half


MAKE = '{"steps":["make clean","make test"'
PART = '{"path":"README.md","content":"# T\\nPart 1'


@pytest.mark.parametrize(
    "cut_off",
    [
        calling("length", ("build", MAKE)),
        calling("tool_calls", ("write", PART), output=16),
        calling("length", ("lookup", '{"q":"a"}'), ("build", MAKE)),
        calling("length", ("lookup", '{"q":"a"}')),
        calling("tool_calls", ("lookup", '{"q":"a"}'), ("write", PART), output=16),
    ],
    ids=["length", "relabelled", "second of two", "whole arguments", "relabelled second of two"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_of_a_reply_that_was_cut_off_runs(harness: Harness, cut_off: Response, stream: bool) -> None:
    _, result, invalid = await run_on(harness, streamed(cut_off) if stream else cut_off, DONE)
    assert (result.text, ran) == ("Done.", [])
    assert result.tool_results
    assert all(not answer.ok and "cut off" in answer.text for answer in result.tool_results)
    assert [event.data["reason"] for event in invalid] == ["truncated_reply"] * len(result.tool_results)


@pytest.mark.parametrize(
    "broken",
    [
        Streamed.of_events(chunk({"content": "Hel"}), {"error": {"type": "overloaded_error", "message": "Overloaded"}}),
        Streamed.of_events(chunk({"content": "Hel"})),
        Streamed.of_events(chunk({"content": "Hel"}), chunk({}, "stop"), cut=True),
    ],
    ids=["error", "closed", "cut"],
)
async def test_a_stream_that_fails_is_asked_for_again_and_leaves_nothing_behind(
    harness: Harness, broken: Response
) -> None:
    run, result, _ = await run_on(harness, broken, DONE)
    assert (result.text, result.usage.output_tokens) == ("Done.", 2)
    assert attempts((await histories(harness.client, run.id))[0], "call_model") == [2]


async def test_a_request_refused_within_a_stream_ends_the_run(harness: Harness) -> None:
    refused: JsonValue = {"error": {"type": "invalid_request_error", "message": "no"}}
    async with served(harness, Streamed.of_events(chunk({"content": "Hel"}), refused)):
        error, _ = await failure_of(await harness.start(PROMPT))
    assert error.type == "ModelBadRequest"
