"""The agent of the side-by-side benchmark, served by Steadyhand. Settings come from the harness (BENCH_*)."""

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
import scenario  # type: ignore[import-not-found]  # on the harness's path

from activities.catalog import Catalog
from activities.providers.chat_completions import ChatCompletions
from activities.tooling import tool
from contracts.agents import AgentSpec
from runtime.connection import connect
from runtime.serving import agent_worker, serve_until_stopped


@tool(side_effect="read", description=scenario.TOOL_DOC)
def lookup(key: str) -> str:
    return str(scenario.tool_result(key))


bench = AgentSpec(
    name="bench",
    instructions=scenario.SYSTEM,
    model=f"openai:{scenario.MODEL}",
    tools=(lookup,),
    max_rounds=10_000,
    max_tool_calls=100_000,
)


async def main() -> None:
    client = await connect({**os.environ, "TEMPORAL_ADDRESS": scenario.TEMPORAL})
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=200)) as http:
        providers = {"openai": ChatCompletions(http, scenario.MODEL_URL, "bench-key-0000")}
        await serve_until_stopped(agent_worker(client, scenario.TASK_QUEUE, Catalog([bench]), providers))


if __name__ == "__main__":
    asyncio.run(main())
