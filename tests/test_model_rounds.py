"""Rounds with a model, over each of the APIs: what a request asks for, what a reply may not do, and how little one
needs."""

import pytest
from pydantic import JsonValue, ValidationError
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError, WorkflowAlreadyStartedError

from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import tool
from contracts.agents import AgentSpec
from contracts.messages import Message
from contracts.models import ModelSettings, Price
from tests.providers import asking_messages, asking_responses, chat_chunks
from tests.providers.model_server import ModelServer, Response, Streamed, chat_reply
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, failure_of, says, script
from tests.support.loopback import loopback_client
from tests.support.providers import agent_with, providers_in
from tests.support.three_apis import APIS, Call, model_attempts, results_in, said, serving, spec

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
EACH_API = pytest.mark.parametrize("api", APIS)

ran: list[str] = []


@tool(side_effect="write")
def lookup(q: str) -> str:
    """Look something up."""
    ran.append(q)
    return f"found {q}"


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@EACH_API
@BOTH_WAYS
async def test_a_call_of_an_agent_without_tools_is_told_and_the_run_goes_on(
    harness: Harness, api: str, stream: bool
) -> None:
    replies = [
        said(api, Call("lookup", '{"q":"a"}'), label="calls", stream=stream),
        said(api, text="Without, then.", stream=stream),
    ]
    async with serving(harness, api, spec(api), *replies) as server:
        result = await (await harness.start(PROMPT)).result()
    assert "tools" not in (server.requests[0].json or {})
    assert (result.text, result.rounds, [record.attempts for record in result.tool_results]) == (
        "Without, then.",
        1,
        [0],
    )
    ((call_id, told),) = results_in(api, server.requests[1].json)
    assert call_id == "call_1"
    assert "there is no tool" in told
    assert "Available tools: none" in told


@EACH_API
async def test_a_conversation_with_calls_goes_on_with_an_agent_that_has_no_tools(harness: Harness, api: str) -> None:
    messages: JsonValue = [
        {"role": "user", "text": "Look."},
        {"role": "assistant", "tool_calls": [{"call_id": "call_7", "tool": "look", "arguments": {}}]},
        {"role": "tool", "call_id": "call_7", "text": "seen"},
    ]
    async with serving(harness, api, spec(api), said(api, text="I saw it.")):
        result = await (await harness.start({"agent": "tester", "messages": messages})).result()
    assert result.text == "I saw it."


