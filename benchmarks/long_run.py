"""A long run: 1,000 rounds, each with one result of 8 KB that does not compress, on an embedded server.

.venv/bin/python -m benchmarks.long_run [rounds] [bytes of a result]

Prints the bytes of history that a round takes early and late, how many executions the run went through, and seconds.
"""

import asyncio
import base64
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from temporalio.client import Client, WorkflowHistory

from activities.catalog import Catalog
from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import Tool, tool
from contracts.agents import AgentSpec
from contracts.models import ContextBudget
from runtime.dev_server import dev_server, free_ports
from runtime.serving import agent_worker

ROUNDS, RESULT_BYTES = 1_000, 8_192
# What the model may see at most, in tokens: old exchanges are left out of requests long before the history is full.
WINDOW = 200_000
QUEUE = "long-run"


def page_reader(result_bytes: int) -> Tool:
    """The tool, with results of about this size."""

    @tool(side_effect="read")
    def read_page(number: int) -> str:
        """Read one page."""
        noise = base64.b64encode(random.Random(number).randbytes(result_bytes * 3 // 4)).decode()  # noqa: S311 - noise
        return f"{number}: {noise}"

    return read_page


class Reader:
    """A model that reads one page after another."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        """Ask for the page after the last one that is shown."""
        answers = [message.text for message in request.messages if message.role == "tool"]
        read = int(answers[-1].split(":")[0]) + 1 if answers else 0
        if read == self._rounds:
            return Completion(f"{read} pages read")
        return Completion("", (RawToolCall("read_page", f'{{"number": {read}}}'),))


async def executions(client: Client, workflow_id: str) -> AsyncIterator[WorkflowHistory]:
    """The histories of a run, first to last."""
    latest = await client.get_workflow_handle(workflow_id).fetch_history()
    run_id: str | None = latest.events[0].workflow_execution_started_event_attributes.first_execution_run_id
    while run_id:
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        yield history
        run_id = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None


def bytes_by_round(history: WorkflowHistory) -> list[int]:
    """Bytes from one model call's scheduling to the next one's."""
    sizes, total = list[int](), 0
    for event in history.events:
        if event.activity_task_scheduled_event_attributes.activity_type.name == "call_model":
            sizes.append(total)
            total = 0
        total += event.ByteSize()
    return sizes[1:]


async def main(rounds: int = ROUNDS, result_bytes: int = RESULT_BYTES) -> None:
    """Run it once."""
    agent = AgentSpec(
        name="reader",
        instructions="Read.",
        model="reader:main",
        tools=(page_reader(result_bytes),),
        max_rounds=rounds,
        max_tool_calls=rounds,
        context=ContextBudget(window=WINDOW),
    )
    with tempfile.TemporaryDirectory() as directory:
        async with dev_server(Path(directory) / "temporal.db", free_ports()) as server:
            async with agent_worker(server.client, QUEUE, Catalog([agent]), {"reader": Reader(rounds)}):
                began = time.monotonic()
                run = await server.client.start_workflow(
                    "AgentRun", {"agent": "reader", "prompt": "Read all."}, id="long-run", task_queue=QUEUE
                )
                result = await run.result()
                took = time.monotonic() - began
            histories = [history async for history in executions(server.client, run.id)]
    sizes = [size for history in histories for size in bytes_by_round(history)]
    early, late = sum(sizes[:50]) / 50, sum(sizes[-50:]) / 50
    print(f"{result['text']} in {took:.1f} s, {took / rounds * 1000:.1f} ms a round")
    print(f"bytes a round: {early:.0f} in the first 50 rounds, {late:.0f} in the last 50")
    for history in histories:
        size = sum(event.ByteSize() for event in history.events)
        print(f"execution {history.run_id}: {len(history.events)} events, {size:,} bytes")


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
