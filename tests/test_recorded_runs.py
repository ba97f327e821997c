"""Whole runs on recorded conversations of real providers, served over loopback HTTP, with tools that answer as they
answered then. The server refuses every request that a provider would refuse."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.tooling import ToolError, tool
from contracts.agents import AgentSpec
from contracts.tools import ToolContract
from tests.providers.model_server import ModelServer, RecordedConversation
from tests.providers.recordings import Recording, conversation, recordings
from tests.support.harness import Harness, transcript_of
from tests.support.loopback import loopback_client


def agent(*tools: ToolContract, instructions: str = "Answer with the tools.") -> AgentSpec:
    return AgentSpec(name="recorded", instructions=instructions, model="openai:recorded", tools=tools)


@asynccontextmanager
async def provider(played: RecordedConversation) -> AsyncIterator[tuple[ModelServer, HttpModel]]:
    """A provider that plays a conversation, and at the end has played all of it and refused nothing."""
    async with ModelServer(played) as server, loopback_client() as http:
        yield server, HttpModel(http, ChatCompletions(), server.base_url, "test-key")
    assert played.refused == []
    assert played.left == 0


def single(id: str) -> Recording:
    return next(recording for recording in recordings("openai.chat", streaming=False) if recording.id == id)


def sent_messages(server: ModelServer, index: int = -1) -> Sequence[JsonValue]:
    sent = server.requests[index].json
    assert sent is not None
    messages = sent["messages"]
    assert isinstance(messages, list)
    return messages


def usage(exchange: Recording, counter: str) -> int:
    counted = exchange.expected["usage"]
    assert isinstance(counted, dict)
    tokens = counted[counter]
    assert isinstance(tokens, int)
    return tokens


def told(messages: Sequence[JsonValue]) -> list[JsonValue]:
    """What the tools answered, as the provider reads it."""
    return [message["content"] for message in messages if isinstance(message, dict) and message["role"] == "tool"]


@pytest.fixture
def rolls() -> Iterator[int]:
    return iter(range(1, 10))


async def test_three_rounds_of_dice(harness: Harness, rolls: Iterator[int]) -> None:
    """gpt-oss on Ollama Cloud: three rounds of one call each, then the answer."""

    @tool(side_effect="read")
    def dice_roll() -> dict[str, int]:
        """Rolls a single six-sided die and returns the result"""
        return {"roll": next(rolls)}

    exchanges = conversation("openai.chat", False, "seq22")
    played = RecordedConversation([exchange.response for exchange in exchanges])
    async with provider(played) as (server, model), harness.worker(agent(dice_roll), providers={"openai": model}):
        run = await harness.start({"agent": "recorded", "prompt": "Roll the dice 3 times"})
        result = await run.result()
    recorded = exchanges[-1].request["messages"]
    assert isinstance(recorded, list)
    assert result.text == exchanges[-1].expected["text"]
    assert (result.rounds, len(result.tool_results)) == (3, 3)
    assert told(sent_messages(server)) == told(recorded)
    assert result.usage.input_tokens == sum(usage(exchange, "input") for exchange in exchanges)
    assert result.usage.output_tokens == sum(usage(exchange, "output") for exchange in exchanges)


async def test_two_rounds_with_parallel_calls(harness: Harness) -> None:
    """DeepSeek: a round of one call, a round of two, then the answer."""

    @tool(side_effect="read")
    def load_capability(id: str) -> dict[str, JsonValue]:
        """Load a capability to access its full instructions and tools."""
        assert id == "DICE_ROLL"
        return {}

    @tool(side_effect="read")
    def get_player_name() -> str:
        """Get the player's name."""
        return "Anne"

    @tool(side_effect="read")
    def roll_dice() -> str:
        """Roll a six-sided die and return the result."""
        return "4"

    exchanges = conversation("openai.chat", False, "seq11")
    played = RecordedConversation([exchange.response for exchange in exchanges])
    spec = agent(load_capability, get_player_name, roll_dice)
    async with provider(played) as (server, model), harness.worker(spec, providers={"openai": model}):
        run = await harness.start({"agent": "recorded", "prompt": "My guess is 4"})
        result = await run.result()
    assert result.text == exchanges[-1].expected["text"]
    assert "Anne" in result.text
    assert (result.rounds, [record.tool for record in result.tool_results]) == (
        2,
        ["load_capability", "get_player_name", "roll_dice"],
    )
    assert told(sent_messages(server)) == ["{}", "Anne", "4"]
    # The provider finds its own call ids again.
    assert "call_01_km02sac7sHxNDPATKLZy7705" in str(sent_messages(server))


