"""Following a run as any Temporal client can: its result, its queries, and a person at the terminal."""

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import Literal

from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from activities.visible import visible
from contracts.approvals import ApprovalRequest
from contracts.events import EventsPage
from contracts.runs import AgentRunResult, AgentRunState

Resolution = Literal["approved", "denied"]
Run = WorkflowHandle[AgentRunResult, AgentRunResult]


@dataclass(frozen=True)
class Ending:
    """How a run ended. `problem` is what went wrong, in words, or None."""

    status: str
    rounds: int = 0
    tool_calls: int = 0
    text: str = ""
    problem: str | None = None


async def ending_of(run: Run) -> Ending:
    """Wait for the end of a run. Raises `RPCError` when the server is gone."""
    try:
        return _ending(await run.result(), None)
    except WorkflowFailureError as failure:
        cause = failure.cause
        if not isinstance(cause, ApplicationError):
            return Ending(status="cancelled", problem=f"was ended from outside: {visible(str(cause))}")
        problem = f"failed: {cause.type}: {visible(cause.message)}"
        if not cause.details:
            return Ending(status="failed", problem=problem)
        return _ending(AgentRunResult.model_validate(cause.details[0]), problem)


async def events_after(run: Run, sequence: int) -> EventsPage:
    """The run's events after this sequence number."""
    query = {"after_sequence": sequence, "limit": 100}
    page: EventsPage = await run.query("events", query, result_type=EventsPage)
    return page


async def pending_approvals(run: Run) -> tuple[ApprovalRequest, ...]:
    """The requests that wait for a decision."""
    state: AgentRunState = await run.query("state", result_type=AgentRunState)
    return state.pending_approvals


async def retries(run: Run) -> list[str]:
    """A line for each activity whose last attempt failed and that Temporal tries again: not an event, the run waits."""
    description = await run.describe()
    lines = []
    for pending in description.raw_description.pending_activities:
        if pending.attempt > 1:
            what = f"{pending.activity_type.name}: {pending.last_failure.message}"
            lines.append(f"       {visible(what)}; attempt {pending.attempt} follows")
    return lines


async def ask_terminal(run: Run, request: ApprovalRequest) -> Resolution | None:
    """The answer given on the terminal, or None when the request was meanwhile resolved in another way."""
    print("Approve? [y/N] ", end="", flush=True)
    line = asyncio.ensure_future(read_line())
    try:
        while True:
            if all(pending.approval_id != request.approval_id for pending in await pending_approvals(run)):
                return None
            await asyncio.wait({line}, timeout=0.5)
            if line.done():
                if (resolution := resolution_of(line.result())) is not None:
                    return resolution
                print("Please answer y or n. Approve? [y/N] ", end="", flush=True)
                line = asyncio.ensure_future(read_line())
    finally:
        line.cancel()


def resolution_of(answer: str) -> Resolution | None:
    """What a person's answer means: without a word it is no, and None when it is neither yes nor no."""
    match answer.strip().lower():
        case "y" | "yes":
            return "approved"
        case "n" | "no" | "":
            return "denied"
    return None


async def read_line() -> str:
    """A line from the terminal, or nothing at its end. (Reading in a thread could not be cancelled.)"""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    terminal = sys.stdin.fileno()
    loop.add_reader(terminal, ready.set)
    try:
        await ready.wait()
        return os.read(terminal, 4096).decode(errors="replace")
    finally:
        loop.remove_reader(terminal)


def _ending(result: AgentRunResult, problem: str | None) -> Ending:
    calls = len(result.tool_results) + result.tool_results_omitted
    return Ending(result.status, result.rounds, calls, result.text, problem)
