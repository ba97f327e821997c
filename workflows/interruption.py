"""What stops a run in the middle: it is cancelled, or its time is up."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Literal, TypeVar

from temporalio import workflow

from workflows.shielding import shielded

T = TypeVar("T")

Reason = Literal["cancelled", "timed_out"]


class Interruption:
    """Watches over the run's story. `deadline` is when its time is up, None as long as that is not known.

    A cancellation reaches the awaiting code once, as CancelledError. Where the awaited activity ends at the same
    moment, the SDK returns its result instead: so the story asks, by `check`, before each of its steps.
    """

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self.deadline: datetime | None = None
        self._arrived = False
        self._unconfirmed = False
        self._story: asyncio.Task[Any] | None = None

    @property
    def is_too_late(self) -> bool:
        """Whether the story has ended, or is being stopped already."""
        return self.reason is not None or (self._story is not None and self._story.done())

    def cancel(self) -> None:
        """Stop the story as a cancellation by the server would, which is on its way."""
        self.reason = self.reason or "cancelled"

    def check(self) -> None:
        """Raises CancelledError where the story must not go on."""
        self._notice()
        if self.reason is not None:
            raise asyncio.CancelledError(self.reason)

    async def watch_over(self, story: Coroutine[Any, Any, T]) -> T:
        """What the story comes to. When it is interrupted it is asked to stop, once, and its end is awaited."""
        self._story = task = asyncio.create_task(story)
        while not task.done():
            try:
                await self._news(task)
            except TimeoutError:
                self._notice()
            except asyncio.CancelledError:
                self.arrived()
            if self.reason is not None and not task.done():
                task.cancel()
                await shielded(_ended(task), self.arrived)
        return task.result()

    def arrived(self) -> None:
        """A cancellation has reached the run. It can do so once: what comes after that is the worker forgetting the
        run, and is raised."""
        if self._arrived:
            raise asyncio.CancelledError
        self._arrived = True
        self._notice()
        self.cancel()

    def cannot_be_confirmed(self) -> None:
        """The server could not be asked to cancel the run."""
        self._unconfirmed = True

    async def confirmed(self) -> bool:
        """Wait until the server, too, has cancelled the run, and nothing else is under way: only then can it end as
        Canceled. False where that cannot be."""
        await self._until(lambda: self._unconfirmed or workflow.cancellation_reason() is not None)
        await self.handlers_finished()
        return workflow.cancellation_reason() is not None

    async def handlers_finished(self) -> None:
        """Wait until nothing else is under way. A cancellation comes too late to change how the run ends."""
        await self._until(workflow.all_handlers_finished)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            try:
                await workflow.wait_condition(condition)
            except asyncio.CancelledError:
                self.arrived()

    def _notice(self) -> None:
        if workflow.cancellation_reason() is not None:
            self.cancel()
        elif self.deadline is not None and workflow.now() >= self.deadline:
            self.reason = self.reason or "timed_out"

    async def _news(self, task: asyncio.Task[T]) -> None:
        """Wait until the story has ended or is to end, or its deadline has become known. Raises TimeoutError when that
        has passed."""
        deadline = self.deadline

        def is_news() -> bool:
            return task.done() or self.reason is not None or self.deadline != deadline

        left = None if deadline is None else max(0.0, (deadline - workflow.now()).total_seconds())
        await workflow.wait_condition(is_news, timeout=left, timeout_summary="the run's deadline")


async def _ended(task: asyncio.Task[T]) -> None:
    await workflow.wait([task])
