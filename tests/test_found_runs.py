"""Runs are found by what they do, wait for and cost."""

import uuid

from temporalio.common import SearchAttributeKey

from activities.tooling import tool
from contracts.models import Price
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, failure_of, pending_approval, says, script
from tests.support.waiting import eventually


@tool(side_effect="write", approval="always")
def pay(amount: int) -> str:
    """Pay."""
    if amount > 100:
        raise OSError("nobody saw how this ended")
    return f"paid {amount}"


async def test_a_run_is_found_by_what_it_does_and_costs(harness: Harness) -> None:
    replies = script(
        {**calls(("pay", {"amount": 5})), "usage": {"input_tokens": 500_000}},
        {**says("Done."), "usage": {"input_tokens": 250_000}},
    )
    agent = scripted_agent(pay).model_copy(update={"prices": {"scripted:main": Price(input=2.0, output=1.0)}})
    tenant = f"acme-{uuid.uuid4().hex[:8]}"

    async def found(query: str) -> bool | None:
        counted = await harness.client.count_workflows(f"AgentTenant = '{tenant}' AND {query}")
        return counted.count == 1 or None

    async with harness.worker(agent, scripts={"main": replies}):
        run = await harness.start({**PROMPT, "context": {"tenant_id": tenant}})
        approval = await pending_approval(run)
        waiting = "AgentStatus = 'waiting_for_approval' AND AgentTool = 'pay' AND AgentPendingApprovals = 1"
        assert await eventually(lambda: found(f"{waiting} AND AgentCostUsd = 1.0"))
        await run.signal(
            "resolve_approval", {"approval_id": approval.approval_id, "resolution": "approved", "by": "ann"}
        )
        await run.result()
        done = "AgentName = 'tester' AND AgentStatus = 'completed' AND AgentRounds = 1 AND AgentPendingApprovals = 0"
        assert await eventually(lambda: found(f"{done} AND AgentCostUsd = 1.5 AND AgentNeedsOperator = false"))


async def test_a_run_with_an_unknown_effect_needs_an_operator(harness: Harness) -> None:
    replies = script(calls(("pay", {"amount": 500})), says("Nobody knows."))
    async with harness.worker(scripted_agent(pay), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        approval = await pending_approval(run)
        await run.execute_update("decide", {"approval_id": approval.approval_id, "resolution": "approved", "by": "ann"})
        result = await run.result()
        described = await run.describe()
    assert [effect.state for effect in result.effects] == ["unknown"]
    assert described.typed_search_attributes.get(SearchAttributeKey.for_bool("AgentNeedsOperator")) is True


async def test_a_failed_run_is_found_as_failed(harness: Harness) -> None:
    async with harness.worker(scripted_agent(), scripts={"main": script({"text": ""})}):
        run = await harness.start(PROMPT)
        await failure_of(run)
        described = await run.describe()
    assert described.typed_search_attributes.get(SearchAttributeKey.for_keyword("AgentStatus")) == "failed"
