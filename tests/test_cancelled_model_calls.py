"""R-26: a model call that is cancelled or too late ends its run soon, and the worker goes on with others."""

import asyncio
from typing import Literal

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from activities.delta_sinks import Callback
from activities.providers.interface import Completion, CompletionRequest, Publish, to_nobody
from contracts.deltas import DeltaEvent
from tests.providers.model_server import ModelServer
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, histories, state_of
from tests.support.watching import answer, watched_worker
from tests.support.watching import says as chunk_of

# From the request, or the deadline, to the end, by the server's clock. The report says 2 s and a heartbeat, of which
# there is one a second; a machine that has much else to do takes longer, and the held model for ever.
SOON_SECONDS = 10.0
# A run that is told to end takes a workflow task or two for that. A loop of them would be a livelock.
MOST_TASKS = 4

How = Literal["cancelled", "timed_out"]
BOTH = pytest.mark.parametrize("how", ["cancelled", "timed_out"])


class Held:
    """A model that answers the prompt `Probe.`, and holds every other, whatever it is asked to do."""

    def __init__(self) -> None:
        self.waiting = 0
        self.changed = asyncio.Condition()
        self.release = asyncio.Event()

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        if request.messages[-1].text == "Probe.":
            return Completion("Served.")
        async with self.changed:
            self.waiting += 1
            self.changed.notify_all()
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                continue
        return Completion("Too late.")

    async def holds(self, count: int) -> None:
        """Wait until so many calls are held."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.waiting == count)


def prompt(how: How) -> dict[str, object]:
    return {**PROMPT, "options": {} if how == "cancelled" else {"deadline_seconds": 2}}


async def ended(harness: Harness, run: Handle, how: How) -> None:
    """See that the run ends as it should, soon, and in few steps."""
    with pytest.raises(WorkflowFailureError) as failed:
        async with asyncio.timeout(3 * SOON_SECONDS):
            await run.result()
    cause = failed.value.cause
    if how == "cancelled":
        assert isinstance(cause, CancelledError)
        assert (await run.describe()).status == WorkflowExecutionStatus.CANCELED
    else:
        assert isinstance(cause, ApplicationError)
        assert cause.type == "DeadlineExceeded"
    assert (await state_of(run)).status == how
    (history,) = await histories(harness.client, run.id)
    asked = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
    if how == "timed_out":
        asked = EventType.EVENT_TYPE_TIMER_FIRED
    (number,) = [number for number, event in enumerate(history.events) if event.event_type == asked]
    after = history.events[number:]
    seconds = (after[-1].event_time.ToNanoseconds() - after[0].event_time.ToNanoseconds()) / 1e9
    assert seconds < SOON_SECONDS
    tasks = [event for event in after if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED]
    assert len(tasks) <= MOST_TASKS


@BOTH
@pytest.mark.parametrize("cached", [1000, 1])
async def test_r26_waiting_runs_end_soon_and_the_worker_serves_another(
    harness: Harness, caplog: pytest.LogCaptureFixture, how: How, cached: int
) -> None:
    """Three at once, also where the worker keeps only one of them in memory."""
    model = Held()
    agent = scripted_agent().model_copy(update={"model": "held:main"})
    async with harness.worker(agent, providers={"held": model}, max_cached_workflows=cached):
        try:
            runs = [await harness.start(prompt(how)) for _ in range(3)]
            # A deadline does not wait until the model has been asked.
            if how == "cancelled":
                await model.holds(3)
                for run in runs:
                    await run.cancel()
            for run in runs:
                await ended(harness, run, how)
            # While three calls still ignore that nobody waits for them.
            probe = await harness.start({"agent": "tester", "prompt": "Probe."})
            assert (await probe.result()).text == "Served."
        finally:
            model.release.set()
    assert "eadlock" not in caplog.text


@BOTH
async def test_r26_a_run_ends_while_a_streamed_reply_is_handed_over(
    harness: Harness, caplog: pytest.LogCaptureFixture, how: How
) -> None:
    """The reply is whole and paid for; its last event is being told when the run is to end."""
    handing_over = asyncio.Event()

    async def told(event: DeltaEvent) -> None:
        if event.type == "model_completed":
            handing_over.set()
            await asyncio.Event().wait()

    reply = answer(chunk_of("He"), chunk_of("llo"))
    async with ModelServer([reply]) as server, watched_worker(harness, server, Callback(told, patience_seconds=30)):
        run = await harness.start(prompt(how))
        if how == "cancelled":
            await handing_over.wait()
            await run.cancel()
        await ended(harness, run, how)
    assert "eadlock" not in caplog.text
    async with ModelServer([answer(chunk_of("Served."))]) as server, watched_worker(harness, server, None):
        assert (await (await harness.start(PROMPT)).result()).text == "Served."
