"""Runs are found by what they do, wait for and cost."""

import uuid

import pytest
from temporalio.common import SearchAttributeKey

from activities.tooling import Tool, tool
from contracts.approvals import ApprovalRequest
from contracts.models import Price
from contracts.search_attributes import AGENT_SUBJECT, AGENT_TENANT, AGENT_TOOL
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, calls, failure_of, pending_approval, says, script, state_of
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


def _asking(number: int) -> Tool:
    def ask() -> str:
        """Ask."""
        return "asked"

    ask.__name__ = f"{number:02}_{'a' * 61}"
    return tool(side_effect="write", approval="always")(ask)


async def test_more_tools_than_one_value_holds_do_not_stop_a_run(harness: Harness) -> None:
    tools = [_asking(number) for number in range(50)]
    replies = script(calls(*((each.name, {}) for each in tools)), says("Done."))
    async with harness.worker(scripted_agent(*tools), scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": {"max_tool_calls": 50}})
        approvals = await eventually(lambda: all_pending(run, 50))
        shown = (await run.describe()).typed_search_attributes.get(AGENT_TOOL)
        for approval in approvals:
            decision = {"approval_id": approval.approval_id, "resolution": "denied", "by": "ann"}
            await run.signal("resolve_approval", decision)
        assert (await run.result()).text == "Done."
    assert shown is not None
    assert shown == [each.name for each in tools[: len(shown)]]
    assert 20 < len(shown) < 50


async def all_pending(run: Handle, count: int) -> tuple[ApprovalRequest, ...] | None:
    pending = (await state_of(run)).pending_approvals
    return pending if len(pending) == count else None


@pytest.mark.parametrize("name", ["a\0b", "\x01" * 300, "\u202e" * 300, "\U0001f600" * 100])
async def test_no_tenant_and_no_subject_stops_a_run(harness: Harness, name: str) -> None:
    async with harness.worker(scripted_agent(), scripts={"main": script(says("Done."))}):
        run = await harness.start({**PROMPT, "context": {"tenant_id": name, "user_id": name}})
        await run.result()
        found = (await run.describe()).typed_search_attributes
    for shown in (found.get(AGENT_TENANT), found.get(AGENT_SUBJECT)):
        assert shown is not None
        assert len(shown.encode()) <= 255
        assert name.replace("\0", "\ufffd").startswith(shown)


@pytest.mark.parametrize(
    ("context", "subject"),
    [
        ({"user_id": "ann", "agent_id": "bot", "application_id": "desk"}, "ann"),
        ({"user_id": "", "agent_id": "bot", "application_id": "desk"}, "bot"),
        ({"application_id": "desk"}, "desk"),
        ({"tenant_id": "", "run_id": "job-7"}, "job-7"),
        ({}, "its workflow id"),
    ],
)
async def test_a_run_is_found_by_who_acts(harness: Harness, context: dict[str, str], subject: str) -> None:
    async with harness.worker(scripted_agent(), scripts={"main": script(says("Done."))}):
        run = await harness.start({**PROMPT, "context": context})
        await run.result()
        found = (await run.describe()).typed_search_attributes
    assert found.get(AGENT_SUBJECT) == (subject if context else run.id)
    assert found.get(AGENT_TENANT) is None
