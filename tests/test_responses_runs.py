"""Whole runs on the Responses API, recorded conversations among them. The server refuses what the API would refuse, and
remembers what it said."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from pydantic import JsonValue

from activities.providers.http_model import HttpModel
from activities.providers.responses import Responses
from activities.tooling import tool
from contracts.agents import AgentSpec
from contracts.tools import ToolContract
from runtime.dev_server import DevServer
from tests.providers.asking_responses import called, cut_off, ending, message, replied, text_events, thought
from tests.providers.legality_responses import illegality_of_what_follows, request_illegality
from tests.providers.model_server import Illegality, ModelServer, RecordedConversation, Response, Streamed
from tests.providers.recordings import conversation
from tests.support.harness import Harness, attempts, histories, transcript_of
from tests.support.loopback import loopback_client


def agent(*tools: ToolContract, max_rounds: int = 10) -> AgentSpec:
    return AgentSpec(
        name="answering", instructions="Answer with the tools.", model="openai:m", tools=tools, max_rounds=max_rounds
    )


@asynccontextmanager
async def provider(
    responses: Sequence[Response], illegality: Illegality | None = None
) -> AsyncIterator[tuple[ModelServer, HttpModel]]:
    """A provider that plays a conversation, and at the end has played all of it and refused nothing."""
    played = RecordedConversation(responses, illegality or illegality_of_what_follows(responses))
    async with ModelServer(played) as server, loopback_client() as http:
        yield server, HttpModel(http, Responses(), server.base_url, "test-key")
    assert (played.refused, played.left) == ([], 0)


def answers(server: ModelServer) -> list[JsonValue]:
    """What the tools answered, as the last request has it."""
    sent = server.requests[-1].json
    assert sent is not None
    items = sent["input"]
    assert isinstance(items, list)
    return [item["output"] for item in items if isinstance(item, dict) and item.get("type") == "function_call_output"]


@pytest.mark.parametrize(("sequence", "streaming"), [("seq26", True), ("seq29", False)])
async def test_a_recorded_conversation_goes_on_in_a_second_run(
    harness: Harness, sequence: str, streaming: bool
) -> None:
    """GPT-5 nano streamed, Grok whole: each thinks, calls a tool, answers, and is asked once more."""

    @tool(side_effect="read")
    def weather(latitude: str, longitude: str) -> str:
        """Weather at a place."""
        return f"Current weather at {latitude}, {longitude}: 15\u00b0C, Wind: 10 km/h"

    exchanges = conversation("openai.responses", streaming, sequence)
    responses = [each.response for each in exchanges]
    questions = ["What's the weather in Berlin? (52.5200, 13.4050)", "What's the weather in Paris? (48.8575, 2.3514)"]
    async with provider(responses) as (server, model), harness.worker(agent(weather), providers={"openai": model}):
        first = await harness.start({"agent": "answering", "prompt": questions[0]})
        assert (await first.result()).text == exchanges[1].expected["text"]
        so_far = [each.model_dump(mode="json") for each in (await transcript_of(first)).messages]
        second = await harness.start({"agent": "answering", "messages": so_far, "prompt": questions[1]})
        assert (await second.result()).text == exchanges[3].expected["text"]
    recorded = exchanges[-1].request["input"]
    assert isinstance(recorded, list)
    outputs = [item["output"] for item in recorded if isinstance(item, dict) and "output" in item]
    assert [str(each) for each in answers(server)] == outputs


async def test_reasoning_comes_back_first_and_byte_equal_also_after_continuing_as_new(impatient: DevServer) -> None:
    """R-x02."""

    @tool(side_effect="read")
    def lookup(q: int) -> str:
        """Looks up."""
        return f"page {q}"

    rounds = 30
    said = [
        replied(thought(f"gAA+/{n}=\u2028", f"Page {n}.", id="rs_same"), called(f'{{"q":{n}}}', call_id=f"call_x{n}"))
        for n in range(rounds)
    ]
    harness = Harness(impatient.client)
    async with (
        provider([*said, replied(thought("last"), message("All read."))]) as (server, model),
        harness.worker(agent(lookup, max_rounds=rounds + 1), providers={"openai": model}),
    ):
        run = await harness.start({"agent": "answering", "prompt": "Read all."})
        assert (await run.result()).text == "All read."
        assert len(await histories(impatient.client, run.id)) > 1
    assert len(answers(server)) == rounds
    await harness.check_histories()


async def test_bad_turns_do_not_end_a_run_nor_run_a_tool(harness: Harness) -> None:
    """R-01, R-03, R-06, R-08, R-16: after each of them the next request is legal, and the run comes to its end."""
    ran: list[str] = []

    @tool(side_effect="write")
    def lookup(path: str) -> str:
        """Looks up."""
        ran.append(path)
        return ""

    broken_off = Streamed.of_events(
        *text_events("Hel"), {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    )
    responses = [
        broken_off,
        replied(thought("A"), message(" \n")),
        cut_off(thought("B"), called('{"path":"half"}'), called('{"path":', call_id="call_b", status="incomplete")),
        replied(thought("C"), called('{"path": "/tmp/a", "content": "abc', call_id="call_c")),
        Streamed.of_events(ending(message("Let me look."), called('{"path":"whole"}', call_id="call_d"))),
        replied(message("Done.")),
    ]
    async with (
        provider(responses, request_illegality) as (server, model),
        harness.worker(agent(lookup), providers={"openai": model}),
    ):
        run = await harness.start({"agent": "answering", "prompt": "Look."})
        result = await run.result()
    assert (result.text, ran) == ("Done.", ["whole"])
    assert [record.ok for record in result.tool_results] == [False, False, False, True]
    whole, half, malformed, found = (str(each) for each in answers(server))
    assert "send a smaller call" in whole
    assert "send a smaller call" in half
    assert "not valid JSON" in malformed
    assert "error" not in found
    # Five replies told their usage; the attempt that broke off told none.
    assert result.usage.output_tokens == 5 * 7
    (history,) = await histories(harness.client, run.id)
    assert list(attempts(history, "call_model")) == [2, 1, 1, 1, 1]
