"""The provider's key appears nowhere but in the request: not in history, not in an error, not in a log."""

import logging

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.tooling import tool
from contracts.outcomes import ToolOutcome
from contracts.policies import CompensationRule
from contracts.tools import UndoOutcome, UndoRequest
from tests.providers.model_server import ModelServer, Response, chat_reply
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, failure_of, histories, script
from tests.support.loopback import loopback_client

KEY = "sk-test-TOKEN-9-do-not-leak"


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


AGENT = scripted_agent(look).model_copy(update={"model": "openai:any"})


async def leaks(harness: Harness, workflow_id: str) -> list[str]:
    return [
        event.WhichOneof("attributes") or ""
        for history in await histories(harness.client, workflow_id)
        for event in history.events
        if KEY.encode() in event.SerializeToString()
    ]


async def test_a_provider_that_echoes_the_key_in_a_reply(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    call: JsonValue = {
        "id": f"call_{KEY}",
        "type": "function",
        "function": {"name": "look", "arguments": f'{{"x": "{KEY}"}}'},
    }
    replies = [
        chat_reply({"role": "assistant", "content": f"your key is {KEY}", "tool_calls": [call]}, "tool_calls"),
        chat_reply({"role": "assistant", "content": f"Bearer {KEY}"}),
    ]
    async with ModelServer(replies) as server, loopback_client() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, KEY)
        async with harness.worker(AGENT, providers={"openai": model}):
            run = await harness.start(PROMPT)
            result = await run.result()
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert result.text == "Bearer ***"
    assert await leaks(harness, run.id) == []
    assert KEY not in caplog.text


@pytest.mark.parametrize("status", [400, 401, 403])
async def test_a_provider_that_echoes_the_key_in_an_error(
    harness: Harness, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(logging.DEBUG)
    refusal = Response.of({"error": {"message": f"Incorrect key {KEY}", "code": KEY, "type": KEY}}, status)
    async with ModelServer([refusal]) as server, loopback_client() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, KEY)
        async with harness.worker(AGENT, providers={"openai": model}):
            run = await harness.start(PROMPT)
            error, _ = await failure_of(run)
    assert error.type in ("ModelBadRequest", "ModelAuthentication")
    assert KEY not in error.message
    assert await leaks(harness, run.id) == []
    assert KEY not in caplog.text


async def test_retry_after_is_a_durable_wait(harness: Harness) -> None:
    """The provider's delay travels with the failure; no worker sleeps through it."""
    limited = Response(429, {"retry-after": "2", "content-type": "application/json"}, b'{"error": {"message": "slow"}}')
    replies = [limited, chat_reply({"role": "assistant", "content": "Now."})]
    async with ModelServer(replies) as server, loopback_client() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, KEY)
        async with harness.worker(AGENT, providers={"openai": model}):
            run = await harness.start(PROMPT)
            await run.result()
            (history,) = await histories(harness.client, run.id)
    scheduled = [event for event in history.events if event.HasField("activity_task_scheduled_event_attributes")]
    started = [event for event in history.events if event.HasField("activity_task_started_event_attributes")]
    waited = started[-1].event_time.ToSeconds() - scheduled[-1].event_time.ToSeconds()
    assert started[-1].activity_task_started_event_attributes.attempt == 2
    assert waited >= 2


async def test_a_compensation_token_is_where_the_undo_needs_it_and_nowhere_that_people_look(harness: Harness) -> None:
    """It travels in payloads, from the call that made it to its undo: not in names, attributes, failures or queries."""
    token = "ctok-TEST-TOKEN-9"

    @tool(side_effect="write", compensation=CompensationRule(max_attempts=1))
    def book() -> ToolOutcome:
        """Book."""
        return ToolOutcome(ok=True, text="booked", compensation_token=token)

    taken: list[str | None] = []

    @book.undo
    def give_back(request: UndoRequest) -> UndoOutcome:
        taken.append(request.compensation_token)
        raise RuntimeError("the desk is closed")

    agent = scripted_agent(book, look, max_rounds=1).model_copy(update={"compensate_on": ("failed",)})
    async with harness.worker(agent, scripts={"main": script(calls(("book", {})), calls(("look", {})))}):
        run = await harness.start(PROMPT)
        error, _ = await failure_of(run)
        shown = [await run.query(query) for query in ("state", "result", "events", "transcript")]
        described = (await run.describe()).raw_description
    assert taken == [token]
    assert error.type == "MaxRoundsExceeded"
    assert token not in f"{error.message} {error.details} {shown}"
    assert token.encode() not in described.SerializeToString()
    (history,) = await histories(harness.client, run.id)
    holding = [
        (event.WhichOneof("attributes") or "").removesuffix("_event_attributes")
        for event in history.events
        if token.encode() in event.SerializeToString()
    ]
    assert holding == ["activity_task_completed", "activity_task_scheduled"]
