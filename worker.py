"""Serves agents: `python worker.py --app examples.refund_desk`. Settings come from the environment."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from temporalio.client import Client

from activities.catalog import Catalog, CatalogError
from activities.visible import visible
from runtime import logs
from runtime.connection import connect
from runtime.dev_server import dev_server
from runtime.model_providers import model_client, model_providers
from runtime.models import model_table
from runtime.serving import agent_worker, delta_sink, import_apps, serve_until_stopped
from runtime.settings import Settings, StartupError, tool_settings


def main() -> int:
    """Serve until SIGINT or SIGTERM. The exit code: 0, 130 when interrupted, or 2 where it cannot start, with a line a
    problem on stderr."""
    parser = argparse.ArgumentParser(prog="worker", description="Serve agents as Temporal workflows.")
    parser.add_argument("--app", action="append", required=True, help="a module that defines agents; may be repeated")
    parser.add_argument("--task-queue", help="default: STEADYHAND_TASK_QUEUE, else agents")
    parser.add_argument("--dev-server", action="store_true", help="start a Temporal server with UI as well")
    options = parser.parse_args()
    logs.set_up()
    try:
        settings = Settings.from_environment(task_queue=options.task_queue)
        catalog = Catalog.from_modules(import_apps(options.app), settings.model)
        asyncio.run(_serve(settings, catalog, options.dev_server))
    except (StartupError, CatalogError) as error:
        for problem in str(error).splitlines():
            print(f"worker: {visible(problem)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


async def _serve(settings: Settings, catalog: Catalog, own_server: bool) -> None:
    async with model_client() as http:
        providers = model_providers(settings, catalog, http)
        secrets = tool_settings(catalog.settings)
        sink = delta_sink(settings, catalog)
        models = model_table(settings, catalog)
        async with _temporal(own_server) as (client, address):
            worker = agent_worker(
                client,
                settings.task_queue,
                catalog,
                providers,
                tool_settings=secrets,
                sink=sink,
                models=models,
                version=settings.version,
            )
            agents = ", ".join(sorted(catalog.agents))
            print(f"worker: serving {agents} on task queue {settings.task_queue} at {address}", flush=True)
            await serve_until_stopped(worker)


@asynccontextmanager
async def _temporal(own_server: bool) -> AsyncIterator[tuple[Client, str]]:
    if own_server:
        async with dev_server(Path(".steadyhand/temporal.db")) as server:
            yield server.client, f"{server.address}, UI {server.ui_url}"
    else:
        client = await connect()
        yield client, f"{client.service_client.config.target_host}, namespace {client.namespace}"


if __name__ == "__main__":
    sys.exit(main())
