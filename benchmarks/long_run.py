"""How long a run of 2,000 tiny rounds takes, in how many executions, and what its histories hold.

.venv/bin/python -m benchmarks.long_run [rounds]
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from temporalio.client import Client

from activities.catalog import Catalog
from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import tool
from contracts.agents import AgentSpec
from runtime.dev_server import dev_server, free_ports
from runtime.serving import agent_worker

ROUNDS = 2_000
QUEUE = "benchmark"


@tool(side_effect="read")
async def tick() -> str:
    """Tick."""
    return "tock"


class Ticking:
    """A model that asks for one tick after the other."""

    def __init__(self, rounds: int) -> None:
        self._left = rounds

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        self._left -= 1
        return Completion("Done.") if self._left < 0 else Completion("", (RawToolCall("tick", "{}"),))


async def main(rounds: int) -> None:
    """Run it, and print what it took."""
    agent = AgentSpec(
        name="ticker", instructions="Tick.", model="ticking:m", tools=(tick,), max_rounds=rounds, max_tool_calls=rounds
    )
    with tempfile.TemporaryDirectory() as directory:
        async with dev_server(Path(directory) / "temporal.db", free_ports()) as server:
            async with agent_worker(server.client, QUEUE, Catalog([agent]), {"ticking": Ticking(rounds)}):
                began = time.monotonic()
                run_input = {"agent": "ticker", "prompt": "Go."}
                run = await server.client.start_workflow("AgentRun", run_input, id="ticks", task_queue=QUEUE)
                result = await run.result()
                seconds = time.monotonic() - began
            print(
                f"{result['rounds']} rounds, {result['status']}, {seconds:.0f} s, {1000 * seconds / rounds:.0f} ms each"
            )
            await _histories(server.client)


async def _histories(client: Client) -> None:
    first = await client.get_workflow_handle("ticks").fetch_history()
    run_id: str | None = first.events[0].workflow_execution_started_event_attributes.first_execution_run_id
    while run_id:
        history = await client.get_workflow_handle("ticks", run_id=run_id).fetch_history()
        size = sum(event.ByteSize() for event in history.events)
        print(f"execution {run_id}: {len(history.events)} events, {size} bytes")
        run_id = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
