"""Work that a cancellation must not stop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def shielded(work: Coroutine[Any, Any, T], on_cancelled: Callable[[], None]) -> T:
    """What the work comes to. A cancellation meanwhile is told to `on_cancelled`, and is then its caller's to act on;
    one that ended the work itself passes, as it does where a worker forgets the run."""
    task = asyncio.create_task(work)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                raise
            on_cancelled()
