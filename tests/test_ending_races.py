"""Whatever ends a run at the same moment, it ends once, says so consistently, and is cleaned up exactly once."""

import asyncio
import json
import logging
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, UpdateWorkflowExecutionLifecycleStage
from temporalio.api.update.v1 import UpdateRef, WaitPolicy
from temporalio.api.workflowservice.v1 import PollWorkflowExecutionUpdateRequest
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHistory,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from activities.catalog import Catalog
from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.registry import Activities
from activities.tooling import Tool, tool
from contracts.agents import AgentSpec
from contracts.idempotency import approval_id
from contracts.policies import CompensationRule
from contracts.runs import AgentRunResult
from contracts.search_attributes import AGENT_PENDING_APPROVALS, AGENT_STATUS
from contracts.tools import UndoRequest
from runtime.dev_server import DevServer
from runtime.serving import sandboxed_runner
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Handle,
    Harness,
    calls,
    event_types,
    events_of,
    failed_task,
    failure_of,
    histories,
    pending_approval,
    says,
    script,
    state_of,
)
from tests.support.waiting import eventually
from workflows.agent_run import AgentRun

# Races of each kind, side by side on one worker.
RACES = 50
# How long a run has before it is raced against its deadline.
DEADLINE_SECONDS = 4
KINDS = ("reply", "approval", "tool", "deadline")
ENDS = {"run_completed", "run_failed", "run_cancelled", "run_timed_out"}
ALLOWED = {
    "created": {"running", "cancelled"},
    "running": {"waiting_for_approval", "completed", "failed", "cancelled", "timed_out"},
    "waiting_for_approval": {"running", "failed", "cancelled", "timed_out"},
}
REFUSALS = {"cancel_refused", "approval_refused"}
ASKED_AGAIN = {
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.ABORTED,
}


@dataclass
class Desk:
    """What happened, by the name that each run has as its prompt, and the doors that the races open."""

    booked: Counter[str] = field(default_factory=Counter)
    undone: Counter[str] = field(default_factory=Counter)
    paid: Counter[str] = field(default_factory=Counter)
    reached: dict[str, asyncio.Event] = field(default_factory=dict)
    go_on: dict[str, asyncio.Event] = field(default_factory=dict)

    def expect(self, name: str) -> None:
        self.reached[name], self.go_on[name] = asyncio.Event(), asyncio.Event()

    async def wait(self, name: str) -> None:
        self.reached[name].set()
        await self.go_on[name].wait()

    @property
    def tools(self) -> tuple[Tool, ...]:
        @tool(side_effect="write", compensation=CompensationRule(timeout=30, max_attempts=3))
        def book(name: str) -> str:
            """Book."""
            self.booked[name] += 1
            if name.startswith("approval") and name in self.reached:
                self.reached[name].set()
            return "booked"

        @book.undo
        def give_back(request: UndoRequest) -> None:
            self.undone[str(request.invocation.arguments["name"])] += 1

        @tool(side_effect="write", approval="always")
        def pay(name: str) -> str:
            """Pay, once somebody agrees."""
            self.paid[name] += 1
            return "paid"

        @tool(side_effect="read", lost_after=1)
        async def look(name: str) -> str:
            """Look, and take a while."""
            await self.wait(name)
            return "seen"

        return book, pay, look


