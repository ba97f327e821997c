"""A model that is not there: the run goes on with the agent's next one, in the middle of its transcript."""

from activities.tooling import tool
from contracts.agents import AgentSpec
from contracts.models import Cost, Price
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, event_of, failure_of, says, script, state_of, transcript_of

GONE = {"failures": [{"type": "ModelAuthentication", "message": "the key was revoked", "retryable": False}]}


@tool(side_effect="read")
def look(x: str = "") -> str:
    """Look."""
    return f"seen {x}"


def with_fallbacks(*models: str) -> AgentSpec:
    return scripted_agent(look).model_copy(update={"fallback_models": models})


async def test_a_run_goes_on_with_the_next_model_where_it_is(harness: Harness) -> None:
    first = script(calls(("look", {"x": "1"})), {**says("never said"), **GONE})
    second = script(says("never asked for"), calls(("look", {"x": "2"})), says("Done."))
    async with harness.worker(with_fallbacks("scripted:other"), scripts={"main": first, "other": second}):
        run = await harness.start(PROMPT)
        result = await run.result()
        replaced = await event_of(run, "model_replaced")
        state = await state_of(run)
        messages = (await transcript_of(run)).messages
    assert result.text == "Done."
    assert [record.text for record in result.tool_results] == ["seen 1", "seen 2"]
    assert replaced.data == {"model": "scripted:main", "by": "scripted:other", "error": "ModelAuthentication"}
    assert state.model == "scripted:other"
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


async def test_the_last_models_failure_is_the_runs(harness: Harness) -> None:
    refusing = script({**says("never said"), **GONE})
    async with harness.worker(with_fallbacks("scripted:other"), scripts={"main": refusing, "other": refusing}):
        error, _ = await failure_of(await harness.start(PROMPT))
    assert (error.type, error.message) == ("ModelAuthentication", "the key was revoked")


async def test_what_the_model_itself_refuses_no_other_model_is_asked(harness: Harness) -> None:
    refusing = script({**says("x"), "failures": [{"type": "ModelRefused", "retryable": False}]})
    async with harness.worker(
        with_fallbacks("scripted:other"), scripts={"main": refusing, "other": script(says("Yes."))}
    ):
        error, _ = await failure_of(await harness.start(PROMPT))
    assert error.type == "ModelRefused"


async def test_each_model_is_paid_at_its_own_price(harness: Harness) -> None:
    used = {"usage": {"input_tokens": 1_000_000}}
    first = script({**calls(("look", {})), **used}, {**says("never said"), **GONE})
    second = script(says("never asked for"), {**says("Done."), **used})
    prices = {"scripted:main": Price(input=5, output=0), "scripted:other": Price(input=2, output=0)}
    agent = with_fallbacks("scripted:other").model_copy(update={"prices": prices})
    async with harness.worker(agent, scripts={"main": first, "other": second}):
        result = await (await harness.start(PROMPT)).result()
    assert result.cost == Cost(input=7.0)


async def test_opaque_blocks_go_back_to_the_model_that_gave_them_and_to_no_other(harness: Harness) -> None:
    block = {"type": "thinking", "thinking": "hm", "signature": "s1"}
    first = script(
        {**calls(("look", {})), "opaque": [{"block": block, "reasoning": ["/thinking"]}, {"call": 0}]}, says("Done.")
    )
    async with harness.worker(with_fallbacks(), scripts={"main": first}):
        run = await harness.start(PROMPT)
        await run.result()
        messages = (await transcript_of(run)).messages
    assert messages[1].opaque == ({"from": "scripted:main", "block": block, "reasoning": ["/thinking"]}, {"call": 0})
