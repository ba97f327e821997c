"""An agent with many calls a round, its tools taken from a set, and a worker that replays its runs at every step:
`python -m tests.apps.uncached <task queue>`."""

import asyncio
import sys

from activities.catalog import Catalog
from activities.providers.scripted import Scripted
from activities.tooling import Tool, tool
from contracts.agents import AgentSpec
from contracts.outcomes import ToolOutcome
from runtime.connection import connect
from runtime.serving import agent_worker
from tests.support.harness import CHECKOUT, calls, says, script

NAMES = frozenset({f"look_{letter}" for letter in "abcdefgh"})


def looking(name: str) -> Tool:
    def look() -> ToolOutcome:
        return ToolOutcome(ok=True, text=name, metadata={"seen": list(NAMES)})

    look.__name__, look.__doc__ = name, "Look."
    return tool(side_effect="read")(look)


@tool(side_effect="read", approval="always")
def ask() -> list[str]:
    """Ask; the answer is a set."""
    return list(NAMES)


agent = AgentSpec(
    name="looker",
    instructions="Look.",
    model="scripted:main",
    tools=(ask, *(looking(name) for name in NAMES)),
)
BATCH = calls(*((name, {}) for name in sorted(NAMES, reverse=True)))
SCRIPT = script(BATCH, calls(("ask", {})), says("Looked."))


async def serve(task_queue: str) -> None:
    client = await connect()
    providers = {"scripted": Scripted(CHECKOUT, {"main": SCRIPT})}
    async with agent_worker(client, task_queue, Catalog([agent]), providers, max_cached_workflows=0):
        print("serving", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[-1]))