class Clerk:
    """A model that books, then does what its run is about, then says so. Its runs are named `<kind>-<number>`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        name = request.messages[0].text
        turns = sum(message.role == "assistant" for message in request.messages)
        kind = name.split("-")[0]
        wanted = ("book", {"approval": "pay", "deadline": "pay", "tool": "look"}.get(kind))[min(turns, 1)]
        if turns < 2 and wanted is not None:
            return Completion("", (RawToolCall(wanted, f'{{"name": "{name}"}}'),))
        if kind == "reply":
            await self._desk.wait(name)
        return Completion("Done.")


def clerks_agent(desk: Desk) -> AgentSpec:
    return scripted_agent(*desk.tools).model_copy(
        update={"model": "clerk:main", "compensate_on": ("cancelled", "failed", "timed_out")}
    )


@dataclass
class Race:
    """One run and what was done to it at the same time."""

    run: Handle
    name: str
    deadline: datetime | None = None
    accepted: int = 0
    decided: list[str] = field(default_factory=list)

    async def cancel_run(self) -> None:
        self.accepted += await self.update("cancel_run", {"reason": "enough"}) is None

    async def cancel(self) -> None:
        with suppress_closed():
            await self.run.cancel()

    async def decide(self, resolution: str) -> None:
        """Decide as soon as the run asks, if it ever does."""
        chain = (self.run.id, self.run.first_execution_run_id or "")
        decision = {"approval_id": approval_id(chain, "call_2"), "resolution": resolution, "by": "ann"}

        async def is_over() -> bool:
            refused = await self.update("decide", decision)
            if refused is None:
                self.decided.append(resolution)
            elif "is open in this run" in refused:
                return (await self.run.describe()).status != WorkflowExecutionStatus.RUNNING
            return True

        await eventually(is_over)

    async def update(self, name: str, argument: dict[str, str]) -> str | None:
        """Send an update; why it was not taken, or None. One whose answer was lost is asked about by its id."""
        update_id = uuid.uuid4().hex
        while True:
            try:
                await self.run.execute_update(name, argument, id=update_id, rpc_timeout=timedelta(seconds=10))
            except WorkflowUpdateFailedError as error:
                return str(error.cause)
            except WorkflowUpdateRPCTimeoutOrCancelledError as lost:
                if isinstance(lost.__cause__, asyncio.CancelledError):
                    raise
            except RPCError as error:
                if error.status == RPCStatusCode.NOT_FOUND:
                    return "the run is closed"
                # A task that was to close the run is made again, since something came in between, or the server is
                # busy: whether it was taken is asked again, by its id.
                if error.status not in ASKED_AGAIN:
                    raise
            else:
                return None


@contextmanager
def suppress_closed() -> Iterator[None]:
    """For what is asked of a run that may have closed."""
    try:
        yield
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise


async def race(corner: Harness, desk: Desk, kind: str, number: int) -> Race:
    """Bring a run to where it waits, and then end it in several ways at once, in an order of its own."""
    dice = random.Random(f"{kind} {number}")
    name = f"{kind}-{number}"
    desk.expect(name)
    run_input: dict[str, object] = {**PROMPT, "prompt": name}
    deadline = None
    if kind == "deadline":
        deadline = datetime.now(UTC) + timedelta(seconds=DEADLINE_SECONDS + dice.random())
        run_input["context"] = {"deadline_utc": deadline.isoformat()}
    racer = Race(await corner.start(run_input), name, deadline)
    ways: list[Callable[[], Awaitable[None]]] = [racer.cancel_run, racer.cancel]
    if kind != "deadline":
        await desk.reached[name].wait()
    if kind in ("reply", "tool"):

        async def release() -> None:
            desk.go_on[name].set()

        ways.append(release)
    else:
        ways.append(partial(racer.decide, dice.choice(["approved", "denied"])))
    if dice.random() < 0.3:
        ways.append(racer.cancel_run)
    dice.shuffle(ways)
    # Not everything comes to every run, so that nothing wins always.
    ways = ways[: dice.choice([1, 2, 3, 4])]
    if deadline is not None:
        # They come within a tenth of a second of it.
        moment = deadline + timedelta(seconds=dice.uniform(-0.1, 0.1))

        async def is_time() -> bool:
            return datetime.now(UTC) >= moment

        await eventually(is_time)
    await asyncio.gather(*(way() for way in ways))
    desk.go_on[name].set()
    if kind == "approval" and not racer.decided:
        await racer.decide("approved")
    return racer


async def check(corner: Harness, desk: Desk, racer: Race) -> str:
    """See that the run ended once and that everything said of it agrees; how it ended."""
    run, name = racer.run, racer.name
    with suppress(WorkflowFailureError):
        await run.result()
    # A query of a closed run replays all of its history.
    events = await events_of(run)
    result: AgentRunResult = await run.query("result", result_type=AgentRunResult)
    types = [event.type for event in events]
    (end,) = [each for each in types if each in ENDS]
    # What is refused between the end and the close is recorded, too.
    assert set(types[types.index(end) + 1 :]) <= REFUSALS, name
    status = end.removeprefix("run_")
    await agrees_with_history(corner, racer, status)
    clean_ups = 0 if status == "completed" else 1
    booked = 1 if racer.deadline is None else desk.booked[name]
    assert (desk.booked[name], desk.undone[name]) == (booked, clean_ups * booked), f"{name}: {status}"
    assert types.count("compensation_started") == types.count("compensation_completed") == clean_ups * booked, name
    # A cancellation that is accepted is the end, however many there are, and nothing is begun after it.
    assert types.count("cancel_accepted") == racer.accepted <= 1, name
    if racer.accepted:
        assert status == "cancelled", name
        later = types[types.index("cancel_accepted") :]
        assert not {"tool_started", "approval_requested", "approval_recorded", "model_started"} & {*later}, name
    if racer.decided and "cancel_accepted" not in types:
        assert types.count("approval_recorded") == 1, name
    started = [event.data["tool"] for event in events if event.type == "tool_started"]
    # A call that an end caught on its way to a worker was started, and has paid nothing.
    (paid,) = [effect.state == "done" for effect in result.effects if effect.tool == "pay"] or [False]
    assert desk.paid[name] == paid, f"{name}: {result.effects}"
    assert paid <= started.count("pay") <= paid + (status in ("cancelled", "timed_out")), name
    if status == "completed" and racer.decided:
        assert desk.paid[name] == (racer.decided == ["approved"]), name
    # Every call has one answer, which is recorded as it joins the transcript.
    asked = [event.data["call_id"] for event in events if event.type == "tool_proposed"]
    assert asked == [e.data["call_id"] for e in events if e.type == "tool_output_projection_recorded"], name
    return status


async def agrees_with_history(corner: Harness, racer: Race, status: str) -> None:
    """A cancellation by the server is the end of every run that was still at work when it came."""
    (history,) = await histories(corner.client, racer.run.id)
    assert (mishap := failed_task(history)) is None, f"a workflow task of {racer.name} failed: {mishap}"
    requested = [
        event.event_time.ToDatetime(UTC)
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
    ]
    if status == "completed":
        assert requested == [], racer.name
    if status == "timed_out":
        assert racer.deadline is not None
        assert all(moment >= racer.deadline for moment in requested), racer.name
    # From one status to the next as requirement 115 allows it, the last one being how it ended.
    shown = ["created", *statuses(history)]
    assert all(after in ALLOWED[before] for before, after in pairwise(shown)), f"{racer.name}: {shown}"
    # On a busy machine a deadline may pass before the agent is loaded: such a run shows nothing of itself.
    assert shown in (["created"], [*shown[:-1], status]), racer.name
    closed = EventType.Name(history.events[-1].event_type).removeprefix("EVENT_TYPE_WORKFLOW_EXECUTION_")
    assert closed == {"completed": "COMPLETED", "cancelled": "CANCELED"}.get(status, "FAILED"), racer.name


def statuses(history: WorkflowHistory) -> list[str]:
    """The statuses that a run showed, in order."""
    upserts = [event.upsert_workflow_search_attributes_event_attributes for event in history.events]
    fields = [upsert.search_attributes.indexed_fields for upsert in upserts]
    return [json.loads(each["AgentStatus"].data) for each in fields if "AgentStatus" in each]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_clean_up_happens_exactly_once_in_every_race(
    server: DevServer, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    corner, desk = Harness(server.client), Desk()
    caplog.set_level(logging.WARNING, logger="temporalio")
    async with corner.worker(clerks_agent(desk), providers={"clerk": Clerk(desk)}):
        races = await asyncio.gather(*(race(corner, desk, kind, number) for number in range(RACES)))
        few = asyncio.Semaphore(10)

        async def checked(racer: Race) -> str:
            async with few:
                return await check(corner, desk, racer)

        ended = Counter(await asyncio.gather(*(checked(racer) for racer in races)))
    assert sum(ended.values()) == RACES
    # Nothing wins always.
    assert len(ended) > 1, ended
    assert ended["cancelled"] > RACES // 10, ended
    logged = [record.getMessage().lower() for record in caplog.records]
    assert not [line for line in logged if "deadlock" in line or "evict" in line], logged


# -- what arrives in one workflow task ---------------------------------------------------------------------------------


async def admitted(run: Handle, update_id: str) -> bool:
    """Whether the server holds this update for the run's next workflow task."""
    client = run._client
    request = PollWorkflowExecutionUpdateRequest(
        namespace=client.namespace,
        update_ref=UpdateRef(workflow_execution=WorkflowExecution(workflow_id=run.id), update_id=update_id),
        wait_policy=WaitPolicy(
            lifecycle_stage=UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ADMITTED
        ),
    )
    try:
        await client.workflow_service.poll_workflow_execution_update(request)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


