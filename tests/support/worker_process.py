"""Workers as processes of their own: `python worker.py`, and killed as machines kill them.

They are forked from a process that has made the imports, which are nine tenths of a start. All else is their own: the
arguments, the environment, the output, and the end.
"""

import asyncio
import multiprocessing
import os
import re
import runpy
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess

from tests.support.harness import CHECKOUT
from tests.support.waiting import eventually

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["worker"])

_PROGRAM = str(CHECKOUT / "worker.py")
_ENDS_WITHIN_SECONDS = 60
# What a worker reads, and whoever runs the tests may have set.
_SETTINGS = re.compile(r"(TEMPORAL|STEADYHAND|OPENAI|ANTHROPIC|OPENROUTER)_.*|.*_BASE_URL|PYTHONPATH")


class WorkerProcess:
    """A running `worker.py`."""

    def __init__(self, process: ForkServerProcess, stderr: Path) -> None:
        self._stderr = stderr
        self._process = process
        self._ended = asyncio.ensure_future(asyncio.to_thread(process.join))

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        await self.gone()

    async def terminate(self) -> int:
        """SIGTERM, and wait until it is gone; its return code."""
        self._process.terminate()
        return await self.gone()

    async def gone(self) -> int:
        """Wait until the process has ended, by whatever cause; its return code."""
        # Two that wait are answered by one wait: what ended it can be read once.
        await asyncio.shield(self._ended)
        assert self._process.exitcode is not None
        return self._process.exitcode

    def log(self) -> str:
        """What it has written to stderr."""
        return self._stderr.read_text()


@asynccontextmanager
async def worker_process(
    app: str, task_queue: str, address: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[WorkerProcess]:
    """`python worker.py --app <app>` until the block ends, serving as soon as it begins."""
    variables = {"TEMPORAL_ADDRESS": address, **(environment or {})}
    with tempfile.TemporaryDirectory() as kept:
        stdout, stderr = Path(kept) / "stdout", Path(kept) / "stderr"
        process = _start(("--app", app, "--task-queue", task_queue), variables, stdout, stderr)
        worker = WorkerProcess(process, stderr)

        async def serves() -> bool:
            assert process.is_alive(), f"the worker ended before it served: {stderr.read_text()}"
            return stdout.stat().st_size > 0

        try:
            await eventually(serves)
            yield worker
        finally:
            await worker.kill()


def ended_worker(*arguments: str, environment: Mapping[str, str]) -> CompletedProcess[str]:
    """`python worker.py` with these arguments and variables, once it has ended by itself."""
    with tempfile.TemporaryDirectory() as kept:
        stdout, stderr = Path(kept) / "stdout", Path(kept) / "stderr"
        process = _start(arguments, environment, stdout, stderr)
        process.join(_ENDS_WITHIN_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode is not None
        return CompletedProcess([_PROGRAM, *arguments], process.exitcode, stdout.read_text(), stderr.read_text())


def _start(arguments: Sequence[str], environment: Mapping[str, str], stdout: Path, stderr: Path) -> ForkServerProcess:
    own = {name: value for name, value in os.environ.items() if not _SETTINGS.fullmatch(name)}
    stdout.touch()
    process = FORKED.Process(target=_run, args=(arguments, {**own, **environment}, stdout, stderr))
    process.start()
    return process


def _run(arguments: Sequence[str], variables: Mapping[str, str], stdout: Path, stderr: Path) -> None:
    for path, descriptor in ((stdout, 1), (stderr, 2)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), descriptor)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(CHECKOUT)
    sys.path[:0] = [str(CHECKOUT), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [_PROGRAM, *arguments]
    runpy.run_path(_PROGRAM, run_name="__main__")
