"""Scenarios of attempts and effects, and of tools whose results come from outside."""

import asyncio

from pydantic import JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.tooling import LATER, Later, ToolError, tool
from contracts.policies import CompensationRule, RetryRule
from contracts.tools import Reconciliation, ToolContract, ToolInvocation, UndoRequest
from tests.histories.rounds import DONE, show
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, calls, pending_approval, script
from tests.support.waiting import eventually

QUICK = RetryRule(max_attempts=3, initial_interval=0.01, max_interval=0.02)


async def tool_retry(harness: Harness) -> Handle:
    @tool(side_effect="read", retry=QUICK)
    def flaky(invocation: ToolInvocation) -> str:
        """Fail in two ways first."""
        if invocation.attempt == 1:
            raise ToolError("unavailable", "closed", retryable=True)
        if invocation.attempt == 2:
            raise RuntimeError("lost")
        return "at last"

    async with harness.worker(scripted_agent(flaky), scripts={"main": script(calls(("flaky", {})), DONE)}):
        run = await harness.start(PROMPT)
        assert (await run.result()).tool_results[0].attempts == 3
    return run


async def compensated_effect(harness: Harness) -> Handle:
    """One seat is booked half, undone and booked; the other's undo fails."""

    @tool(side_effect="write", retry=QUICK, compensation=CompensationRule())
    def book(seat: str, invocation: ToolInvocation) -> str:
        """Book a seat."""
        if invocation.attempt == 1:
            message = "half booked"
            raise ToolError(
                "unavailable", message, retryable=True, compensation_required=True, compensation_token="undo"
            )
        return f"booked {seat}"

    @book.undo
    def unbook(request: UndoRequest) -> None:
        if request.invocation.arguments["seat"] == "1B":
            raise ToolError("conflict", "it stays booked")

    replies = script(calls(("book", {"seat": "1A"}), ("book", {"seat": "1B"})), DONE)
    async with harness.worker(scripted_agent(book), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        assert [effect.state for effect in (await run.result()).effects] == ["done", "compensation_failed"]
        await show(run, "compensation_started", "compensation_completed", "compensation_failed")
    return run


async def reconciled_effect(harness: Harness) -> Handle:
    """Two ends that nobody saw: found to be done, and not done."""

    @tool(side_effect="write", reconciles=True)
    def wire(end: str) -> str:
        """Wire money."""
        raise RuntimeError("the line went dead")

    @wire.reconcile
    def found(invocation: ToolInvocation) -> Reconciliation:
        return Reconciliation.model_validate({"state": invocation.arguments["end"]})

    replies = script(calls(*(("wire", {"end": end}) for end in ("done", "not_done"))), DONE)
    async with harness.worker(scripted_agent(wire), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        assert [effect.state for effect in (await run.result()).effects] == ["done", "failed"]
        await show(run, "effect_reconciled")
    return run


async def another_version(harness: Harness) -> Handle:
    """Approved, refused by a worker that has another version of the tool, and taken by one that has the right one."""

    @tool(side_effect="write", approval="always", name="pay")
    def pay_v1() -> str:
        """Pay."""
        return "paid"

    @tool(side_effect="write", approval="always", name="pay", version="2")
    def pay_v2() -> str:
        """Pay."""
        raise AssertionError("ran under an old consent")

    replies = {"main": script(calls(("pay", {})), DONE)}

    async def refused() -> bool:
        return any(
            event.HasField("activity_task_failed_event_attributes") for event in (await run.fetch_history()).events
        )

    async with harness.worker(scripted_agent(pay_v1), scripts=replies):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
    await run.signal("resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"})
    async with harness.worker(scripted_agent(pay_v2), scripts=replies):
        await eventually(refused)
    async with harness.worker(scripted_agent(pay_v1), scripts=replies):
        assert (await run.result()).tool_results[0].ok
    return run


class Printer:
    """Takes a job and leaves it to whoever holds its token."""

    def __init__(self) -> None:
        tokens: asyncio.Queue[bytes] = asyncio.Queue()

        @tool(side_effect="write", completes_later=True, timeout=86_400)
        async def print_out(invocation: ToolInvocation) -> Later:
            """Print."""
            tokens.put_nowait(invocation.completion_token())
            return LATER

        self.tokens = tokens
        self.agent = scripted_agent(print_out)


PRINTS = {"main": script(calls(("print_out", {})), DONE)}


async def late_tool(harness: Harness) -> Handle:
    printer = Printer()
    async with harness.worker(printer.agent, scripts=PRINTS):
        run = await harness.start(PROMPT)
        job = harness.client.get_async_activity_handle(task_token=await printer.tokens.get())
        await job.complete({"ok": True, "text": "printed"})
        assert (await run.result()).tool_results[0].text == "printed"
    return run


async def open_late_tool(harness: Harness) -> Handle:
    """The result has not come yet."""
    printer = Printer()
    async with harness.worker(printer.agent, scripts=PRINTS):
        run = await harness.start(PROMPT)
        await printer.tokens.get()
        await show(run, "tool_started")
    return run


async def foreign_tool(harness: Harness) -> Handle:
    """Calls on another task queue: a result, a failure in words, and an exception that is told as unknown."""

    @activity.defn(name="remote")
    async def remote(invocation: dict[str, JsonValue]) -> dict[str, JsonValue]:
        match invocation["arguments"]:
            case {"mode": "refuse"}:
                told = {"ok": False, "error": {"category": "conflict", "message": "it is taken"}}
                raise ApplicationError("it is taken", told, type="ToolFailed", non_retryable=True)
            case {"mode": "raise"}:
                raise RuntimeError("no idea")
        return {"ok": True, "data": {"rows": 2}}

    queue = f"{harness.task_queue}-elsewhere"
    contract = ToolContract(
        name="remote",
        description="Write.",
        input_schema={"type": "object", "properties": {"mode": {"type": "string"}}},
        side_effect="write",
        task_queue=queue,
    )
    replies = script(calls(*(("remote", {"mode": mode}) for mode in ("fine", "refuse", "raise"))), DONE)
    elsewhere = Worker(harness.client, task_queue=queue, activities=[remote])
    async with elsewhere, harness.worker(scripted_agent(contract), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        assert [effect.state for effect in (await run.result()).effects] == ["done", "failed", "unknown"]
        await show(run, "effect_unknown")
    return run


SCENARIOS = (
    tool_retry,
    compensated_effect,
    reconciled_effect,
    another_version,
    late_tool,
    open_late_tool,
    foreign_tool,
)