@asynccontextmanager
async def calls_only(harness: Harness, desk: Desk) -> AsyncIterator[None]:
    """A worker that makes model and tool calls, and takes no step of any run."""
    activities = Activities(Catalog([clerks_agent(desk)]), {"clerk": Clerk(desk)}, {})
    async with activities, Worker(harness.client, task_queue=harness.task_queue, activities=activities.all()):
        yield


@asynccontextmanager
async def steps_only(harness: Harness) -> AsyncIterator[None]:
    """A worker that takes the steps of runs, and makes no call."""
    async with Worker(
        harness.client, task_queue=harness.task_queue, workflows=[AgentRun], workflow_runner=sandboxed_runner()
    ):
        yield


@pytest.mark.parametrize("kind", ["reply", "approval", "tool"])
@pytest.mark.parametrize("cancel_first", [True, False], ids=["cancel first", "cancel last"])
@pytest.mark.parametrize("way", ["native", "cancel_run"])
async def test_a_cancellation_in_the_same_task_as_what_the_run_waits_for_is_not_lost(
    harness: Harness, way: str, cancel_first: bool, kind: str
) -> None:
    """No worker takes the run's next step before both are there."""
    desk, name = Desk(), f"{kind}-1"
    desk.expect(name)
    updates: list[asyncio.Task[object]] = []

    async def update(update_id: str, argument: dict[str, str]) -> None:
        updates.append(asyncio.create_task(run.execute_update(update_id, argument, id=update_id)))
        await eventually(lambda: admitted(run, update_id))

    async with calls_only(harness, desk):
        async with steps_only(harness):
            run = await harness.start({**PROMPT, "prompt": name})
            if kind == "approval":
                approval = await pending_approval(run)
            else:
                await desk.reached[name].wait()

        async def go_on() -> None:
            if kind == "approval":
                await update("decide", {"approval_id": approval.approval_id, "resolution": "approved", "by": "ann"})
            else:
                desk.go_on[name].set()
                await eventually(lambda: no_call_is_pending(run))

        async def cancel() -> None:
            if way == "native":
                await run.cancel()
            else:
                await update("cancel_run", {"reason": "enough"})

        for arrive in (cancel, go_on) if cancel_first else (go_on, cancel):
            await arrive()
        async with steps_only(harness):
            # What a decision that came together with a cancellation is told, depends on which of them came first.
            await asyncio.gather(*updates, return_exceptions=True)
            with pytest.raises(WorkflowFailureError):
                await run.result()
            state = await state_of(run)
            types = await event_types(run)
    assert state.status == "cancelled"
    assert (desk.booked[name], desk.undone[name], desk.paid[name]) == (1, 1, 0)
    # Nobody knows better than the run that the call of a decision was never made.
    assert "unknown" not in [effect.state for effect in state.effects]
    if (way, kind) != ("native", "approval"):
        # There the SDK tells of the decision first, whatever the order: the call is begun, and withdrawn at once.
        assert types.count("tool_started") == (2 if kind == "tool" else 1)


