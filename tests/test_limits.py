"""Limits are counted in what a run carries: no pause, worker, or continuation begins them anew."""

from datetime import UTC, datetime, timedelta

import pytest

from activities.tooling import tool
from contracts.agents import AgentSpec
from contracts.messages import illegality
from contracts.models import ContextBudget, Price
from runtime.dev_server import DevServer
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Handle,
    Harness,
    calls,
    event_types,
    failure_of,
    histories,
    pending_approval,
    says,
    script,
    state_of,
    transcript_of,
)


@tool(side_effect="read")
def works(x: str = "") -> str:
    """Work."""
    return f"worked {x}"


@tool(side_effect="read")
def fails() -> str:
    """Fail."""
    raise RuntimeError("it failed")


@tool(side_effect="write", approval="always")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def bearing(failures: int, **settings: int) -> AgentSpec:
    agent = scripted_agent(works, fails, pay, **settings)
    return agent.model_copy(update={"max_failures_per_tool": failures})


async def decide(run: Handle, resolution: str) -> None:
    approval = await pending_approval(run)
    decision = {"approval_id": approval.approval_id, "resolution": resolution, "by": "ann"}
    await run.execute_update("decide", decision)


@pytest.mark.parametrize("bad", [{}, {"x": 1}], ids=["raises", "invalid"])
async def test_r20_a_tools_failures_are_counted_though_others_work_in_between(
    harness: Harness, bad: dict[str, int]
) -> None:
    """By a tool that fails, and by calls that its schema refuses."""
    failing = ("works", bad) if bad else ("fails", {})
    working = ("works", {"x": "1"}) if not bad else ("pay", {"amount": 1})
    rounds = [calls(failing), calls(working)] * 5
    async with harness.worker(bearing(2), scripts={"main": script(*rounds)}):
        run = await harness.start(PROMPT)
        for _ in range(2 if bad else 0):
            await decide(run, "approved")
        error, partial = await failure_of(run)
        messages = (await transcript_of(run)).messages
    assert error.type == "ToolFailed"
    assert error.message == f"{failing[0]} has failed 3 times, and agent's max_failures_per_tool is 2"
    assert [record.tool for record in partial.tool_results] == [failing[0], working[0]] * 2 + [failing[0]]
    assert (partial.rounds, partial.status) == (5, "failed")
    assert illegality(messages) is None


async def test_a_call_that_never_came_to_its_tool_is_no_failure_of_it(harness: Harness) -> None:
    rounds = [calls(("pay", {"amount": 1})), calls(("works", {})), calls(("pay", {"amount": 1}))]
    async with harness.worker(bearing(0), scripts={"main": script(*rounds, says("Nobody paid."))}):
        run = await harness.start(PROMPT)
        await decide(run, "denied")
        await decide(run, "denied")
        assert (await run.result()).text == "Nobody paid."


