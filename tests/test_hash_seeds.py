"""R-x07. Python orders a set differently in each process: a replay in another one must not notice."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from contracts.search_attributes import AGENT_PENDING_APPROVALS
from runtime.dev_server import DevServer
from tests.apps.uncached import NAMES
from tests.support.harness import CHECKOUT, Handle, Harness, pending_approval
from tests.support.waiting import eventually

APP = "tests.apps.uncached"
RUNS = 2


@asynccontextmanager
async def worker_with_seed(seed: str, harness: Harness, server: DevServer) -> AsyncIterator[None]:
    """Python takes the seed when it starts."""
    environment = {**os.environ, "TEMPORAL_ADDRESS": server.address, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-m", APP, harness.task_queue]
    process = await asyncio.create_subprocess_exec(*command, cwd=CHECKOUT, env=environment, stdout=PIPE)
    assert process.stdout is not None
    try:
        assert await process.stdout.readline()
        yield
    finally:
        process.kill()
        await process.communicate()


async def waits_for_consent(run: Handle) -> bool:
    """As the server shows it: a query would have the worker replay the run each time."""
    return (await run.describe()).typed_search_attributes.get(AGENT_PENDING_APPROVALS) == 1


async def approve(run: Handle) -> None:
    request = await pending_approval(run)
    await run.signal("resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"})


@pytest.mark.long
async def test_eight_calls_a_round_are_replayed_by_workers_that_order_sets_differently(
    harness: Harness, server: DevServer
) -> None:
    """Two real processes, neither of which keeps a run in memory: the second replays what the first began. The harness
    replays all of it once more, in a third order."""
    runs = [await harness.start({"agent": "looker", "prompt": "Look."}) for _ in range(RUNS)]
    async with worker_with_seed("1", harness, server):
        for run in runs:
            await eventually(partial(waits_for_consent, run))
    async with worker_with_seed("2", harness, server):
        for run in runs:
            await approve(run)
        results = await asyncio.gather(*(run.result() for run in runs))
    in_call_order = sorted(NAMES, reverse=True)
    for result in results:
        read = [record.text for record in result.tool_results if record.tool != "ask"]
        assert read == in_call_order
        assert [record.call_id for record in result.tool_results] == [f"call_{number}" for number in range(1, 10)]
