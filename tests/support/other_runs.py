"""Workflows that are called `AgentRun` and are not the right one, and workers that lack something."""

import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.worker import Worker

from contracts.activities import LoadedAgent
from contracts.agents import AgentSpec
from contracts.runs import AgentRunInput, AgentRunResult
from workflows import options
from workflows.agent_run import AgentRun
from workflows.doors import NO_PAYLOAD
from workflows.failures import BUGS

with workflow.unsafe.imports_passed_through():
    from activities.catalog import Catalog
    from activities.providers.scripted import Script, Scripted
    from activities.registry import Activities
    from runtime.serving import sandboxed_runner
    from tests.support.harness import CHECKOUT, Harness


@workflow.defn(name="AgentRun", failure_exception_types=BUGS)
class Redeployed(AgentRun):
    """Begins with a timer, so that no run of `AgentRun` can be replayed by it."""

    @workflow.run
    async def run(self, raw_input: RawValue = NO_PAYLOAD) -> AgentRunResult:
        await workflow.sleep(timedelta(milliseconds=1))
        return await super().run(raw_input)


@workflow.defn(name="AgentRun", failure_exception_types=BUGS)
class Locked(AgentRun):
    """Gives an activity what nothing can encode."""

    @workflow.run
    async def run(self, raw_input: RawValue = NO_PAYLOAD) -> AgentRunResult:
        return await super().run(raw_input)

    async def _load_agent(self, run_input: AgentRunInput) -> LoadedAgent:
        with workflow.unsafe.sandbox_unrestricted():
            lock = threading.Lock()
        loaded: LoadedAgent = await workflow.execute_activity("load_agent", lock, **options.LOAD_AGENT)
        return loaded


@asynccontextmanager
async def other_worker(
    harness: Harness, workflow_class: type, agent: AgentSpec, replies: Script, lacking: Collection[str] = ()
) -> AsyncIterator[Worker]:
    """A worker in this process that runs this workflow, without the activities that it is `lacking`."""
    activities = Activities(Catalog([agent]), {"scripted": Scripted(CHECKOUT, {"main": replies})}, {})
    worker = Worker(
        harness.client,
        task_queue=harness.task_queue,
        workflows=[workflow_class],
        activities=[each for each in activities.all() if each.__name__ not in lacking],
        workflow_runner=sandboxed_runner(),
    )
    async with activities, worker:
        yield worker
