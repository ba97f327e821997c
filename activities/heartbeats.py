"""Beats for an activity while its work lives, so that a dead worker and a cancellation are noticed in seconds."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from temporalio import activity

# Beats per heartbeat timeout: one may get lost, and the SDK itself sends at most one in 0.8 of the timeout.
BEATS_PER_TIMEOUT = 4
# The answer to a beat is what brings a cancellation, so that no work goes on much longer than this after one.
MAX_INTERVAL_SECONDS = 1.0


@asynccontextmanager
async def beating(details: Callable[[], Sequence[object]] = tuple) -> AsyncIterator[None]:
    """Heartbeat in the background until the block ends; the beat cannot outlive the work.

    `details` is asked for what each beat carries.
    """
    timeout = activity.info().heartbeat_timeout
    if timeout is None:
        yield
        return
    interval = min(MAX_INTERVAL_SECONDS, timeout.total_seconds() / BEATS_PER_TIMEOUT)
    beat = asyncio.create_task(_beat(interval, details))
    try:
        yield
    finally:
        beat.cancel()


async def _beat(interval: float, details: Callable[[], Sequence[object]]) -> None:
    while True:
        activity.heartbeat(*details())
        await asyncio.sleep(interval)
