"""Runs that grow past their model's window: they go on, or end by name before anything is paid."""

import asyncio
import threading
from typing import Any

from pydantic import JsonValue

from activities.catalog import Catalog
from activities.model_table import ModelTable
from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.providers.scripted import Scripted
from activities.token_counts import TokenCounter
from activities.tooling import tool
from activities.window import LEFT_OUT
from contracts.agents import AgentSpec
from contracts.messages import illegality
from contracts.models import ContextBudget, ModelFacts
from runtime.serving import agent_worker
from tests.providers.model_server import ModelServer, Response, chat_reply
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import CHECKOUT, Harness, failure_of, says, script, transcript_of
from tests.support.loopback import loopback_client

ROUNDS = 8


@tool(side_effect="read")
def look(place: str) -> str:
    """Look."""
    return f"In {place}: " + "nothing " * 300


def agent(window: int) -> AgentSpec:
    context = ContextBudget(window=window, reserved_output=100)
    return scripted_agent(look).model_copy(update={"model": "openai:any", "context": context})


def looking(number: int) -> Response:
    call: JsonValue = {"id": f"c{number}", "function": {"name": "look", "arguments": f'{{"place": "place {number}"}}'}}
    return chat_reply({"content": None, "tool_calls": [call]})


def last_sent(server: ModelServer) -> list[Any]:
    body = server.requests[-1].json
    assert body is not None
    assert isinstance(body["messages"], list)
    return body["messages"]


async def test_a_run_goes_on_past_its_window_and_each_request_is_legal(harness: Harness) -> None:
    replies = [*map(looking, range(ROUNDS)), chat_reply({"content": "Nothing anywhere."})]
    async with ModelServer(replies) as server, loopback_client() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, "key")
        async with harness.worker(agent(1_700), providers={"openai": model}):
            run = await harness.start(PROMPT)
            result = await run.result()
            transcript = (await transcript_of(run)).messages
    assert (result.text, result.rounds) == ("Nothing anywhere.", ROUNDS)
    # What the run keeps is whole.
    assert len(transcript) == 1 + 2 * ROUNDS + 1
    assert illegality(transcript) is None
    last = last_sent(server)
    assert [message["role"] for message in last[:3]] == ["system", "user", "assistant"]
    assert last[1]["content"] == "Go."
    assert last[-1]["content"] == transcript[-2].text
    assert "were left out, as they are too old to fit. Call look again" in last[3]["content"]


async def test_the_prompt_stays_where_rounds_are_left_out(harness: Harness) -> None:
    replies = [*map(looking, range(ROUNDS)), chat_reply({"content": "Nothing anywhere."})]
    async with ModelServer(replies) as server, loopback_client() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, "key")
        async with harness.worker(agent(950), providers={"openai": model}):
            await (await harness.start(PROMPT)).result()
        last = last_sent(server)
    assert [message["content"] for message in last[1:3]] == ["Go.", LEFT_OUT.text]
    assert len(last) < 1 + 1 + 2 * ROUNDS


async def test_what_cannot_fit_ends_the_run_by_name_before_the_model_is_asked(harness: Harness) -> None:
    async with ModelServer([]) as server, loopback_client() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, "key")
        async with harness.worker(agent(300), providers={"openai": model}):
            error, _ = await failure_of(await harness.start({"agent": "tester", "prompt": "word " * 400}))
        assert server.requests == []
    assert (error.type, error.non_retryable) == ("ContextWindowExceeded", True)
    assert "conversation 504" in error.message
    assert "send a shorter prompt" in error.message


def broken(text: str) -> int:
    raise ValueError(text)


async def test_a_counter_that_fails_ends_the_run_by_name_before_the_model_is_asked(harness: Harness) -> None:
    catalog = Catalog([agent(300)], counters=[TokenCounter("openai:", broken)])
    async with ModelServer([]) as server, loopback_client() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, "key")
        async with agent_worker(harness.client, harness.task_queue, catalog, {"openai": model}):
            error, _ = await failure_of(await harness.start(PROMPT))
        assert server.requests == []
    assert (error.type, error.non_retryable) == ("InternalError", True)
    assert "the token counter tests.test_context_window.broken" in error.message


async def test_a_model_that_takes_anothers_place_is_asked_within_its_own_window(harness: Harness) -> None:
    """Its window is in the worker's table; the agent's own is that of its first model."""
    refused: JsonValue = {"type": "ModelAuthentication", "retryable": False}
    gone: dict[str, JsonValue] = {**says("never said"), "failures": [refused]}
    agent = scripted_agent().model_copy(
        update={"fallback_models": ("scripted:small",), "context": ContextBudget(window=100_000)}
    )
    table = ModelTable({"scripted:small": ModelFacts(context_window=1_100)})
    providers = {"scripted": Scripted(CHECKOUT, {"main": script(gone), "small": script(says("Done."))})}
    async with agent_worker(harness.client, harness.task_queue, Catalog([agent]), providers, models=table):
        error, _ = await failure_of(await harness.start({"agent": "tester", "prompt": "word " * 500}))
    assert error.type == "ContextWindowExceeded"
    assert "window has 1100" in error.message


async def test_a_counter_that_takes_its_time_keeps_no_other_run_waiting(harness: Harness) -> None:
    loop = asyncio.get_running_loop()

    def thorough(text: str) -> int:
        others_went_on = threading.Event()
        loop.call_soon_threadsafe(others_went_on.set)
        if not others_went_on.wait(10):
            raise TimeoutError
        return 1

    catalog = Catalog([agent(10_000)], counters=[TokenCounter("openai:", thorough)])
    async with ModelServer([chat_reply({"content": "Done."})]) as server, loopback_client() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, "key")
        async with agent_worker(harness.client, harness.task_queue, catalog, {"openai": model}):
            assert (await (await harness.start(PROMPT)).result()).text == "Done."
