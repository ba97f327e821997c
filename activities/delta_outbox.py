"""The way of one attempt's events to a sink: numbered, in order, within bounds, and never at the run's expense."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from activities.delta_sinks import DeltaSink
from activities.in_flight import InFlight
from contracts.deltas import DeltaEvent

log = logging.getLogger("steadyhand.deltas")

# Several of a kind say no less as one.
_MERGEABLE = frozenset(
    {
        "model_content_delta",
        "model_reasoning_delta",
        "model_reasoning_completed",
        "model_refusal_delta",
        "tool_call_building",
    }
)


class Outbox:
    """Lives for one attempt. `attempt` names it in the log, where a sink is given up in one line."""

    def __init__(self, sink: DeltaSink, attempt: str) -> None:
        self._sink = sink
        self._rule = sink.delivery
        self._attempt = attempt
        self._waiting: list[DeltaEvent] = []
        self._numbered = 0
        self._patience = self._rule.patience_seconds
        self._moved = asyncio.Event()
        self._delivering = self._ending = self._over = False
        self._task: asyncio.Task[None] | None = None

    async def put(self, event: DeltaEvent) -> None:
        """Hand an event over; its sequence is given on the way. Waits for room where the sink's `Delivery` says so."""
        if self._over or (self._rule.when_full == "merge" and self._merge(event)):
            return
        await self._wait(lambda: len(self._waiting) < self._rule.queue_limit)
        if not self._over:
            self._waiting.append(event)
            self._task = self._task or asyncio.create_task(self._deliver())
            self._moved.set()

    async def end(self) -> None:
        """Returns when the sink has taken everything, or when patience is at an end."""
        self._ending = True
        self._moved.set()
        await self._wait(lambda: not self._waiting and not self._delivering)

    def stop(self) -> None:
        """From now on the sink is not called any more."""
        self._over = True
        self._waiting.clear()
        self._moved.set()
        if self._task is not None:
            self._task.cancel()

    async def _deliver(self) -> None:
        in_flight = InFlight()
        try:
            while True:
                await self._until(lambda: bool(self._waiting))
                if self._rule.gather_seconds:
                    await self._gather()
                batch = self._take()
                self._delivering = True
                await in_flight.run("delta sink", self._sink.publish, batch, self._rule.patience_seconds)
                self._delivering = False
                self._moved.set()
        # A sink is somebody else's code, and may raise even what asyncio or the interpreter would obey.
        except (Exception, asyncio.CancelledError, SystemExit) as error:  # noqa: BLE001
            self._give_up(error)

    async def _gather(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rule.gather_seconds):
                await self._until(lambda: self._ending or len(self._waiting) >= self._rule.batch_limit)

    def _take(self) -> Sequence[DeltaEvent]:
        batch = self._waiting[: self._rule.batch_limit]
        del self._waiting[: len(batch)]
        self._moved.set()
        # Numbered only now: what was merged before leaves no gap.
        first = self._numbered + 1
        self._numbered += len(batch)
        return [event.model_copy(update={"sequence": number}) for number, event in enumerate(batch, start=first)]

    def _merge(self, event: DeltaEvent) -> bool:
        """Add a piece to one that waits: the last one, or, when there is no room, any of its kind. The order of
        different parts of a reply matters less than that none is lost."""
        if event.type not in _MERGEABLE:
            return False
        oldest = 0 if len(self._waiting) >= self._rule.queue_limit else max(0, len(self._waiting) - 1)
        for index in range(len(self._waiting) - 1, oldest - 1, -1):
            held = self._waiting[index]
            if (held.type, held.call) == (event.type, event.call):
                both = {"text": held.text + event.text, "tool": event.tool or held.tool}
                self._waiting[index] = held.model_copy(update=both)
                return True
        return False

    async def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait for the sink, as long as there is patience left."""
        if self._over or condition():
            return
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._patience):
                await self._until(lambda: self._over or condition())
        except TimeoutError as error:
            self._give_up(error)
        finally:
            self._patience -= clock() - began

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._moved.clear()
            await self._moved.wait()

    def _give_up(self, error: BaseException) -> None:
        # One publish and the wait for it may run out of patience at the same moment.
        if self._over:
            return
        # The class only: the text may hold what the model said, or an address with a token.
        log.warning("deltas of %s are given up: %s", self._attempt, type(error).__name__)
        self.stop()