def refusing(api: str, stream: bool) -> Response:
    """A refusal next to a call that is whole."""
    arguments = '{"q":"a"}'
    if api == "chat":
        call: JsonValue = {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": arguments}}
        whole = chat_reply({"role": "assistant", "content": None, "refusal": "I must not.", "tool_calls": [call]})
        return chat_chunks.streamed(whole) if stream else whole
    if api == "responses":
        part: JsonValue = {"type": "refusal", "refusal": "I must not."}
        items = [asking_responses.called(arguments), asking_responses.message("", content=[part])]
        ending = asking_responses.ending(*items)
        return Streamed.of_events(ending) if stream else asking_responses.replied(*items)
    message = asking_messages.reply(
        asking_messages.text("I must not."), asking_messages.tool_use("c", "lookup", q="a"), stop_reason="refusal"
    )
    return asking_messages.streamed(message) if stream else Response.of(message)


@EACH_API
@BOTH_WAYS
async def test_a_reply_that_was_refused_runs_nothing_and_ends_the_run(harness: Harness, api: str, stream: bool) -> None:
    async with serving(harness, api, spec(api, lookup), refusing(api, stream)):
        run = await harness.start(PROMPT)
        error, partial = await failure_of(run)
        assert await model_attempts(harness, run) == [1]
    assert (error.type, error.non_retryable) == ("ModelRefused", True)
    assert "I must not." in error.message
    assert (ran, partial.tool_results) == ([], ())


@EACH_API
@BOTH_WAYS
@pytest.mark.parametrize("choice", ["required", "lookup"])
async def test_a_forced_choice_holds_for_the_first_round_and_everything_else_for_all(
    harness: Harness, api: str, stream: bool, choice: str
) -> None:
    settings = ModelSettings(tool_choice=choice, temperature=0.5, max_output_tokens=900)
    replies = [
        # An empty reply is no round: the choice still holds.
        said(api, stream=stream),
        said(api, Call("lookup", '{"q":"a"}'), label="calls", stream=stream),
        said(api, Call("lookup", '{"q":"b"}', "call_2"), label="calls", stream=stream),
        said(api, text="Done.", stream=stream),
    ]
    async with serving(harness, api, spec(api, lookup, look, settings=settings), *replies) as server:
        result = await (await harness.start(PROMPT)).result()
        bodies = [dict(request.json or {}) for request in server.requests]
    assert (result.text, result.rounds, ran) == ("Done.", 2, ["a", "b"])
    choices = [body.pop("tool_choice", None) for body in bodies]
    assert choices[0] == choices[1] != None  # noqa: E711
    assert choice in str(choices[0]) or "any" in str(choices[0])
    assert choices[2:] == [None, None]
    for body in bodies:
        del body["input" if api == "responses" else "messages"]
    assert all(body == bodies[0] for body in bodies)
    assert {"tools", "temperature"} <= bodies[0].keys()


def test_a_forced_choice_of_a_tool_that_is_not_there_is_refused() -> None:
    fields = scripted_agent(lookup).model_dump()
    AgentSpec.model_validate({**fields, "settings": {"tool_choice": "lookup"}})
    with pytest.raises(ValidationError, match=r"settings\.tool_choice is 'look', which is no tool of this agent"):
        AgentSpec.model_validate({**fields, "settings": {"tool_choice": "look"}})


@EACH_API
@BOTH_WAYS
async def test_one_round_can_be_had_without_a_run(api: str, stream: bool) -> None:
    asked = said(api, Call("lookup", '{"q":"a"}'), text="Let me look.", label="calls", stream=stream)
    async with ModelServer([asked]) as server, loopback_client() as http:
        environment = {"ACME_BASE_URL": server.base_url, "ACME_API": api}
        provider = providers_in(environment, http, agent_with("acme:m"))["acme"]
        request = CompletionRequest("m", "Be brief.", (Message(role="user", text="Hello"),), (lookup,))
        completion = await provider.complete(request)
    assert completion.text == "Let me look."
    assert [(call.name, call.arguments.replace(" ", ""), call.provider_call_id) for call in completion.calls] == [
        ("lookup", '{"q":"a"}', "call_1")
    ]
    assert isinstance(completion.calls[0], RawToolCall)
    assert ran == []


async def test_an_agent_that_says_nothing_has_twenty_rounds(harness: Harness) -> None:
    spec = AgentSpec(name="tester", instructions="Test.", model="scripted:main", tools=(look,))
    rounds = [calls(("look", {})) for _ in range(21)]
    replies = {"main": script(*rounds[:20], says("Done.")), "more": script(*rounds, says("never said"))}
    async with harness.worker(spec, scripts=replies):
        result = await (await harness.start(PROMPT)).result()
    assert (result.text, result.rounds) == ("Done.", 20)
    async with harness.worker(spec.model_copy(update={"model": "scripted:more"}), scripts=replies):
        error, partial = await failure_of(await harness.start(PROMPT))
    assert (error.type, partial.rounds) == ("MaxRoundsExceeded", 20)
    assert "agent tester" in error.message


class Counted:
    """A model that says "Done." and knows how often."""

    def __init__(self) -> None:
        self.asked = 0

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        self.asked += 1
        return Completion("Done.")


async def test_a_run_that_was_cancelled_before_it_began_calls_no_model(harness: Harness) -> None:
    model = Counted()
    agent = scripted_agent().model_copy(update={"model": "counted:any"})
    run = await harness.start(PROMPT)
    await run.cancel()
    async with harness.worker(agent, providers={"counted": model}):
        with pytest.raises(WorkflowFailureError) as ended:
            await run.result()
        assert isinstance(ended.value.cause, CancelledError)
        # The worker is there, and so is the model.
        assert (await (await harness.start(PROMPT)).result()).text == "Done."
    assert model.asked == 1


async def test_a_run_that_cannot_be_started_has_no_end_and_one_that_was_has_one(harness: Harness) -> None:
    run = await harness.start(PROMPT, id="one-of-a-kind")
    with pytest.raises(WorkflowAlreadyStartedError):
        await harness.start(PROMPT, id="one-of-a-kind")
    async with harness.worker(scripted_agent(), scripts={"main": script(says("Done."))}):
        first = await run.result()
        with pytest.raises(WorkflowAlreadyStartedError):
            await harness.start(PROMPT, id="one-of-a-kind")
        assert await run.result() == first
        broken = await harness.start({"agent": "nobody", "prompt": "Go."})
        errors = [(await failure_of(broken))[0] for _ in range(2)]
    assert (first.text, first.error) == ("Done.", None)
    assert [error.type for error in errors] == ["UnknownAgent", "UnknownAgent"]


@pytest.mark.parametrize("price", [{"input": -1}, {"output": "nan"}, {"reasoning": "inf"}, {"cached_input": -0.1}])
def test_a_price_that_makes_no_sense_is_refused(price: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Price.model_validate({"input": 1, "output": 1, **price})
