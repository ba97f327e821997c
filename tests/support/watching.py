"""Runs whose replies are streamed by a `ModelServer` while somebody watches."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pydantic import JsonValue
from temporalio.worker import Worker

from activities.catalog import Catalog
from activities.delta_sinks import DeltaSink
from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from contracts.deltas import DeltaEvent, DeltaView
from contracts.tools import ToolContract
from runtime.serving import agent_worker
from tests.providers.model_server import EVENT_STREAM, ModelServer, Streamed, server_sent
from tests.support.agents import scripted_agent
from tests.support.harness import Harness
from tests.support.loopback import loopback_client
from tests.support.waiting import PATIENCE_SECONDS

KEY = "sk-TEST-TOKEN-9"


def chunk(delta: JsonValue, finish_reason: str | None = None) -> JsonValue:
    """A chunk of Chat Completions."""
    choice: JsonValue = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}


def says(text: str) -> JsonValue:
    """A chunk with a piece of the text."""
    return chunk({"content": text})


def calls(name: str | None, arguments: str, index: int = 0) -> JsonValue:
    """A chunk with a piece of a tool call; its name comes with the first one."""
    function: dict[str, JsonValue] = {"arguments": arguments}
    piece: dict[str, JsonValue] = {"index": index, "function": function}
    if name is not None:
        function["name"] = name
        piece |= {"id": f"api-{index}", "type": "function"}
    return chunk({"tool_calls": [piece]})


def answer(*chunks: JsonValue, finish_reason: str = "stop") -> Streamed:
    """A reply that ends as it should."""
    return Streamed.of_events(*chunks, chunk({}, finish_reason), "[DONE]")


def broken_off(*chunks: JsonValue) -> Streamed:
    """A reply whose connection is lost."""
    return Streamed.of_events(*chunks, cut=True)


def in_parts(*parts: JsonValue | Callable[[], Awaitable[object]], cut: bool = False) -> Streamed:
    """A reply that goes on after each function among its parts has returned. Nothing ends it but `[DONE]`."""

    async def pieces() -> AsyncIterator[bytes]:
        for part in parts:
            if callable(part):
                await part()
            else:
                yield server_sent(part)

    return Streamed(headers=EVENT_STREAM, pieces=pieces(), cut=cut)


@asynccontextmanager
async def watched_worker(
    harness: Harness, server: ModelServer, sink: DeltaSink | None, *tools: ToolContract, streaming: bool = True
) -> AsyncIterator[Worker]:
    """Serves the agent `tester`, whose model is behind the server, to the end of the block."""
    agent = scripted_agent(*tools).model_copy(update={"model": "openai:m"})
    async with loopback_client() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, KEY, streaming=streaming)
        catalog = Catalog([agent], sinks=[sink] if sink else [])
        async with agent_worker(harness.client, harness.task_queue, catalog, {"openai": model}) as worker:
            yield worker


@dataclass(eq=False)
class Viewer:
    """Somebody who watches one model call, from its next event on."""

    view: DeltaView

    @classmethod
    def of(cls, event: DeltaEvent) -> "Viewer":
        """One that has not seen anything yet of this event's call."""
        return cls(DeltaView(event.run_id, event.key))

    def show(self, events: Sequence[DeltaEvent]) -> None:
        """Take events in."""
        for event in events:
            self.view = self.view.after(event)


class Relay:
    """What stands between a sink and its viewers: it keeps all events, and hands them on to whoever watches."""

    def __init__(self) -> None:
        self.events: list[DeltaEvent] = []
        self.watching: list[Viewer] = []
        self._more = asyncio.Condition()

    async def take(self, event: DeltaEvent) -> None:
        """Keep an event and hand it on."""
        async with self._more:
            self.events.append(event)
            for viewer in self.watching:
                viewer.show([event])
            self._more.notify_all()

    async def told(self, matching: Callable[[DeltaEvent], bool]) -> DeltaEvent:
        """The first event like this, once it is there."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._more:
            await self._more.wait_for(lambda: any(map(matching, self.events)))
        return next(filter(matching, self.events))

    def of(self, workflow_id: str) -> list[DeltaEvent]:
        """The events of one run."""
        return [event for event in self.events if event.workflow_id == workflow_id]
