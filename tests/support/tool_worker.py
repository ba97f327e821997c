"""A worker for tests of tools: with providers, settings and threads of its own, and runs that make given calls."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from google.protobuf.message import Message
from pydantic import JsonValue
from temporalio.api.common.v1 import Payload
from temporalio.worker import Worker

from activities.catalog import Catalog
from activities.hooks import Hooks
from activities.in_flight import InFlight
from activities.providers.scripted import Scripted
from activities.tool_provider import ToolProvider
from contracts.outcomes import ToolOutcome
from contracts.runs import ToolResultsPage, ToolResultsQuery
from contracts.tools import ToolContract
from runtime.serving import agent_worker
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import CHECKOUT, Handle, Harness, calls, histories, says, script


@asynccontextmanager
async def tool_worker(
    harness: Harness,
    *tools: ToolContract,
    calling: Sequence[tuple[str, Mapping[str, JsonValue]]] | None = None,
    providers: Sequence[ToolProvider] = (),
    hooks: Sequence[Hooks] = (),
    settings: Mapping[str, str] | None = None,
    in_flight: InFlight | None = None,
    slots: int = 100,
    together: bool = False,
) -> AsyncIterator[Worker]:
    """Serves the agent `tester` with these tools. Its model makes the calls of `calling`, one a round, by default one
    of each tool without arguments, or all `together` in one round, and then says so."""
    wanted = [(tool.name, {}) for tool in tools] if calling is None else calling
    rounds = [calls(*wanted)] if together else [calls(call) for call in wanted]
    replies = script(*rounds, says("Done."))
    async with agent_worker(
        harness.client,
        harness.task_queue,
        Catalog([scripted_agent(*tools)], providers=providers, hooks=hooks),
        {"scripted": Scripted(CHECKOUT, {"main": replies})},
        tool_settings=settings or {},
        in_flight=in_flight,
        max_concurrent_activities=slots,
        graceful_shutdown_timeout=timedelta(seconds=1),
    ) as worker:
        yield worker


async def outcomes(harness: Harness) -> list[ToolOutcome]:
    """The complete outcomes of a run from start to end."""
    run = await harness.start(PROMPT)
    await run.result()
    return await outcomes_of(run)


async def outcomes_of(run: Handle) -> list[ToolOutcome]:
    """The complete outcomes of a run, in call order."""
    page: ToolResultsPage = await run.query("tool_results", ToolResultsQuery(), result_type=ToolResultsPage)
    return [record.outcome for record in page.records]


async def texts_in_history(harness: Harness, workflow_id: str) -> list[str]:
    """Every text that a run's histories hold: keys and values of all payloads, decoded, and all other fields."""
    return [
        text
        for history in await histories(harness.client, workflow_id)
        for event in history.events
        for text in texts_in(event)
    ]


def texts_in(message: Message) -> Iterator[str]:
    """Every text in a message of the server."""
    if isinstance(message, Payload):
        yield message.data.decode(errors="replace")
        if message.metadata.get("encoding") == b"json/plain":
            with suppress(ValueError):  # Tests send broken JSON too.
                yield from _texts_in_json(json.loads(message.data))
        return
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key, item in value.items():
                yield str(key)
                yield from texts_in(item) if isinstance(item, Message) else [str(item)]
            continue
        for item in value if field.is_repeated else [value]:
            if isinstance(item, Message):
                yield from texts_in(item)
            elif isinstance(item, str | bytes):
                yield item if isinstance(item, str) else item.decode(errors="replace")


def _texts_in_json(value: JsonValue) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, item in value.items():
                yield key
                yield from _texts_in_json(item)
        case list():
            for item in value:
                yield from _texts_in_json(item)