async def test_r20_rounds_go_on_after_an_approval_and_another_worker(harness: Harness) -> None:
    """Round 3 waits for a person while the worker is replaced; round 5 is never opened. `limits` shows all of them."""
    look = calls(("works", {}))
    replies = script(look, look, calls(("pay", {"amount": 1})), look, {**look, "text": "And once more."}, says("never"))
    agent = scripted_agent(works, pay).model_copy(update={"prices": {"scripted:main": Price(input=1.0, output=1.0)}})
    options = {
        "max_rounds": 4,
        "max_tool_calls": 40,
        "max_total_tokens": 500_000,
        "max_cost_usd": 5.0,
        "deadline_seconds": 600,
    }
    async with harness.worker(agent, scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": options})
        await pending_approval(run)
        waiting = await state_of(run)
    async with harness.worker(agent, scripts={"main": replies}):
        await decide(run, "approved")
        error, partial = await failure_of(run)
        state = await state_of(run)
        messages = (await transcript_of(run)).messages
    most = {"rounds": 4, "tool_calls": 40, "total_tokens": 500_000, "cost_usd": 5.0, "deadline_seconds": 600}
    assert {name: use.max for name, use in waiting.limits.items()} == most
    assert (waiting.limits["rounds"].used, waiting.limits["tool_calls"].used) == (3, 3)
    # What was asked for beyond the limit is told, and was not run.
    assert error.type == "MaxRoundsExceeded"
    assert "after 4 of 4 rounds" in error.message
    assert "max_rounds of the options of this run" in error.message
    assert (partial.rounds, partial.text) == (4, "And once more.")
    assert [(record.tool, record.ok) for record in partial.tool_results] == [
        ("works", True),
        ("works", True),
        ("pay", True),
        ("works", True),
        ("works", False),
    ]
    assert (partial.tool_results[-1].call_id, partial.tool_results[-1].attempts) == ("call_5", 0)
    assert {name: use.max for name, use in state.limits.items()} == most
    assert (state.limits["rounds"].used, state.limits["tool_calls"].used) == (4, 4)
    assert illegality(messages) is None


@pytest.mark.long
async def test_r20_nothing_is_counted_anew_after_continuing_as_new(impatient: DevServer) -> None:
    """Failures of a tool, rounds, and the deadline: a request of a later execution expires at the first one's."""
    harness = Harness(impatient.client)
    busy = calls(("fails", {}), *(("works", {"x": str(number)}) for number in range(9)))
    replies = script(*[busy] * 6, calls(("pay", {"amount": 1})), busy, says("never"))
    agent = bearing(6, max_tool_calls=100)
    async with harness.worker(agent, scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": {"deadline_seconds": 3_600}})
        approval = await pending_approval(run)
        waiting = await state_of(run)
        chain = await histories(harness.client, run.id)
        await decide(run, "denied")
        error, partial = await failure_of(run)
    assert len(chain) > 1
    first = chain[0].events[0].event_time.ToDatetime(UTC)
    assert abs(approval.expires_at - (first + timedelta(hours=1))) < timedelta(seconds=1)
    assert waiting.limits["deadline_seconds"].max == 3_600
    last = chain[-1].events[0].event_time.ToDatetime(UTC)
    assert waiting.limits["deadline_seconds"].used >= (last - first).total_seconds()
    assert (waiting.limits["rounds"].used, waiting.limits["tool_calls"].used) == (7, 61)
    assert error.message.startswith("fails has failed 7 times")
    assert partial.rounds == 8
    await harness.check_histories()


async def test_r20_a_budget_stops_before_the_call_that_would_pass_it(harness: Harness) -> None:
    spent = {"usage": {"input_tokens": 300, "output_tokens": 100}}
    replies = script(*({**calls(("works", {})), **spent} for _ in range(9)))
    agent = scripted_agent(works).model_copy(update={"context": ContextBudget(reserved_output=100)})
    async with harness.worker(agent, scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": {"max_total_tokens": 1_000}})
        error, partial = await failure_of(run)
    assert error.type == "TokenBudgetExceeded"
    assert (partial.usage.total_tokens, partial.rounds) == (800, 2)


@pytest.mark.parametrize("deadline", ["2020-01-01T00:00:00", "2020-01-01T00:00:00+02:00", "0001-01-01T00:00:00Z"])
async def test_a_deadline_that_has_passed_asks_no_model(harness: Harness, deadline: str) -> None:
    async with harness.worker(scripted_agent(works), scripts={"main": script(says("never"))}):
        run = await harness.start({**PROMPT, "context": {"deadline": deadline}})
        error, partial = await failure_of(run)
        state = await state_of(run)
        types = await event_types(run)
    assert (error.type, state.status, partial.status) == ("DeadlineExceeded", "timed_out", "timed_out")
    assert types == ["run_started", "run_timed_out"]
    # There was no model to say or call anything.
    assert (partial.text, partial.tool_results, partial.usage.total_tokens) == ("", (), 0)


async def test_an_earlier_deadline_of_the_caller_is_the_runs(harness: Harness) -> None:
    """Whichever comes first; a later one widens nothing."""
    soon, late = datetime.now(UTC) + timedelta(minutes=10), datetime.now(UTC) + timedelta(days=400)
    async with harness.worker(scripted_agent(pay), scripts={"main": script(calls(("pay", {"amount": 1})))}):
        approvals = []
        for deadline in (soon, late):
            run = await harness.start(
                {**PROMPT, "context": {"deadline": deadline.isoformat()}, "options": {"deadline_seconds": 3_600}}
            )
            approvals.append(await pending_approval(run))
            await run.cancel()
    assert approvals[0].expires_at == soon
    assert approvals[1].expires_at < datetime.now(UTC) + timedelta(seconds=3_601)
