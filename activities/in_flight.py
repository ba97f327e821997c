"""Tool bodies that run: a bounded number of threads for plain functions, and a name for whatever does not stop."""

import asyncio
import contextvars
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

log = logging.getLogger("steadyhand.tools")

# Threads for tools that are plain functions, and how long a call waits for one that is free.
TOOL_THREADS = 32
PATIENCE_SECONDS = 2.0
# A coroutine that was asked to stop gets this long before it is named.
GRACE_SECONDS = 1.0


class CapacityExhausted(Exception):
    """No thread became free in time. Nothing was run."""


class GivenUp(Exception):
    """A body took too long. It may still run; its late result is discarded."""


@dataclass(frozen=True)
class Raised:
    """What a body ended with instead of a value."""

    error: BaseException


class Body:
    """A tool's body while it runs. A coroutine can be stopped, a thread cannot."""

    def __init__(self, future: asyncio.Future[object], stoppable: bool) -> None:
        self.future = future
        self._stoppable = stoppable

    def stop(self) -> None:
        """Ask it to stop, where that is possible."""
        if self._stoppable:
            self.future.cancel()


class InFlight:
    """The bodies of one worker's tools. A body that outlives its attempt keeps its thread, is counted and named.

    Raises ValueError for less than one thread: no call could ever run.
    """

    def __init__(self, threads: int = TOOL_THREADS, patience: float = PATIENCE_SECONDS) -> None:
        if threads < 1:
            raise ValueError(f"tools need at least one thread, not {threads}")
        self._free = asyncio.Semaphore(threads)
        self._patience = patience
        self._stuck: Counter[str] = Counter()
        # A task that nobody refers to may be collected while it runs.
        self._abandoned: set[asyncio.Future[object]] = set()

    @property
    def stuck(self) -> dict[str, int]:
        """How many bodies of which tool still run though their attempts are over."""
        return {name: count for name, count in self._stuck.items() if count}

    async def begin(self, call: Callable[[], object], in_thread: bool) -> Body:
        """Start a call, in a thread of its own or here. What it raises is its result, as `Raised`: a thread's
        StopIteration or SystemExit would otherwise never arrive, or end the worker. Raises `CapacityExhausted`, or
        CancelledError while it still waits for a thread: then nothing was run."""
        if not in_thread:
            return Body(asyncio.ensure_future(_awaited(call)), stoppable=True)
        try:
            async with asyncio.timeout(self._patience):
                await self._free.acquire()
        except TimeoutError:
            raise CapacityExhausted from None
        future = asyncio.get_running_loop().create_future()
        # The thread is free when the function has returned, not when somebody stopped waiting for it.
        future.add_done_callback(lambda _: self._free.release())
        context = contextvars.copy_context()
        # Not from a pool: the interpreter waits at its end for a pool's threads, and one that is stuck would keep a
        # worker from ever stopping.
        threading.Thread(target=context.run, args=(_run, call, future), name="tool", daemon=True).start()
        return Body(future, stoppable=False)

    async def run(self, name: str, function: Callable[..., object], argument: object, seconds: float) -> object:
        """Call a function where it belongs: a coroutine function here, a plain one in a thread. Raises what it raises,
        `CapacityExhausted`, or `GivenUp` when it takes longer than this."""
        body = await self.begin(partial(function, argument), in_thread=not inspect.iscoroutinefunction(function))
        try:
            ended, _ = await asyncio.wait({body.future}, timeout=seconds)
        finally:
            if not body.future.done():
                self.abandon(name, body)
        if not ended:
            raise GivenUp(f"no result within {seconds:g} s")
        result = body.future.result()
        if isinstance(result, Raised):
            raise result.error
        return result

    def abandon(self, tool: str, body: Body) -> None:
        """The attempt is over; its body may go on, and its late result is discarded."""
        body.stop()
        if body.future.done():
            _retrieve(body.future)
            return
        self._stuck[tool] += 1
        self._abandoned.add(body.future)
        body.future.add_done_callback(lambda future: self._stopped(tool, future))
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self._name, tool, body)

    def _name(self, tool: str, body: Body) -> None:
        if not body.future.done():
            log.warning("tool %s does not stop: %d of its calls run on after their attempts", tool, self._stuck[tool])

    def _stopped(self, tool: str, future: asyncio.Future[object]) -> None:
        self._stuck[tool] -= 1
        self._abandoned.discard(future)
        _retrieve(future)


def is_cancellation(error: BaseException) -> bool:
    """Whether this is a cancellation of the task that sees it. Other people's code may raise CancelledError by itself,
    and that is an exception like any other."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _run(call: Callable[[], object], future: asyncio.Future[object]) -> None:
    """Make the call in this thread and hand what it came to over to the future's loop."""
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - see `begin`
        result = Raised(error)
    # Nobody is told once the loop has closed: the worker has stopped.
    with suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(future.set_result, result)


async def _awaited(call: Callable[[], object]) -> object:
    try:
        result = call()
        return await result if isinstance(result, Awaitable) else result
    except BaseException as error:
        if is_cancellation(error):
            raise
        # See `begin`.
        return Raised(error)


def _retrieve(future: asyncio.Future[object]) -> None:
    """Look at the result, so that asyncio does not complain that nobody did."""
    if not future.cancelled():
        future.exception()
