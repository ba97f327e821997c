"""The real server, once a session, and a harness for each test."""

import gc
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from temporalio.testing import WorkflowEnvironment

from runtime.converter import data_converter
from runtime.dev_server import DevServer, dev_server, free_ports
from runtime.settings import StartupError
from tests.support.harness import Harness

# How long an example takes says more of the machine than of the code.
settings.register_profile("steadyhand", deadline=None)
settings.load_profile("steadyhand")


def pytest_collection_finish() -> None:
    """What is there by now, thousands of tests, stays to the end: the collector need not go through it again."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@asynccontextmanager
async def on_free_ports(database: Path, **settings: Mapping[str, str]) -> AsyncIterator[DevServer]:
    """A server on ports that were free a moment ago. Somebody else may take one before it does: it is tried again."""
    for attempt in range(1, 6):
        server = dev_server(database, free_ports(), **settings)
        try:
            running = await server.__aenter__()
        except StartupError:
            if attempt == 5:
                raise
            continue
        try:
            yield running
        finally:
            await server.__aexit__(None, None, None)
        return


@pytest.fixture(scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevServer]:
    """A Temporal dev server with a database file, as `worker.py --dev-server` starts it."""
    async with on_free_ports(tmp_path_factory.mktemp("temporal") / "temporal.db") as running:
        yield running


@pytest.fixture
async def harness(server: DevServer) -> AsyncIterator[Harness]:
    """A corner of the server for one test. Afterwards every history it produced is replayed."""
    corner = Harness(server.client)
    yield corner
    await corner.check_histories()


@pytest.fixture(scope="session")
async def impatient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevServer]:
    """A server that suggests to continue as new after 120 events."""
    settings = {"limit.historyCount.suggestContinueAsNew": "120"}
    database = tmp_path_factory.mktemp("impatient") / "temporal.db"
    async with on_free_ports(database, dynamic_config=settings) as running:
        yield running


@pytest.fixture
async def skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A server on which days pass in no time, once nothing is running."""
    server = Path(sys.executable).with_name("temporal-test-server")
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(server), data_converter=data_converter
    ) as environment:
        yield environment