async def test_wrong_arguments_then_right_ones(harness: Harness) -> None:
    """gpt-oss on Groq calls a tool with a parameter it does not have, reads why, and calls it rightly."""
    ran: list[str] = []

    @tool(side_effect="write")
    def get_something_by_name(name: str) -> str:
        """Get something by its name."""
        ran.append(name)
        return f"Something with name: {name}"

    last = single("groq/chat_json_test_groq_test_tool_use_failed_error_2")
    played = RecordedConversation.from_last_request(last.request, last.response)
    spec = agent(get_something_by_name)
    async with provider(played) as (server, model), harness.worker(spec, providers={"openai": model}):
        run = await harness.start({"agent": "recorded", "prompt": "Call it with non-existent parameters first."})
        result = await run.result()
    assert ran == ["test"]
    assert result.text == last.expected["text"]
    assert result.rounds == 2
    refused, answered = told(sent_messages(server))
    assert "foo" in str(refused)
    assert "name" in str(refused)
    assert answered == "Something with name: test"


async def test_a_tool_that_asks_for_something_else(harness: Harness) -> None:
    """GPT-4o reads a tool's failure and calls it again with what the failure suggests."""

    @tool(side_effect="read")
    def get_weather_in_city(city: str) -> str:
        """Get the weather."""
        if city == "CDMX":
            raise ToolError("invalid_input", "Did you mean Mexico City?")
        return "sunny"

    last = single("openai/chat_json_test_temporal_test_temporal_agent_with_model_retry_2")
    played = RecordedConversation.from_last_request(last.request, last.response)
    spec = agent(get_weather_in_city)
    async with provider(played) as (server, model), harness.worker(spec, providers={"openai": model}):
        run = await harness.start({"agent": "recorded", "prompt": "What is the weather in CDMX?"})
        result = await run.result()
    assert result.text == last.expected["text"]
    assert [record.ok for record in result.tool_results] == [False, True]
    assert "Did you mean Mexico City?" in str(told(sent_messages(server))[0])


async def test_a_second_run_continues_the_conversation_of_the_first(harness: Harness) -> None:
    """Claude through OpenRouter: the transcript of one run is the `messages` of the next."""

    @tool(side_effect="read")
    def weather(latitude: str, longitude: str) -> str:
        """Weather at a place."""
        return f"Current weather at {latitude}, {longitude}: 15\u00b0C, Wind: 10 km/h"

    exchanges = conversation("openai.chat", False, "seq27")
    questions = [message["content"] for message in exchanges[-1].request["messages"] if message["role"] == "user"]  # type: ignore[index,call-overload,union-attr]  # recorded JSON
    played = RecordedConversation([exchange.response for exchange in exchanges])
    async with provider(played) as (server, model), harness.worker(agent(weather), providers={"openai": model}):
        first = await harness.start({"agent": "recorded", "prompt": questions[0]})
        assert (await first.result()).text == exchanges[1].expected["text"]
        so_far = [message.model_dump(mode="json") for message in (await transcript_of(first)).messages]
        second = await harness.start({"agent": "recorded", "messages": so_far, "prompt": questions[1]})
        assert (await second.result()).text == exchanges[3].expected["text"]
    recorded = exchanges[-1].request["messages"]
    assert isinstance(recorded, list)
    assert told(sent_messages(server)) == told(recorded)
