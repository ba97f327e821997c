"""What runs can be found by: registered at the start, listed, and never a reason not to start."""

import asyncio
import logging
import uuid
from datetime import timedelta
from functools import partial

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from contracts.search_attributes import ALL
from runtime.converter import data_converter
from runtime.dev_server import DevServer
from runtime.search_attributes import existing, register
from runtime.serving import sandboxed_runner
from tests.apps.found_workflow import Found
from tests.support.waiting import eventually

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


async def counted(client: Client, query: str) -> int | None:
    """How many runs are found; None for none."""
    return (await client.count_workflows(query)).count or None


def test_the_names_and_types_are_those_of_the_protocol() -> None:
    assert {key.name: key.indexed_value_type.name for key in ALL} == {
        "AgentName": "KEYWORD",
        "AgentStatus": "KEYWORD",
        "AgentTenant": "KEYWORD",
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
    assert await existing(mine) == frozenset()
    assert await register(mine) == NAMES
    assert await existing(mine) == NAMES
    assert await register(mine) == NAMES
    assert await existing(other) == frozenset()
    assert caplog.text == ""


async def test_workers_that_start_together_do_not_disturb_each_other(server: DevServer) -> None:
    client = await new_namespace(server)
    assert await asyncio.gather(*(register(client) for _ in range(8))) == [NAMES] * 8


async def test_runs_are_found_by_what_the_workflow_has_set(server: DevServer) -> None:
    client = await new_namespace(server)
    await register(client)
    async with Worker(client, task_queue="found", workflows=[Found], workflow_runner=sandboxed_runner()):
        run = await client.start_workflow("Found", id="found", task_queue="found", run_timeout=timedelta(seconds=30))
        await run.result()
    for wanted in (
        "AgentName = 'refund_desk' AND AgentStatus = 'waiting_for_approval' AND AgentTenant = 'acme'",
        "AgentTool = 'refund_order' AND AgentTool = 'find_order'",
        "AgentPendingApprovals > 1 AND AgentRounds = 3",
        "AgentCostUsd > 0.2 AND AgentCostUsd < 0.3 AND AgentNeedsOperator = true",
    ):
        await eventually(partial(counted, client, wanted))
    assert (await client.count_workflows("AgentTool = 'order_item'")).count == 0


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
    assert await existing(client) == frozenset()
    assert await register(client) == NAMES - {"AgentRounds"}
    (record,) = caplog.records
    assert record.getMessage() == (
        f"search attributes of namespace '{client.namespace}' are there with another type: AgentRounds: runs go "
        "without them"
    )


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
    assert await existing(client) == frozenset()
    (record,) = caplog.records
    assert record.getMessage().startswith("search attributes of namespace 'nowhere' cannot be listed (NOT_FOUND: ")
    caplog.clear()
    assert await register(client) == frozenset()
    (record,) = caplog.records
    assert "cannot be listed (NOT_FOUND: " in record.getMessage()
