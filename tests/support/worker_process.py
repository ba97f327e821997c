"""Workers as processes of their own: started as a user starts them, and killed as machines kill them."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from tests.support.harness import CHECKOUT


class WorkerProcess:
    """A running `worker.py`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.send_signal(signal.SIGKILL)
        await self.gone()

    async def terminate(self) -> int:
        """SIGTERM, and wait until it is gone; its return code."""
        self._process.send_signal(signal.SIGTERM)
        return await self.gone()

    async def gone(self) -> int:
        """Wait until the process has ended, by whatever cause; its return code."""
        return await self._process.wait()


@asynccontextmanager
async def worker_process(
    app: str,
    task_queue: str,
    address: str,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = ("worker.py",),
) -> AsyncIterator[WorkerProcess]:
    """`python worker.py --app <app>`, or another program, until the block ends, serving as soon as it begins."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        "--app",
        app,
        "--task-queue",
        task_queue,
        cwd=CHECKOUT,
        env={**os.environ, "TEMPORAL_ADDRESS": address, **(environment or {})},
        stdout=PIPE,
        stderr=DEVNULL,
    )
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        assert line, f"the worker ended with {await process.wait()} before it served"
        yield WorkerProcess(process)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.communicate()
