"""Where runs are played one after the other: a task queue and a world of their own, and a worker that comes back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.chaos.servers import MortalServer
from tests.chaos.world import World
from tests.support.harness import Harness
from tests.support.waiting import eventually
from tests.support.worker_process import WorkerProcess, worker_process

APP = "tests.chaos.app"
KILLED = -9
# On a machine that does much else.
STARTS_WITHIN_SECONDS = 120.0


class Lane:
    """One task queue, served for as long as `served` is open."""

    def __init__(self, server: MortalServer, world: Path) -> None:
        self.server = server
        self.world = World(str(world))
        self.harness = Harness(server.client)
        self._worker: WorkerProcess | None = None

    @asynccontextmanager
    async def served(self) -> AsyncIterator["Lane"]:
        """A worker process serves the queue; whenever it was killed, another one is started."""
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(self._keep())
            yield self
            keeping.cancel()

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[WorkerProcess]:
        """A worker process for this queue, until the block ends."""
        environment = {"CHAOS_WORLD": self.world.path}
        async with worker_process(APP, self.harness.task_queue, self.server.address, environment) as worker:
            yield worker

    async def kill_worker(self) -> None:
        """Kill the worker that serves, now or as soon as there is one."""
        worker = await eventually(self._serving, STARTS_WITHIN_SECONDS)
        self._worker = None
        await worker.kill()

    async def _serving(self) -> WorkerProcess | None:
        return self._worker

    async def _keep(self) -> None:
        while True:
            async with self.worker() as worker:
                self._worker = worker
                ended_with = await worker.gone()
                self._worker = None
            assert ended_with == KILLED, f"a worker ended with {ended_with}, and nobody had killed it"