async def no_call_is_pending(run: Handle) -> bool:
    return not (await run.describe()).raw_description.pending_activities


async def test_of_two_cancellations_one_is_taken(harness: Harness) -> None:
    desk = Desk()
    async with harness.worker(clerks_agent(desk), providers={"clerk": Clerk(desk)}):
        run = await harness.start({**PROMPT, "prompt": "approval-1"})
        await pending_approval(run)
        race = Race(run, "approval-1")
        await asyncio.gather(race.cancel_run(), race.cancel_run(), race.cancel_run())
        with pytest.raises(WorkflowFailureError):
            await run.result()
        types = await event_types(run)
    assert race.accepted == types.count("cancel_accepted") == 1
    assert desk.undone["approval-1"] == 1


async def test_a_cancellation_by_revision_is_taken_at_the_runs_own_and_at_no_other(harness: Harness) -> None:
    """Requirement 116: a conflict answers with the current revision and changes nothing but the log."""
    desk = Desk()
    async with harness.worker(clerks_agent(desk), providers={"clerk": Clerk(desk)}):
        run = await harness.start({**PROMPT, "prompt": "approval-1"})
        await pending_approval(run)
        seen = (await state_of(run)).revision
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.execute_update("cancel_run", {"reason": "?", "expected_revision": seen - 1})
        assert isinstance(refused.value.cause, ApplicationError)
        # The refusal itself is an event, the one change: whoever asks again with what it told is not refused for it.
        told = seen + 1
        assert (refused.value.cause.type, list(refused.value.cause.details)) == ("CancelRefused", [told])
        assert f"its revision is {told}" in refused.value.cause.message
        now = await state_of(run)
        assert (now.revision, now.status, len(now.pending_approvals)) == (told, "waiting_for_approval", 1)
        accepted = await run.execute_update("cancel_run", {"reason": "enough", "expected_revision": told})
        with pytest.raises(WorkflowFailureError):
            await run.result()
        events = await events_of(run)
    assert accepted == {"revision": told + 1, "reason": "enough"}
    taken = [event for event in events if event.type in ("cancel_refused", "cancel_accepted")]
    assert [(event.type, event.sequence) for event in taken] == [
        ("cancel_refused", told),
        ("cancel_accepted", told + 1),
    ]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[-1].data == {"reason": "enough"}


