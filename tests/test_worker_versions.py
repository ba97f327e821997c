"""Two versions of the worker on one task queue: a run stays with the one it began on, until it continues as new."""

import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import WorkflowHistory
from temporalio.common import WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.catalog import Catalog
from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import tool
from runtime.dev_server import DevServer
from runtime.serving import agent_worker
from tests.apps import payments
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, histories, pending_approval, state_of
from tests.support.waiting import eventually
from tests.support.worker_process import worker_process


@tool(side_effect="read", approval="always")
def ask() -> str:
    """Ask."""
    return "asked"


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


@dataclass
class Told:
    """A model that asks once, looks so many times, and then tells which build of the worker it was asked by."""

    build_id: str
    looks: int

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        done = sum(message.role == "tool" for message in request.messages)
        if done > self.looks:
            return Completion(f"told by {self.build_id}")
        return Completion("", (RawToolCall("look" if done else "ask", "{}"),))


class Deployment:
    """A deployment of its own, with workers of several builds."""

    def __init__(self, harness: Harness, looks: int = 0) -> None:
        self.name = f"shop-{uuid.uuid4().hex[:8]}"
        self._harness = harness
        self._looks = looks

    def worker(self, build_id: str) -> AbstractAsyncContextManager[Worker]:
        """A worker in this process, of this build."""
        agent = scripted_agent(ask, look).model_copy(update={"model": "told:main"})
        return agent_worker(
            self._harness.client,
            self._harness.task_queue,
            Catalog([agent]),
            {"told": Told(build_id, self._looks)},
            version=WorkerDeploymentVersion(self.name, build_id),
        )

    async def make_current(self, build_id: str) -> None:
        """What an operator does: `temporal worker deployment set-current-version`."""
        await make_current(self._harness, self.name, build_id)


async def make_current(harness: Harness, deployment: str, build_id: str) -> None:
    """Have new runs go to this build, once the server has heard of it from its worker."""
    client = harness.client
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=deployment, build_id=build_id, identity="an operator"
    )

    async def accepted() -> bool:
        try:
            await client.workflow_service.set_worker_deployment_current_version(request)
        except RPCError:
            return False
        return True

    await eventually(accepted)


def builds(history: WorkflowHistory) -> set[str]:
    """The builds of the workers that made the workflow tasks of this history."""
    tasks = (event.workflow_task_completed_event_attributes for event in history.events)
    return {task.deployment_version.build_id for task in tasks if task.deployment_version.build_id}


async def approve(run: Handle) -> None:
    request = await pending_approval(run)
    await run.signal("resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"})


async def test_a_waiting_run_ends_on_its_version_while_new_runs_go_to_the_current_one(harness: Harness) -> None:
    deployment = Deployment(harness)
    async with deployment.worker("1"):
        await deployment.make_current("1")
        waiting = await harness.start(PROMPT)
        await pending_approval(waiting)
    async with deployment.worker("2"):
        await deployment.make_current("2")
        fresh = await harness.start(PROMPT)
        await approve(fresh)
        assert (await fresh.result()).text == "told by 2"
        # A worker that knows nothing of the run: its model call asks the run, on its version, for the transcript.
        async with deployment.worker("1"):
            assert (await state_of(waiting)).status == "waiting_for_approval"
            await approve(waiting)
            assert (await waiting.result()).text == "told by 1"
    (old,), (new,) = await histories(harness.client, waiting.id), await histories(harness.client, fresh.id)
    assert (builds(old), builds(new)) == ({"1"}, {"2"})


async def test_a_run_from_before_there_were_versions_goes_on_in_the_current_one(
    harness: Harness, server: DevServer, tmp_path: Path
) -> None:
    """The second worker is a real process with the settings that name its version."""
    async with harness.serving(Catalog.from_modules([payments]), {}, {}):
        run = await harness.start({"agent": "refunder", "prompt": "Refund the broken lamp."})
        await pending_approval(run)
    deployment = f"shop-{uuid.uuid4().hex[:8]}"
    settings = {"STEADYHAND_DEPLOYMENT": deployment, "STEADYHAND_BUILD_ID": "2026-12-01"}
    settings["PAYMENTS_DATABASE"] = str(tmp_path / "bank.db")
    async with worker_process("tests.apps.payments", harness.task_queue, server.address, settings):
        await make_current(harness, deployment, "2026-12-01")
        await approve(run)
        assert (await run.result()).text == "Refunded."
    (history,) = await histories(harness.client, run.id)
    assert builds(history) == {"2026-12-01"}


@pytest.fixture
async def short_harness(impatient: DevServer) -> AsyncIterator[Harness]:
    corner = Harness(impatient.client)
    yield corner
    await corner.check_histories()


async def test_a_run_that_continues_as_new_goes_on_in_the_current_version(short_harness: Harness) -> None:
    deployment = Deployment(short_harness, looks=12)
    async with deployment.worker("1"), deployment.worker("2"):
        await deployment.make_current("1")
        run = await short_harness.start(PROMPT)
        await pending_approval(run)
        await deployment.make_current("2")
        await approve(run)
        assert (await run.result()).text == "told by 2"
    first, second = await histories(short_harness.client, run.id)
    assert (builds(first), builds(second)) == ({"1"}, {"2"})
