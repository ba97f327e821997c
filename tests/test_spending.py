"""Tokens and dollars: counted over every billed attempt, carried, and kept within what the run may spend."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue, ValidationError
from temporalio.exceptions import ApplicationError

from activities.providers.interface import CompletionRequest
from activities.requests import within_budgets
from activities.tooling import tool
from activities.window import Fitted, TokenSplit
from contracts.activities import ModelRequest
from contracts.agents import AgentSpec
from contracts.messages import Usage
from contracts.models import ContextBudget, Cost, ModelSettings, Price
from contracts.records import MalformedPayload
from contracts.runs import RunOptions
from contracts.transcripts import TranscriptRef
from runtime.dev_server import DevServer
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Harness,
    attempts,
    calls,
    event_of,
    failure_of,
    histories,
    pending_approval,
    says,
    script,
    state_of,
)

PRICE = Price(input=2.0, output=8.0, cached_input=0.5, reasoning=10.0)
# What is kept free for a reply.
SMALL = ContextBudget(reserved_output=100)
SOON: dict[str, JsonValue] = {"retry_after": 0.01}


@tool(side_effect="read")
def look(x: str = "") -> str:
    """Look."""
    return f"seen {x}"


def used(input_tokens: int, output_tokens: int = 0, **more: int) -> dict[str, JsonValue]:
    return {"usage": {"input_tokens": input_tokens, "output_tokens": output_tokens, **more}}


def priced(**settings: object) -> AgentSpec:
    return scripted_agent(look).model_copy(update={"prices": {"scripted:main": PRICE}, **settings})


def test_a_price_counts_each_token_once() -> None:
    usage = Usage(input_tokens=1_000_000, output_tokens=500_000, cached_input_tokens=400_000, reasoning_tokens=100_000)
    assert PRICE.cost(usage) == Cost(input=1.2, cached=0.2, output=3.2, reasoning=1.0)
    assert PRICE.cost(usage).total == pytest.approx(5.6)


def test_what_has_no_price_of_its_own_costs_what_input_and_output_cost() -> None:
    usage = Usage(input_tokens=30, output_tokens=20, cached_input_tokens=10, cache_write_tokens=5, reasoning_tokens=7)
    assert Price(input=1_000_000, output=2_000_000).cost(usage).total == 30 + 2 * 20


@given(st.builds(Usage, **{name: st.integers(0, 2**40) for name in Usage.model_fields}))
def test_a_cost_is_never_negative_whatever_a_provider_counts(usage: Usage) -> None:
    cost = PRICE.cost(usage)
    assert min(cost.input, cost.cached, cost.output, cost.reasoning) >= 0
    assert cost.total == pytest.approx(cost.input + cost.cached + cost.output + cost.reasoning)


async def test_usage_and_cost_add_up_over_rounds_and_stand_in_state_and_result(harness: Harness) -> None:
    replies = script(
        {**calls(("look", {})), **used(1_000, 100, cached_input_tokens=500)},
        {**says("Done."), **used(2_000, 300, reasoning_tokens=200)},
    )
    async with harness.worker(priced(), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        result = await run.result()
        state = await state_of(run)
    assert result.usage == Usage(input_tokens=3_000, output_tokens=400, cached_input_tokens=500, reasoning_tokens=200)
    assert result.cost.total == pytest.approx((2_500 * 2.0 + 500 * 0.5 + 200 * 8.0 + 200 * 10.0) / 1e6)
    assert (state.usage, state.cost) == (result.usage, result.cost)


async def test_a_run_that_waits_for_a_decision_shows_what_it_has_spent(harness: Harness) -> None:
    @tool(side_effect="write", approval="always")
    def pay() -> str:
        """Pay."""
        return "paid"

    spent = used(1_000, 300, cached_input_tokens=400, cache_write_tokens=50, reasoning_tokens=200)
    agent = scripted_agent(pay).model_copy(update={"prices": {"scripted:main": PRICE}})
    replies = script({**calls(("pay", {})), **spent}, {**says("Done."), **used(0)})
    async with harness.worker(agent, scripts={"main": replies}):
        run = await harness.start(PROMPT)
        approval = await pending_approval(run)
        waiting = await state_of(run)
        await run.signal(
            "resolve_approval", {"approval_id": approval.approval_id, "resolution": "approved", "by": "ann"}
        )
        result = await run.result()
    assert waiting.status == "waiting_for_approval"
    assert waiting.usage == Usage(
        input_tokens=1_000, output_tokens=300, cached_input_tokens=400, cache_write_tokens=50, reasoning_tokens=200
    )
    assert waiting.cost == PRICE.cost(waiting.usage)
    assert waiting.cost.total > 0
    # The end shows the same five counters and the whole cost.
    assert (result.usage, result.cost) == (waiting.usage, waiting.cost)


async def test_a_failed_attempt_that_was_billed_is_counted_once(harness: Harness) -> None:
    failing = {"failures": [{**SOON, **used(9)}, SOON, {**SOON, **used(9, 1)}]}
    async with harness.worker(priced(), scripts={"main": script({**says("Done."), **used(20, 2), **failing})}):
        run = await harness.start(PROMPT)
        result = await run.result()
        (history,) = await histories(harness.client, run.id)
    assert result.usage == Usage(input_tokens=38, output_tokens=3)
    assert attempts(history, "call_model") == [4]


async def test_what_a_call_that_never_succeeded_was_billed_is_in_the_partial_result(harness: Harness) -> None:
    failing = {"failures": [{**SOON, **used(9)}, {"type": "ModelRefused", "retryable": False, **used(5)}]}
    async with harness.worker(priced(), scripts={"main": script({**says("Done."), **failing})}):
        error, result = await failure_of(await harness.start(PROMPT))
    assert error.type == "ModelRefused"
    assert result.usage == Usage(input_tokens=14)
    assert result.cost.total == pytest.approx(14 * 2.0 / 1e6)


async def test_a_model_that_does_not_count_is_estimated_and_said_so(harness: Harness) -> None:
    async with harness.worker(priced(), scripts={"main": script({**says("four"), "usage": None})}):
        run = await harness.start(PROMPT)
        result = await run.result()
        event = await event_of(run, "model_completed")
    assert event.data["usage_estimated"] is True
    assert result.usage.input_tokens > 0
    assert result.usage.output_tokens == 1


async def test_tokens_without_a_price_are_counted_and_cost_nothing(harness: Harness) -> None:
    async with harness.worker(scripted_agent(), scripts={"main": script({**says("Done."), **used(70, 7)})}):
        result = await (await harness.start(PROMPT)).result()
    assert result.cost == Cost(unpriced_tokens=77)


@pytest.mark.parametrize("source", ["agent", "options"])
async def test_a_token_budget_stops_the_run_before_the_call_that_would_pass_it(harness: Harness, source: str) -> None:
    limit = {"max_total_tokens": 1_010}
    agent = priced(context=SMALL, **(limit if source == "agent" else {}))
    replies = script({**calls(("look", {})), **used(900, 100)}, says("never asked for"))
    async with harness.worker(agent, scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": limit if source == "options" else {}})
        error, result = await failure_of(run)
        state = await state_of(run)
    assert error.type == "TokenBudgetExceeded"
    assert "max_total_tokens leaves 10" in error.message
    assert result.usage.total_tokens == 1_000
    assert [record.ok for record in result.tool_results] == [True]
    assert (state.limits["total_tokens"].used, state.limits["total_tokens"].max) == (1_000, 1_010)


async def test_a_cost_budget_stops_the_run_before_the_call_that_would_pass_it(harness: Harness) -> None:
    replies = script({**calls(("look", {})), **used(2_000, 690)}, says("never asked for"))
    async with harness.worker(priced(max_cost_usd=0.01, context=SMALL), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        error, result = await failure_of(run)
        state = await state_of(run)
    assert error.type == "CostBudgetExceeded"
    assert result.cost.total == pytest.approx(0.00952)
    assert "max_cost_usd leaves 0.000480" in error.message
    assert (state.limits["cost_usd"].used, state.limits["cost_usd"].max) == (result.cost.total, 0.01)


async def test_a_budget_counts_what_earlier_attempts_of_the_same_call_were_billed(harness: Harness) -> None:
    failing = {"failures": [{**SOON, **used(950)}]}
    agent = priced(max_total_tokens=1_000, context=SMALL)
    async with harness.worker(agent, scripts={"main": script({**says("Done."), **failing})}):
        error, result = await failure_of(await harness.start(PROMPT))
    assert error.type == "TokenBudgetExceeded"
    assert result.usage.total_tokens == 950


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_total_tokens": 1_001}, "max_total_tokens is 1001, but the agent allows at most 1000"),
        ({"max_cost_usd": 0.6}, "max_cost_usd is 0.6, but the agent allows at most 0.5"),
    ],
)
async def test_a_budget_is_not_widened(harness: Harness, options: dict[str, JsonValue], named: str) -> None:
    agent = priced(max_total_tokens=1_000, max_cost_usd=0.5)
    async with harness.worker(agent, scripts={"main": script(says("Done."))}):
        error, _ = await failure_of(await harness.start({**PROMPT, "options": options}))
    assert error.type == "InvalidInput"
    assert named in error.message


async def test_a_continuation_resets_no_budget(impatient: DevServer) -> None:
    harness = Harness(impatient.client)
    rounds = [calls(("look", {"x": str(number)})) for number in range(19)]
    replies = script(*[{**reply, **used(90, 10)} for reply in (*rounds, says("Done."))])
    async with harness.worker(priced(max_total_tokens=5_000), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        result = await run.result()
        executions = await histories(harness.client, run.id)
    assert len(executions) > 1
    assert result.usage == Usage(input_tokens=1_800, output_tokens=200)
    assert result.cost.total == pytest.approx((1_800 * 2.0 + 200 * 8.0) / 1e6)
    await harness.check_histories()


@pytest.mark.parametrize("price", [float("inf"), float("nan"), 1e308, -1.0])
def test_a_price_is_a_plausible_number(price: float) -> None:
    with pytest.raises(ValidationError):
        Price(input=price, output=1)


@pytest.mark.parametrize("dollars", ["NaN", "Infinity", "1e999", "-1", "-0.1", "true"])
async def test_a_budget_is_a_number_of_dollars(harness: Harness, dollars: str) -> None:
    with pytest.raises(MalformedPayload, match="max_cost_usd"):
        RunOptions.from_wire(f'{{"max_cost_usd": {dollars}}}'.encode())


@pytest.mark.parametrize("budget", [0.0, 5e-324, 1e-9])
async def test_a_budget_of_next_to_nothing_pays_for_nothing(harness: Harness, budget: float) -> None:
    async with harness.worker(priced(), scripts={"main": script(says("never asked for"))}):
        run = await harness.start({**PROMPT, "options": {"max_cost_usd": budget}})
        error, result = await failure_of(run)
    assert (error.type, result.cost.total) == ("CostBudgetExceeded", 0.0)


@pytest.mark.parametrize("price", [Price(input=0, output=0), Price(input=5e-324, output=5e-324), PRICE])
@pytest.mark.parametrize("budget", [1.0, 1e308])
async def test_no_price_and_no_budget_is_too_small_or_too_large_to_count_with(
    harness: Harness, price: Price, budget: float
) -> None:
    agent = priced(prices={"scripted:main": price})
    async with harness.worker(agent, scripts={"main": script(says("Done."))}):
        run = await harness.start({**PROMPT, "options": {"max_cost_usd": budget}})
        assert (await run.result()).text == "Done."


async def test_a_free_model_may_be_asked_without_any_budget(harness: Harness) -> None:
    agent = priced(prices={"scripted:main": Price(input=0, output=0)}, max_cost_usd=0.0)
    async with harness.worker(agent, scripts={"main": script(says("Done."))}):
        assert (await (await harness.start(PROMPT)).result()).text == "Done."


def used_up(left: float, **settings: object) -> ModelSettings:
    """The settings of a request with 100 tokens of input, where a budget leaves so much."""
    agent = priced(**settings)
    request = CompletionRequest("main", "Test.", (), ())
    fitted = Fitted(request, TokenSplit(system=100, reserved_output=100))
    asked = ModelRequest(agent_digest="", transcript=TranscriptRef(count=0, digest=""), next_call=1, cost_left_usd=left)
    return within_budgets(fitted, asked, agent, "scripted:main", Usage())


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_what_is_found_to_fit_is_not_rounded_away(input_price: float, output_price: float) -> None:
    price = Price(input=input_price, output=output_price)
    needed = 100 * input_price / 1e6 + 100 * output_price / 1e6
    settings = used_up(needed, prices={"scripted:main": price})
    assert settings.max_output_tokens is not None
    assert settings.max_output_tokens >= 100


def test_input_may_cost_what_writing_it_to_the_cache_costs() -> None:
    prices = {"scripted:main": Price(input=1, output=1, cache_write=1.25)}
    assert used_up(225e-6, prices=prices).max_output_tokens == 100
    with pytest.raises(ApplicationError, match=r"may cost 0\.000225 USD"):
        used_up(224e-6, prices=prices)
