"""What runs can be found by: registered at the start, listed, and never a reason not to start."""

import asyncio
import logging
import uuid

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from contracts.search_attributes import ALL
from runtime.converter import data_converter
from runtime.dev_server import DevServer
from runtime.search_attributes import register
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, says, script
from tests.support.waiting import PATIENCE_SECONDS, eventually

NAMES = frozenset(key.name for key in ALL)


async def client_of(server: DevServer, namespace: str) -> Client:
    return await Client.connect(server.address, namespace=namespace, data_converter=data_converter)


async def new_namespace(server: DevServer) -> Client:
    """A client of a namespace that is as good as new, once the server knows it everywhere."""
    name = f"found-{uuid.uuid4().hex[:8]}"
    retention = Duration(seconds=86_400)
    request = RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=retention)
    await server.client.workflow_service.register_namespace(request)
    client = await client_of(server, name)

    async def known() -> Client | None:
        try:
            await client.count_workflows()
        except RPCError:
            return None
        return client

    return await eventually(known)


def test_the_names_and_types_are_those_of_the_protocol() -> None:
    assert {key.name: key.indexed_value_type.name for key in ALL} == {
        "AgentName": "KEYWORD",
        "AgentStatus": "KEYWORD",
        "AgentTenant": "KEYWORD",
        "AgentSubject": "KEYWORD",
        "AgentTool": "KEYWORD_LIST",
        "AgentPendingApprovals": "INT",
        "AgentRounds": "INT",
        "AgentCostUsd": "DOUBLE",
        "AgentNeedsOperator": "BOOL",
    }


async def test_they_are_registered_once_and_only_in_the_clients_namespace(
    server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="steadyhand")
    mine, other = await new_namespace(server), await new_namespace(server)
    assert await register(mine) == NAMES
    assert await register(mine) == NAMES
    with pytest.raises(RPCError, match="AgentName"):
        await other.count_workflows("AgentName = 'buyer'")
    assert caplog.text == ""


async def test_workers_that_start_together_do_not_disturb_each_other(server: DevServer) -> None:
    client = await new_namespace(server)
    assert await asyncio.gather(*(register(client) for _ in range(8))) == [NAMES] * 8


async def test_one_that_is_there_with_another_type_is_told_and_not_used(
    server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = await new_namespace(server)
    taken = {
        "AgentRounds": IndexedValueType.INDEXED_VALUE_TYPE_BOOL,
        "ShopOrder": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    }
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace=client.namespace, search_attributes=taken)
    )
    assert await register(client) == NAMES - {"AgentRounds"}
    (record,) = caplog.records
    assert record.getMessage() == (
        f"search attributes of namespace '{client.namespace}' are there with another type: AgentRounds: runs go "
        "without them"
    )


async def test_runs_of_a_namespace_that_lacks_one_go_without_it_and_no_task_of_theirs_fails(server: DevServer) -> None:
    """Setting one that the namespace lacks would fail the workflow task again and again."""
    client = await new_namespace(server)
    taken = {"AgentRounds": IndexedValueType.INDEXED_VALUE_TYPE_BOOL}
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace=client.namespace, search_attributes=taken)
    )
    harness = Harness(client)
    async with harness.worker(scripted_agent(), scripts={"main": script(says("Done."))}):
        run = await harness.start(PROMPT)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await run.result()).text == "Done."
    shown = {pair.key.name: pair.value for pair in (await run.describe()).typed_search_attributes}
    assert shown["AgentStatus"] == "completed"
    assert "AgentRounds" not in shown
    await harness.check_histories()


async def test_a_namespace_without_room_keeps_what_it_has(server: DevServer, caplog: pytest.LogCaptureFixture) -> None:
    """At most ten of one type fit into a namespace of the embedded server."""
    client = await new_namespace(server)
    others = {f"Other{number}": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD for number in range(9)}
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace=client.namespace, search_attributes=others)
    )
    assert await register(client) == frozenset()
    (record,) = caplog.records
    assert "could not be registered (" in record.getMessage()


async def test_a_server_that_does_not_let_us_is_told_once_and_is_no_error(
    server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = await client_of(server, "nowhere")
    assert await register(client) == frozenset()
    (record,) = caplog.records
    assert "cannot be listed (NOT_FOUND: " in record.getMessage()
