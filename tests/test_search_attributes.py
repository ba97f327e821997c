"""Runs are found by their state, on a namespace that has the attributes and on one that does not."""

import uuid

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey

from activities.tooling import Tool, tool
from contracts.approvals import ApprovalRequest
from contracts.models import Price
from contracts.search_attributes import AGENT_TENANT, AGENT_TOOL, SEARCH_ATTRIBUTES
from runtime.dev_server import DevServer
from runtime.search_attributes import registered_search_attributes
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, calls, failure_of, pending_approval, says, script, state_of
from tests.support.waiting import eventually

NAMES = frozenset(key.name for key in SEARCH_ATTRIBUTES)


@tool(side_effect="write", approval="always")
def pay(amount: int) -> str:
    """Pay."""
    if amount > 100:
        raise OSError("nobody saw how this ended")
    return f"paid {amount}"


async def in_a_new_namespace(server: DevServer) -> Client:
    name = f"bare-{uuid.uuid4().hex[:8]}"
    retention = Duration(seconds=86_400)
    await server.client.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=retention)
    )

    async def there() -> Client | None:
        client = await Client.connect(
            server.client.service_client.config.target_host,
            namespace=name,
            data_converter=server.client.data_converter,
        )
        # What was just registered is known to all parts of the server a moment later.
        try:
            await client.count_workflows("WorkflowType = 'AgentRun'")
        except Exception:  # noqa: BLE001 - not yet
            return None
        return client

    return await eventually(there)


async def test_what_the_namespace_lacks_is_registered_and_registering_twice_is_fine(server: DevServer) -> None:
    client = await in_a_new_namespace(server)
    assert await registered_search_attributes(client) == NAMES
    assert await registered_search_attributes(client) == NAMES


async def test_an_attribute_of_another_type_is_left_alone_and_not_used(server: DevServer) -> None:
    client = await in_a_new_namespace(server)
    wrong = {"AgentStatus": IndexedValueType.INDEXED_VALUE_TYPE_INT}
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace=client.namespace, search_attributes=wrong)
    )
    assert await registered_search_attributes(client) == NAMES - {"AgentStatus"}
    harness = Harness(client)
    async with harness.worker(scripted_agent(), scripts={"main": script(says("Done."))}):
        run = await harness.start(PROMPT)
        await run.result()
        found = (await run.describe()).typed_search_attributes
    assert found.get(SearchAttributeKey.for_keyword("AgentName")) == "tester"
    assert "AgentStatus" not in {pair.key.name for pair in found}
    await harness.check_histories()


async def test_where_nothing_may_be_registered_runs_go_without(
    server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    config = server.client.service_client.config
    stranger = await Client.connect(config.target_host, namespace="nobody-registered-this")
    assert await registered_search_attributes(stranger) == frozenset()
    assert "temporal operator search-attribute create --name AgentName --type Keyword" in caplog.text


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


@pytest.mark.parametrize("tenant", ["", "a\0b", "\x01" * 300, "\u202e" * 300, "\U0001f600" * 100])
async def test_no_tenant_stops_a_run(harness: Harness, tenant: str) -> None:
    async with harness.worker(scripted_agent(), scripts={"main": script(says("Done."))}):
        run = await harness.start({**PROMPT, "context": {"tenant_id": tenant}})
        await run.result()
        shown = (await run.describe()).typed_search_attributes.get(AGENT_TENANT)
    assert shown is not None
    assert len(shown.encode()) <= 255
    assert tenant.replace("\0", "\ufffd").startswith(shown)
