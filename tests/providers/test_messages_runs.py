"""Whole runs on the Messages API: its rules are enforced by the server, and what it gave is remembered there."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.providers.messages import Messages
from activities.tooling import tool
from contracts.agents import AgentSpec
from contracts.messages import Usage
from contracts.tools import ToolContract
from runtime.dev_server import DevServer
from tests.providers.asking_messages import delta, reply, streamed, text, thinking, tool_use
from tests.providers.legality_messages import WhatItGave, request_illegality
from tests.providers.model_server import Answer, ModelServer, RecordedConversation, Response, Streamed, chat_reply
from tests.providers.recordings import conversation, recordings
from tests.support.harness import Harness, failure_of, histories, transcript_of
from tests.support.loopback import loopback_client

REDACTED: JsonValue = {"type": "redacted_thinking", "data": "zz"}


@tool(side_effect="read")
def noop() -> str:
    """Does nothing."""
    return ""


def agent(*tools: ToolContract, model: str = "anthropic:claude-sonnet-4-6", **more: object) -> AgentSpec:
    fields = {"name": "claude", "instructions": "Answer with the tools.", "model": model, "tools": tools, **more}
    return AgentSpec.model_validate(fields)


PROMPT = {"agent": "claude", "prompt": "Go."}


@asynccontextmanager
async def claude(answers: Answer, streaming: bool = True) -> AsyncIterator[tuple[ModelServer, HttpModel]]:
    async with ModelServer(answers) as server, loopback_client() as http:
        yield server, HttpModel(http, Messages(), server.base_url, "test-key", streaming=streaming)
    if isinstance(answers, RecordedConversation):
        assert answers.refused == []
        assert answers.left == 0


def last_messages(server: ModelServer) -> list[dict[str, JsonValue]]:
    sent = server.requests[-1].json
    assert sent is not None
    messages = sent["messages"]
    assert isinstance(messages, list)
    return [message for message in messages if isinstance(message, dict)]


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_recorded_conversation_as_a_run(harness: Harness, streaming: bool) -> None:
    """Claude Sonnet 4.6 loads a capability, then looks up a policy with it."""

    @tool(side_effect="read")
    def load_capability(id: str) -> str:
        """Load a capability."""
        return "{}"

    @tool(side_effect="read")
    def lookup_refund_policy(order_id: str) -> str:
        """Look up the refund policy of an order."""
        return f"{order_id}: refund allowed"

    exchanges = conversation("anthropic.messages", False, "seq07")
    bodies = [json.loads(exchange.response.body) for exchange in exchanges]
    responses = [streamed(body) for body in bodies] if streaming else [exchange.response for exchange in exchanges]
    played = RecordedConversation(responses, WhatItGave([body["content"] for body in bodies]).request_illegality)
    spec = agent(load_capability, lookup_refund_policy)
    async with claude(played, streaming) as (server, model), harness.worker(spec, providers={"anthropic": model}):
        result = await (await harness.start(PROMPT)).result()
    assert result.text == "order-123: refund allowed"
    assert [record.text for record in result.tool_results] == ["{}", "order-123: refund allowed"]
    assert result.usage == Usage(input_tokens=658 + 880 + 988, output_tokens=76 + 89 + 10)
    # The provider finds its own call ids again.
    assert "toolu_01E6sWawGHGNL2fn7tzCNqF6" in str(last_messages(server))


async def test_r01_a_model_that_stops_for_a_tool_and_calls_none_is_not_asked_forever(harness: Harness) -> None:
    def empty(request: dict[str, JsonValue]) -> Response:
        assert request_illegality(request) is None
        return streamed(reply(stop_reason="tool_use", usage={"input_tokens": 5, "output_tokens": 1}))

    async with claude(empty) as (server, model), harness.worker(agent(noop), providers={"anthropic": model}):
        error, _ = await failure_of(await harness.start(PROMPT))
    assert error.type == "ModelBehaviour"
    assert len(server.requests) == 3


@pytest.mark.parametrize("first", [[text(""), tool_use("toolu_1")], [text(" \n")]])
async def test_r03_empty_parts_of_a_reply_and_empty_results_never_go_back(
    harness: Harness, first: list[JsonValue]
) -> None:
    played = RecordedConversation([streamed(reply(*first)), streamed(reply(text("Done.")))], request_illegality)
    async with claude(played) as (_, model), harness.worker(agent(noop), providers={"anthropic": model}):
        result = await (await harness.start(PROMPT)).result()
    assert result.text == "Done."


async def test_r06_r08_a_cut_off_call_runs_nothing_and_the_run_goes_on(harness: Harness) -> None:
    ran = list[str]()

    @tool(side_effect="write")
    def clean(dir: str, only: list[str]) -> str:
        """Clean a directory."""
        ran.append(dir)
        return "cleaned"

    cut = '{"dir":"/data","only":["tmp"'
    events: list[JsonValue] = [
        {"type": "message_start", "message": reply(stop_reason=None)},
        {"type": "content_block_start", "index": 0, "content_block": tool_use("toolu_0", "clean")},
        delta(0, "input_json_delta", partial_json='{"dir":"/all","only":[]}'),
        {"type": "content_block_start", "index": 1, "content_block": tool_use("toolu_1", "clean")},
        delta(1, "input_json_delta", partial_json=cut),
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
    played = RecordedConversation([Streamed.of_events(*events), streamed(reply(text("Sorry.")))], request_illegality)
    async with claude(played) as (server, model), harness.worker(agent(clean), providers={"anthropic": model}):
        result = await (await harness.start(PROMPT)).result()
    assert (ran, result.text) == ([], "Sorry.")
    _, called, told = last_messages(server)
    assert [str(block.get("input")) for block in _blocks(called)] == ["{'dir': '/all', 'only': []}", "{}"]
    assert all(block["is_error"] and "smaller" in str(block["content"]) for block in _blocks(told))


def _blocks(message: dict[str, JsonValue]) -> list[dict[str, JsonValue]]:
    content = message["content"]
    assert isinstance(content, list)
    return [block for block in content if isinstance(block, dict)]


async def test_r16_an_attempt_that_was_overloaded_leaves_nothing_behind(harness: Harness) -> None:
    begun: list[JsonValue] = [
        {"type": "message_start", "message": reply(stop_reason=None, usage={"input_tokens": 9, "output_tokens": 1})},
        {"type": "content_block_start", "index": 0, "content_block": text("")},
        delta(0, "text_delta", text="Hel"),
    ]
    overloaded: JsonValue = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    good = streamed(reply(text("Hello."), usage={"input_tokens": 9, "output_tokens": 4}))
    played = RecordedConversation([Streamed.of_events(*begun, overloaded), good], request_illegality)
    async with claude(played) as (server, model), harness.worker(agent(), providers={"anthropic": model}):
        run = await harness.start(PROMPT)
        result = await run.result()
        page = await transcript_of(run)
    assert [message.text for message in page.messages] == ["Go.", "Hello."]
    assert server.requests[0].json == server.requests[1].json
    assert result.usage == Usage(input_tokens=18, output_tokens=5)


@pytest.fixture
async def short_harness(impatient: DevServer) -> AsyncIterator[Harness]:
    corner = Harness(impatient.client)
    yield corner
    await corner.check_histories()


def thoughtful(rounds: int, signature: Callable[[int], str]) -> RecordedConversation:
    """Rounds of thinking and a call, then an answer; the server wants each block back as it gave it."""
    contents: list[list[JsonValue]] = [
        [thinking(f"t{number}", signature(number)), REDACTED, tool_use(f"toolu_{number}")] for number in range(rounds)
    ]
    responses = [streamed(reply(*content, stop_reason="tool_use")) for content in contents]
    return RecordedConversation([*responses, streamed(reply(text("Done.")))], WhatItGave(contents).request_illegality)


async def test_rx02_thinking_goes_back_unchanged_through_history_and_continue_as_new(short_harness: Harness) -> None:
    played = thoughtful(20, lambda number: f"s{number}")
    spec = agent(noop, model="anthropic:claude-sonnet-4-5", settings={"reasoning_effort": "low"})
    async with claude(played) as (server, model), short_harness.worker(spec, providers={"anthropic": model}):
        run = await short_harness.start(PROMPT)
        assert (await run.result()).text == "Done."
    assert len(await histories(short_harness.client, run.id)) > 1
    sent = server.requests[-1].json
    assert sent is not None
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": 2_048}
    said = [block for message in last_messages(server) if message["role"] == "assistant" for block in _blocks(message)]
    assert said[:3] == [thinking("t0", "s0"), REDACTED, tool_use("toolu_0")]
    assert len(said) == 60


async def test_rx02_thinking_that_is_not_signed_stays_in_the_transcript(harness: Harness) -> None:
    played = thoughtful(1, lambda _: "")
    async with claude(played) as (server, model), harness.worker(agent(noop), providers={"anthropic": model}):
        run = await harness.start(PROMPT)
        assert (await run.result()).text == "Done."
        page = await transcript_of(run)
    assert [block["type"] for block in _blocks(last_messages(server)[1])] == ["redacted_thinking", "tool_use"]
    assert page.messages[1].opaque[0] == {
        "from": "anthropic:claude-sonnet-4-6",
        "block": thinking("t0", ""),
        "reasoning": ["/thinking"],
    }


async def test_a_recorded_pause_is_gone_on_with_in_a_run(harness: Harness) -> None:
    """Claude Sonnet 4.5 searches the web until the API pauses the turn; asked again with it, it goes on."""
    name = "anthropic/msg_sse_test_anthropic_test_pause_turn_web_search_streaming_vcr_0"
    paused = next(each for each in recordings("anthropic.messages", streaming=True) if each.id == name)
    search = [line for line in paused.response.body.decode().split("\n") if '"server_tool_use","id"' in line][-1]
    found: JsonValue = {
        "type": "web_search_tool_result",
        "tool_use_id": json.loads(search.removeprefix("data: "))["content_block"]["id"],
        "content": [],
    }
    last = streamed(reply(found, text("Clear air.")))
    played = RecordedConversation([paused.response, last], request_illegality)
    spec = agent(model="anthropic:claude-sonnet-4-5", web_search=True, settings={"reasoning_effort": "medium"})
    async with claude(played) as (server, model), harness.worker(spec, providers={"anthropic": model}):
        run = await harness.start(PROMPT)
        result = await run.result()
    assert result.text == "Clear air."
    assert [message["role"] for message in last_messages(server)] == ["user", "assistant"]
    assert len(_blocks(last_messages(server)[1])) == 25
    assert result.usage.input_tokens == 404_500 + 9


async def test_r06_a_run_switches_from_chat_completions_to_messages_in_the_middle_of_an_exchange(
    harness: Harness,
) -> None:
    broken = '{"path": "/tmp/a", "content": "abc'
    call: JsonValue = {"id": "call_abc", "type": "function", "function": {"name": "noop", "arguments": broken}}
    first = chat_reply({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls")
    gone = Response.of({"error": {"message": "key expired"}}, 401)
    played = RecordedConversation([streamed(reply(text("I see.")))], request_illegality)
    spec = agent(
        noop,
        model="openai:gpt-4.1-mini",
        fallback_models=("anthropic:claude-sonnet-4-5",),
        # The turn that is gone on with begins without thinking: this request must do without, too.
        settings={"reasoning_effort": "low"},
    )
    async with (
        ModelServer([first, gone]) as chat,
        loopback_client() as http,
        claude(played) as (server, model),
        harness.worker(
            spec, providers={"openai": HttpModel(http, ChatCompletions(), chat.base_url, "k"), "anthropic": model}
        ),
    ):
        result = await (await harness.start(PROMPT)).result()
    assert result.text == "I see."
    assert [record.attempts for record in result.tool_results] == [0]
    _, called, told = last_messages(server)
    assert _blocks(called) == [tool_use("call_abc")]
    assert "not valid JSON" in str(_blocks(told)[0]["content"])
    assert "thinking" not in (server.requests[0].json or {})
