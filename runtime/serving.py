"""From a catalog of agents to a worker that serves them until it is told to stop."""

import asyncio
import importlib
import os
import signal
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pkgutil import iter_modules
from types import MappingProxyType, ModuleType

from pydantic import ValidationError
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Worker, WorkerDeploymentConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

import workflows
from activities.catalog import Catalog
from activities.delta_sinks import DeltaSink, Posted
from activities.in_flight import InFlight
from activities.model_table import ModelTable
from activities.providers.interface import ModelProvider
from activities.registry import Activities
from activities.tooling import ToolRefused
from contracts.records import describe
from runtime import search_attributes
from runtime.settings import Settings, StartupError
from workflows.agent_run import AgentRun
from workflows.compensate_run import CompensateRun

WORKFLOWS: tuple[type, ...] = (AgentRun, CompensateRun)
# The sandbox imports anew for each run, and for each replay, what is not named here: more time than all else that a
# short run takes. What is named must keep no state and reach for nothing outside, see tests/test_boundaries.py.
_PASSED_THROUGH = (
    *("contracts", "pydantic", "pydantic_core", "annotated_types"),
    *sorted(
        {module.name for module in iter_modules(workflows.__path__, "workflows.")}
        - {each.__module__ for each in WORKFLOWS}
    ),
)
# How long a run's next step, or a query, waits for a worker that was killed. Temporal's default is 10 s.
_STICKY_TIMEOUT = timedelta(seconds=2)
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# The SDK sends at most one heartbeat in this time, and a cancellation comes as the answer to one.
_HEARTBEAT_INTERVAL = timedelta(seconds=1)


def import_apps(names: Sequence[str]) -> list[ModuleType]:
    """The modules of these dotted names.

    Raises `StartupError` for those that do not exist and for agents and tools in them that are refused; what else a
    module raises while it is imported comes through.
    """
    modules = []
    problems = []
    for name in names:
        try:
            modules.append(importlib.import_module(name))
        except ModuleNotFoundError as error:
            # A module that exists but lacks something it imports is a bug in there, and its traceback says where.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            problems.append(
                f"--app {name}: there is no such module; write it with dots and without .py, as in examples.refund_desk"
            )
        except ToolRefused as error:
            problems.append(f"{_line_of(error)}: {error}")
        except ValidationError as error:
            problems.append(f"{_line_of(error)}: {error.title}: {describe(error)}")
        except (TypeError, ValueError):
            if all(part.isidentifier() for part in name.split(".")):
                raise
            problems.append(f"--app {name!r} is no module name; write one with dots, as in examples.refund_desk")
    if problems:
        raise StartupError(*problems)
    return modules


def _line_of(error: Exception) -> str:
    """Where a module, at its top level, made what was refused."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name == "<module>"]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "app"


def delta_sink(settings: Settings, catalog: Catalog) -> DeltaSink | None:
    """Where deltas go: to the URL that the settings name, else to the catalog's sink, if there is one. Raises
    `StartupError` where both are there, or the URL or its token cannot be used."""
    if settings.deltas_url is None:
        return catalog.sink
    if catalog.sink is not None:
        raise StartupError(
            f"STEADYHAND_DELTAS_URL is set, and an app has a sink of its own, {type(catalog.sink).__name__}: use one"
        )
    try:
        return Posted(settings.deltas_url, settings.deltas_token)
    except ValueError as error:
        raise StartupError(f"STEADYHAND_DELTAS_URL or its token: {error}") from None


def sandboxed_runner() -> SandboxedWorkflowRunner:
    """What workflow code runs in, here and when a history is replayed."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*_PASSED_THROUGH))


def _pinning(version: WorkerDeploymentVersion) -> WorkerDeploymentConfig:
    """A run stays with the version it began on: its consent, its tools and its replay are those of one version."""
    return WorkerDeploymentConfig(
        version, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.PINNED
    )


@asynccontextmanager
async def agent_worker(
    client: Client,
    task_queue: str,
    catalog: Catalog,
    providers: Mapping[str, ModelProvider],
    *,
    tool_settings: Mapping[str, str] = MappingProxyType({}),
    in_flight: InFlight | None = None,
    sink: DeltaSink | None = None,
    models: ModelTable | None = None,
    version: WorkerDeploymentVersion | None = None,
    max_concurrent_activities: int = 100,
    max_cached_workflows: int = 1000,
    graceful_shutdown_timeout: timedelta = timedelta(seconds=10),
) -> AsyncIterator[Worker]:
    """A worker that serves runs of these agents, their model calls and their tool calls, until the block ends.

    Search attributes that the namespace lacks are registered first, where that is allowed; runs that this worker starts
    use those that are there. `tool_settings` holds the values of the settings that tool contracts name. `sink` takes
    the deltas instead of the catalog's own, and `models` is what is known of models, instead of the built-in table. A
    worker of a `version` gets runs once the server has been told that it is the current one, and keeps those it began.
    `graceful_shutdown_timeout` is how long calls in flight may go on when it stops, before they are cancelled. Raises
    ValueError for less than one activity at once: no run could do anything.
    """
    if max_concurrent_activities < 1:
        raise ValueError(f"max_concurrent_activities is {max_concurrent_activities}: a worker needs at least one")
    activities = Activities(
        catalog,
        providers,
        tool_settings,
        in_flight=in_flight,
        sink=sink,
        models=models,
        search_attributes=await search_attributes.register(client),
    )
    worker = Worker(
        client,
        task_queue=task_queue,
        workflows=WORKFLOWS,
        activities=activities.all(),
        workflow_runner=sandboxed_runner(),
        deployment_config=_pinning(version) if version else None,
        max_concurrent_activities=max_concurrent_activities,
        max_cached_workflows=max_cached_workflows,
        sticky_queue_schedule_to_start_timeout=_STICKY_TIMEOUT,
        max_heartbeat_throttle_interval=_HEARTBEAT_INTERVAL,
        graceful_shutdown_timeout=graceful_shutdown_timeout,
    )
    async with activities, worker:
        yield worker


async def serve_until_stopped(worker: AbstractAsyncContextManager[Worker]) -> None:
    """Run the worker until SIGINT or SIGTERM, then let it finish what is in flight. A second signal ends the process.

    Raises what ended the worker if it ends by itself.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for each in _STOP_SIGNALS:
        loop.add_signal_handler(each, stopped.set)
    try:
        async with worker:
            await stopped.wait()
            for each in _STOP_SIGNALS:
                # At once, as a crash would: Temporal gives what was in flight to another worker.
                loop.add_signal_handler(each, os._exit, 128 + each)
    finally:
        for each in _STOP_SIGNALS:
            loop.remove_signal_handler(each)