async def test_nobody_decides_any_more_once_a_run_is_being_ended(harness: Harness) -> None:
    """While it is cleaned up, a cancelled run asks nobody, and takes no decision."""
    desk = Desk()
    undoing, go_on = asyncio.Event(), asyncio.Event()

    @tool(side_effect="write", compensation=CompensationRule(timeout=30))
    def book() -> str:
        """Book."""
        return "booked"

    @book.undo
    async def give_back(request: UndoRequest) -> None:
        undoing.set()
        await go_on.wait()

    agent = scripted_agent(book, desk.tools[1]).model_copy(update={"compensate_on": ("cancelled",)})
    replies = script(calls(("book", {})), calls(("pay", {"name": "x"})), says("-"))
    async with harness.worker(agent, scripts={"main": replies}):
        run = await harness.start(PROMPT)
        approval = await pending_approval(run)
        await run.cancel()
        await undoing.wait()
        state = await state_of(run)
        decision = {"approval_id": approval.approval_id, "resolution": "approved", "by": "ann"}
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.execute_update("decide", decision)
        shown = (await run.describe()).typed_search_attributes
        go_on.set()
        with pytest.raises(WorkflowFailureError):
            await run.result()
    assert (state.status, state.pending_approvals) == ("running", ())
    assert "no approval" in str(refused.value.cause)
    assert (shown.get(AGENT_STATUS), shown.get(AGENT_PENDING_APPROVALS)) == ("running", 0)


@pytest.mark.parametrize("argument", [{"agent": "tester", "prompt": " "}, {"agent": ""}, 7])
async def test_an_update_to_a_run_that_cannot_begin_is_answered(harness: Harness, argument: object) -> None:
    run = await harness.start(argument)
    cancelling = asyncio.create_task(run.execute_update("cancel_run", {"reason": "?"}, id="early"))
    await eventually(lambda: admitted(run, "early"))
    async with harness.worker(scripted_agent(), scripts={"main": script(says("-"))}):
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await cancelling
        error, _ = await failure_of(run)
    assert "ending already" in str(refused.value.cause)
    assert error.type == "InvalidInput"
