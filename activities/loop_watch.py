"""Names the coroutine that blocks the event loop: one blocking call in an async tool stops every run of the worker."""

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("steadyhand.loop")

BLOCKED_AFTER_SECONDS = 1.0


@contextmanager
def watched_loop(blocked_after: float = BLOCKED_AFTER_SECONDS) -> Iterator[None]:
    """Watch the running loop from a thread, and log where it is once it has not turned for so many seconds."""
    loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            turned = threading.Event()
            try:
                loop.call_soon_threadsafe(turned.set)
            except RuntimeError:
                return  # The loop has closed.
            if not turned.wait(blocked_after) and not over.is_set():
                log.warning("the event loop is blocked by %s", _place(thread_id))
                turned.wait()
            over.wait(blocked_after / 2)

    watcher = threading.Thread(target=watch, name="loop-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()


def _place(thread_id: int) -> str:
    """The innermost frames of the loop's thread, nearest first, without asyncio's own."""
    frame = sys._current_frames().get(thread_id)
    stack = [entry for entry in traceback.extract_stack(frame) if "/asyncio/" not in entry.filename]
    return " < ".join(f"{entry.name} ({entry.filename}:{entry.lineno})" for entry in reversed(stack[-4:]))
