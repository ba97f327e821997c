"""Waiting for a state, not for a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

# How long a state may take on a busy machine before the test is called broken, and how often it is looked for.
PATIENCE_SECONDS = 60.0
PACE_SECONDS = 0.02


async def eventually(ask: Callable[[], Awaitable[T | None]], patience: float = PATIENCE_SECONDS) -> T:
    """What `ask` answers as soon as it is neither None nor False."""
    async with asyncio.timeout(patience):
        while True:
            answer = await ask()
            if answer is not None and answer is not False:
                return answer
            await asyncio.sleep(PACE_SECONDS)
