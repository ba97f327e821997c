"""One test's corner of the server: its own task queue, its runs, and at the end the replay of all their histories."""

import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowHistory
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from activities.catalog import Catalog
from activities.hooks import Hooks
from activities.providers.interface import ModelProvider
from activities.providers.scripted import Script, Scripted
from contracts.agents import AgentSpec
from contracts.approvals import ApprovalRequest
from contracts.effects import CompensateRunResult
from contracts.events import Event, EventsPage, EventsQuery
from contracts.records import Record
from contracts.runs import AgentRunResult, AgentRunState
from contracts.transcripts import TranscriptPage, TranscriptQuery
from runtime.serving import WORKFLOWS, agent_worker
from tests.support.waiting import eventually

R = TypeVar("R", bound=Record)
Handle = WorkflowHandle[object, AgentRunResult]
# A signal that comes while a run is about to close, or more than 2 MB of results while it thinks, makes the server ask
# again: that is how it is meant to be.
ASKED_AGAIN = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
)
CHECKOUT = Path(__file__).resolve().parents[2]


class Harness:
    """Starts runs and workers on a task queue that no other test uses."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.task_queue = f"test-{uuid.uuid4().hex[:12]}"
        self._runs: list[Handle] = []

    @asynccontextmanager
    async def worker(
        self,
        *agents: AgentSpec,
        scripts: Mapping[str, Script] | None = None,
        providers: Mapping[str, ModelProvider] | None = None,
        hooks: Sequence[Hooks] = (),
        max_cached_workflows: int = 1000,
    ) -> AsyncIterator[Worker]:
        """A worker in this process."""
        scripted = {"scripted": Scripted(CHECKOUT, scripts or {})}
        async with agent_worker(
            self.client,
            self.task_queue,
            Catalog(agents, hooks=hooks),
            {**scripted, **(providers or {})},
            max_cached_workflows=max_cached_workflows,
        ) as worker:
            yield worker

    @asynccontextmanager
    async def serving(
        self, catalog: Catalog, scripts: Mapping[str, Script], tool_settings: Mapping[str, str]
    ) -> AsyncIterator[Worker]:
        """A worker in this process for a catalog as a module gives it, with settings for its tools."""
        providers = {"scripted": Scripted(CHECKOUT, scripts)}
        async with agent_worker(
            self.client, self.task_queue, catalog, providers, tool_settings=tool_settings
        ) as worker:
            yield worker

    async def start(self, run_input: object, *, id: str | None = None) -> Handle:
        """Start a run as any client would: by name, with JSON."""
        handle = await self.client.start_workflow(
            "AgentRun",
            run_input,
            id=id or f"run-{uuid.uuid4().hex[:12]}",
            task_queue=self.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            result_type=AgentRunResult,
        )
        self._runs.append(handle)
        return handle

    async def compensate(self, wanted: object = None) -> WorkflowHandle[object, CompensateRunResult]:
        """Start `CompensateRun` as an operator would: with JSON, or with nothing at all."""
        undoing = await self.client.start_workflow(
            "CompensateRun",
            args=[] if wanted is None else [wanted],
            id=f"compensate-{uuid.uuid4().hex[:12]}",
            task_queue=self.task_queue,
            result_type=CompensateRunResult,
        )
        self.track(undoing.id)
        return undoing

    def track(self, workflow_id: str) -> Handle:
        """Replay a run, too, that was started by other means."""
        handle: Handle = self.client.get_workflow_handle(workflow_id, result_type=AgentRunResult)
        self._runs.append(handle)
        return handle

    async def check_histories(self) -> None:
        """Replay every execution of every run, and see that no workflow task of theirs ever failed."""
        replayer = Replayer(
            workflows=WORKFLOWS,
            # The sandbox has seen the same code while the run was alive, and takes as long as all the rest.
            workflow_runner=UnsandboxedWorkflowRunner(),
            data_converter=self.client.data_converter,
        )
        await replayer.replay_workflows(self._histories())

    async def _histories(self) -> AsyncIterator[WorkflowHistory]:
        for run in self._runs:
            for history in await histories(self.client, run.id):
                assert (mishap := failed_task(history)) is None, f"a workflow task of {run.id} failed: {mishap}"
                yield history


def failed_task(history: WorkflowHistory) -> str | None:
    """A workflow task that failed for a reason of ours."""
    for event in history.events:
        failure = event.workflow_task_failed_event_attributes
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED and failure.cause not in ASKED_AGAIN:
            return str(failure)
    return None


async def histories(client: Client, workflow_id: str) -> list[WorkflowHistory]:
    """The histories of a run's executions, first to last."""
    found = []
    latest = await client.get_workflow_handle(workflow_id).fetch_history()
    run_id: str | None = latest.events[0].workflow_execution_started_event_attributes.first_execution_run_id
    while run_id:
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        found.append(history)
        run_id = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None
    return found


async def state_of(handle: Handle) -> AgentRunState:
    """The query `state`."""
    state: AgentRunState = await handle.query("state", result_type=AgentRunState)
    return state


async def events_of(handle: Handle) -> tuple[Event, ...]:
    """The query `events`, from the first one held."""
    page: EventsPage = await handle.query("events", EventsQuery(limit=1_000), result_type=EventsPage)
    return page.events


async def event_types(handle: Handle) -> list[str]:
    """The types of all events held."""
    return [event.type for event in await events_of(handle)]


async def transcript_of(handle: Handle) -> TranscriptPage:
    """The query `transcript`, its first page."""
    page: TranscriptPage = await handle.query("transcript", TranscriptQuery(), result_type=TranscriptPage)
    return page


async def pending_approval(handle: Handle) -> ApprovalRequest:
    """The one approval that the run waits for, once it does."""

    async def ask() -> ApprovalRequest | None:
        pending = (await state_of(handle)).pending_approvals
        return pending[0] if pending else None

    return await eventually(ask)


async def event_of(handle: Handle, type: str, matching: Callable[[Event], bool] = lambda event: True) -> Event:
    """The first event of this type, once it is there."""

    async def ask() -> Event | None:
        return next((event for event in await events_of(handle) if event.type == type and matching(event)), None)

    return await eventually(ask)


async def failure_of(handle: Handle) -> tuple[ApplicationError, AgentRunResult]:
    """The error a run fails with, and the partial result it carries."""
    try:
        result = await handle.result()
    except WorkflowFailureError as error:
        cause = error.cause
        assert isinstance(cause, ApplicationError), repr(cause)
        return cause, AgentRunResult.model_validate(cause.details[0])
    raise AssertionError(f"the run did not fail: {result}")


def script(*replies: Mapping[str, object]) -> Script:
    """A script from plain replies."""
    return Script.model_validate_json(json.dumps({"replies": list(replies)}), strict=True)


def calls(*wanted: tuple[str, Mapping[str, JsonValue]], text: str = "") -> dict[str, JsonValue]:
    """A reply that calls tools."""
    return {"text": text, "calls": [{"tool": name, "arguments": dict(arguments)} for name, arguments in wanted]}


def says(text: str) -> dict[str, JsonValue]:
    """A reply in words."""
    return {"text": text}


def attempts(history: WorkflowHistory, activity_type: str) -> Sequence[int]:
    """How many attempts each finished activity of this type took, in order of scheduling."""
    scheduled = {
        event.event_id: event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events
    }
    return [
        event.activity_task_started_event_attributes.attempt
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
        and scheduled[event.activity_task_started_event_attributes.scheduled_event_id] == activity_type
    ]
