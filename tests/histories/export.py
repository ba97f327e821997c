"""`python -m tests.histories.export <label>`: the histories of today's workflow, into a directory of their own.

For a version that is about to be released; never for one whose histories are here already.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from runtime.dev_server import dev_server, free_ports
from tests.histories import consent, effects, endings, rounds
from tests.histories.stored import HISTORIES, digest
from tests.support.harness import Handle, Harness, histories

Scenario = Callable[[Harness], Awaitable[Handle]]
SCENARIOS: Sequence[Scenario] = (*rounds.SCENARIOS, *effects.SCENARIOS, *consent.SCENARIOS, *endings.SCENARIOS)
CHAINS: Sequence[Scenario] = (*consent.CHAINS, *endings.CHAINS)
# Chains are of several executions, each of them small.
IMPATIENT = {"limit.historyCount.suggestContinueAsNew": "20"}
# What tells servers, workers and requests apart, and says nothing of the run: no replay reads it. Whatever names a
# process or a machine is among it.
LEFT_OUT = frozenset(
    {
        "header",
        "identity",
        "meteringMetadata",
        "priority",
        "requestId",
        "taskId",
        "useWorkflowBuildId",
        "workerVersion",
        "workflowTaskScheduledEventAttributes.taskQueue",
    }
)


async def played() -> dict[str, str]:
    """File names and contents: the histories of every scenario, each of them seen to replay."""
    return {**await _played(SCENARIOS, {}), **await _played(CHAINS, IMPATIENT)}


async def _played(scenarios: Sequence[Scenario], dynamic_config: Mapping[str, str]) -> dict[str, str]:
    """File names and contents of these scenarios, played on a server of their own."""
    files = {}
    async with dev_server(ports=free_ports(), dynamic_config=dynamic_config) as server:
        for play in scenarios:
            name = play.__name__
            print(name, flush=True)
            harness = Harness(server.client)
            harness.task_queue = name
            run = await play(harness)
            await harness.check_histories()
            chain = await histories(server.client, run.id)
            for number, history in enumerate(chain, start=1):
                suffix = f".{number}" if scenarios is CHAINS else ""
                files[f"{name}{suffix}.json"] = json.dumps(_kept(history.to_json_dict()), separators=(",", ":"))
    return files


def _kept(value: JsonValue, parent: str = "") -> JsonValue:
    """A history's JSON without what is in LEFT_OUT, by name or by `<parent>.<name>`."""
    if isinstance(value, dict):
        return {
            name: _kept(item, name)
            for name, item in value.items()
            if name not in LEFT_OUT and f"{parent}.{name}" not in LEFT_OUT
        }
    return [_kept(item) for item in value] if isinstance(value, list) else value


def main(arguments: Sequence[str]) -> int | str:
    """The exit status, or why nothing was exported."""
    if len(arguments) != 1 or Path(arguments[0]).name != arguments[0]:
        return "usage: python -m tests.histories.export <label>"
    directory = HISTORIES / arguments[0]
    if directory.exists():
        return (
            f"there are histories of {arguments[0]} already, and what is stored is never replaced: take another label"
        )
    files = asyncio.run(played())
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text)
    size = sum(len(text) for text in files.values())
    print(f"{len(files)} histories, {size} bytes, for DIGESTS in tests/test_stored_histories.py:")
    print(f'    "{directory.name}": "{digest(directory)}",')
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
