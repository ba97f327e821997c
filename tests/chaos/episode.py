"""One run, with a process killed in it at the planned boundary."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

from pydantic import JsonValue
from temporalio.client import WorkflowFailureError, WorkflowHistoryEventFilterType
from temporalio.service import RPCError

from contracts.runs import AgentRunResult, AgentRunState
from tests.chaos.lane import Lane
from tests.chaos.plans import Plan
from tests.chaos.verdict import Tally, judge
from tests.chaos.world import ITSELF
from tests.support.harness import Handle, events_of, state_of
from tests.support.waiting import eventually

T = TypeVar("T")

# A run always ends. What may take so long is a busy machine: the longest wait is that for the lost heartbeat of a model
# call, 15 s.
ENDS_WITHIN_SECONDS = 300.0


async def play(plan: Plan, lane: Lane) -> Tally:
    """Start a run in this lane, have the planned kills done, and count what came of it when it has ended."""
    world, run_id = lane.world, f"chaos-{uuid.uuid4().hex[:12]}"
    before = world.killed()
    if plan.boundary == "mid compensation":
        world.plan_fault(plan.step)
    if plan.point is not None:
        victim = lane.server.pid if plan.boundary == "server" else ITSELF
        for _ in range(plan.kills):
            world.plan_kill(plan.point, plan.step, victim)
    try:
        async with asyncio.timeout(ENDS_WITHIN_SECONDS):
            tally, from_outside = await _played(plan, lane, run_id)
    except TimeoutError:
        tally, from_outside = Tally(complaints=[f"{run_id}: it did not end"]), 0
    tally.kills = world.killed() - before + from_outside
    if tally.kills != plan.kills:
        tally.complaints.append(f"{run_id}: {tally.kills} processes were killed, and not as planned: {plan}")
        world.forget_plans()
    return tally


async def _played(plan: Plan, lane: Lane, run_id: str) -> tuple[Tally, int]:
    context: JsonValue = {"request_id": run_id}
    options = plan.options.model_dump(mode="json")
    async with AsyncExitStack() as others:
        if plan.boundary == "one of two workers":
            await others.enter_async_context(lane.worker())
        run = await lane.harness.start(
            {"agent": "courier", "prompt": "Go.", "context": context, "options": options}, id=run_id
        )
        from_outside = await _kill_from_outside(plan, lane, run)
        with suppress(WorkflowFailureError):
            await run.result()
        result = await _told(lambda: _result_of(run))
        events = await _told(lambda: events_of(run))
    return judge(plan, result, lane.world.effects(run_id), events), from_outside


async def _kill_from_outside(plan: Plan, lane: Lane, run: Handle) -> int:
    """Do what the program does not do to itself. How many processes were killed."""
    match plan.boundary:
        case "waiting for approval":
            return await _kill_while_waiting(plan, lane, run)
        case "continue-as-new":
            return await _kill_at_continuation(plan, lane, run)
        case "server":
            await eventually(lane.world.plans_are_done, ENDS_WITHIN_SECONDS)
            await lane.server.start_again()
    return 0


async def _kill_while_waiting(plan: Plan, lane: Lane, run: Handle) -> int:
    """Approve every call of the run, but in the planned round only after the worker was killed while it waited."""
    killed = 0
    approved: set[str] = set()

    async def waits_or_is_done() -> AgentRunState | None:
        state = await _told(lambda: state_of(run))
        new = {request.approval_id for request in state.pending_approvals} - approved
        return state if new or state.status == "completed" else None

    while (state := await eventually(waits_or_is_done, ENDS_WITHIN_SECONDS)).pending_approvals:
        if state.round == plan.step and killed < plan.kills:
            await lane.kill_worker()
            killed += 1
            continue
        for request in state.pending_approvals:
            approved.add(request.approval_id)
            decision = {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"}
            await run.signal("resolve_approval", decision)
    return killed


async def _kill_at_continuation(plan: Plan, lane: Lane, run: Handle) -> int:
    """Kill the worker as soon as the planned execution of the chain is closed."""
    run_id = run.first_execution_run_id
    for _ in range(plan.step):
        execution = lane.harness.client.get_workflow_handle(run.id, run_id=run_id)
        closed = execution.fetch_history_events(
            wait_new_event=True, event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT
        )
        async for event in closed:
            run_id = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        if not run_id:
            return 0
    await lane.kill_worker()
    return 1


async def _result_of(run: Handle) -> AgentRunResult:
    """What the run ended with, however it ended."""
    result: AgentRunResult = await run.query("result", result_type=AgentRunResult)
    return result


async def _told(query: Callable[[], Awaitable[T]]) -> T:
    """The answer to a query, once there is a worker that gives it."""

    async def ask() -> T | None:
        with suppress(RPCError):
            return await query()
        return None

    return await eventually(ask, ENDS_WITHIN_SECONDS)
