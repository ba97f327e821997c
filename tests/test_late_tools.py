"""Tools whose result comes from outside, later: nobody waits in a worker, and whatever comes becomes an outcome."""

import asyncio
from asyncio.subprocess import PIPE

import pytest
from pydantic import JsonValue
from temporalio.client import AsyncActivityHandle, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.catalog import Catalog, CatalogError
from activities.tooling import LATER, Later, Tool, tool
from contracts.outcomes import ToolOutcome
from contracts.policies import RetryRule
from contracts.tools import ToolInvocation
from runtime.dev_server import DevServer, find_temporal
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, event_types, state_of
from tests.support.tool_worker import outcomes, outcomes_of, tool_worker

# Nobody knows what is still to come after the last attempt.
ONCE = RetryRule(max_attempts=1)
PAGES: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"pages": {"type": "integer"}},
    "required": ["pages"],
}


class Printer:
    """Takes jobs as reads or writes and leaves them to whoever holds their tokens."""

    def __init__(self, timeout: float = 600) -> None:
        self.jobs: asyncio.Queue[ToolInvocation] = asyncio.Queue()

        @tool(side_effect="read", completes_later=True, timeout=timeout, retry=ONCE, output_schema=PAGES)
        async def preview(invocation: ToolInvocation) -> Later:
            """Preview."""
            self.jobs.put_nowait(invocation)
            return LATER

        @tool(side_effect="write", completes_later=True, timeout=timeout)
        async def print_out(invocation: ToolInvocation) -> Later:
            """Print."""
            self.jobs.put_nowait(invocation)
            return LATER

        self.preview = preview
        self.print_out = print_out

    async def job(self, harness: Harness) -> AsyncActivityHandle:
        """The next job, as somebody outside sees it."""
        invocation = await self.jobs.get()
        return harness.client.get_async_activity_handle(task_token=invocation.completion_token())


async def is_over(job: AsyncActivityHandle) -> None:
    """Nobody takes a result for this job any more, and trying is harmless."""
    with pytest.raises(RPCError) as refused:
        await job.complete({"ok": True, "text": "too late"})
    assert refused.value.status == RPCStatusCode.NOT_FOUND


async def test_a_result_that_comes_later_is_checked_and_bounded_as_any_other(harness: Harness) -> None:
    printer = Printer()
    async with tool_worker(harness, printer.preview):
        run = await harness.start(PROMPT)
        job = await printer.job(harness)
        await job.complete({"ok": True, "data": {"pages": 3, "log": "x" * 100_000}, "metadata": {"tray": 2}})
        result = await run.result()
        (outcome,) = await outcomes_of(run)
        await is_over(job)
    assert outcome.metadata["tray"] == 2
    assert outcome.projection is not None
    assert result.tool_results[0].truncated


async def test_waiting_holds_no_slot_of_the_worker(harness: Harness) -> None:
    """With room for one activity, another call of the same round runs meanwhile."""
    printer, looked = Printer(), asyncio.Event()

    @tool(side_effect="read")
    async def look() -> str:
        """Look."""
        looked.set()
        return "seen"

    async with tool_worker(harness, printer.preview, look, together=True, slots=1):
        run = await harness.start(PROMPT)
        job = await printer.job(harness)
        await looked.wait()
        assert (await state_of(run)).status == "running"
        await job.complete({"ok": True, "data": {"pages": 1}})
        result = await run.result()
    assert [answer.text for answer in result.tool_results] == ['{"pages":1}', "seen"]


async def test_the_temporal_cli_completes_it_by_workflow_and_call_id(harness: Harness, server: DevServer) -> None:
    printer = Printer()
    async with tool_worker(harness, printer.print_out):
        run = await harness.start(PROMPT)
        invocation = await printer.jobs.get()
        named = ["--workflow-id", run.id, "--activity-id", invocation.call_id, "--address", server.address]
        command = [str(find_temporal()), "activity", "complete", *named, "--result", '{"ok":true,"text":"printed"}']
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        _, error = await process.communicate()
        assert process.returncode == 0, error.decode()
        result = await run.result()
    assert result.tool_results[0].text == "printed"
    assert [effect.state for effect in result.effects] == ["done"]


async def test_a_second_completion_changes_nothing(harness: Harness) -> None:
    printer = Printer()
    async with tool_worker(harness, printer.print_out, calling=[("print_out", {}), ("print_out", {})]):
        run = await harness.start(PROMPT)
        first = await printer.job(harness)
        await first.complete({"ok": True, "text": "printed"})
        second = await printer.job(harness)
        # While the run waits for the next one, and after its end.
        await is_over(first)
        await second.complete({"ok": True, "text": "printed again"})
        result = await run.result()
        await is_over(second)
    assert [answer.text for answer in result.tool_results] == ["printed", "printed again"]


async def test_a_tool_may_have_its_result_at_once_after_all(harness: Harness) -> None:
    @tool(side_effect="read", completes_later=True)
    def cached(invocation: ToolInvocation) -> dict[str, int]:
        """Answer from the cache."""
        return {"pages": 7}

    async with tool_worker(harness, cached):
        (outcome,) = await outcomes(harness)
    assert outcome.data == {"pages": 7}


def nested(depth: int) -> JsonValue:
    value: JsonValue = "deep"
    for _ in range(depth):
        value = [value]
    return value


async def test_what_is_no_outcome_is_told_as_such_and_an_effect_is_unknown(harness: Harness) -> None:
    printer = Printer()
    shapes: list[object] = ["printed", None, [1, 2], {}, {"ok": "yes"}, {"ok": True, "text": 7}, b"\xff\xfe"]
    shapes += [{"ok": True, "artifacts": "a.pdf"}, {"ok": True, "data": nested(150)}, nested(150)]
    wanted: list[tuple[str, dict[str, JsonValue]]] = [(name, {}) for _ in shapes for name in ("preview", "print_out")]
    async with tool_worker(harness, printer.preview, printer.print_out, calling=wanted, together=True):
        run = await harness.start(PROMPT)
        for came in [each for shape in shapes for each in (shape, shape)]:
            await (await printer.job(harness)).complete(came)
        result = await run.result()
        errors = [outcome.error for outcome in await outcomes_of(run)]
    told = [(error.category, error.code, error.retryable) for error in errors if error]
    assert told == [("internal", "no_outcome", False), ("unknown_outcome", "no_outcome", False)] * len(shapes)
    assert {effect.state for effect in result.effects} == {"unknown"}


async def test_an_outcome_that_says_less_or_more_than_it_should(harness: Harness) -> None:
    printer = Printer()
    cases: list[tuple[dict[str, JsonValue], str, str]] = [
        ({"ok": False}, "internal", "no_reason"),
        ({"ok": True, "error": {"category": "conflict", "code": "jam"}}, "conflict", "jam"),
        ({"ok": True, "data": {"pages": "three"}}, "internal", "invalid_output"),
        ({"ok": False, "error": {"category": "unavailable", "message": "m" * 9_000}}, "unavailable", ""),
    ]
    async with tool_worker(harness, printer.preview, calling=[("preview", {}) for _ in cases]):
        run = await harness.start(PROMPT)
        for came, _, _ in cases:
            await (await printer.job(harness)).complete(came)
        await run.result()
        errors = [outcome.error for outcome in await outcomes_of(run)]
    assert [(error.category, error.code) for error in errors if error] == [case[1:] for case in cases]
    assert max(len(error.message.encode()) for error in errors if error) <= 2_000


async def test_a_failure_from_outside_carries_its_outcome(harness: Harness) -> None:
    printer = Printer()
    told = {"ok": False, "error": {"category": "conflict", "code": "jam", "message": "paper jam"}}
    async with tool_worker(harness, printer.print_out, calling=[("print_out", {}), ("print_out", {})]):
        run = await harness.start(PROMPT)
        await (await printer.job(harness)).fail(ApplicationError("paper jam", told, type="ToolFailed"))
        await (await printer.job(harness)).fail(RuntimeError("no idea"))
        result = await run.result()
        first, second = await outcomes_of(run)
    assert first.error is not None
    assert (first.error.category, first.error.code, first.error.message) == ("conflict", "jam", "paper jam")
    assert second.error is not None
    assert second.error.category == "unknown_outcome"
    assert [effect.state for effect in result.effects] == ["failed", "unknown"]


async def test_a_result_that_does_not_come_in_time(harness: Harness) -> None:
    printer = Printer(timeout=0.3)
    async with tool_worker(harness, printer.preview, printer.print_out):
        run = await harness.start(PROMPT)
        jobs = [await printer.job(harness), await printer.job(harness)]
        result = await run.result()
        for job in jobs:
            await is_over(job)
        read, write = await outcomes_of(run)
    assert read.error is not None
    assert (read.error.category, read.error.message) == ("timeout", "no answer within 0.3 s")
    assert write.error is not None
    assert write.error.category == "unknown_outcome"
    assert [effect.state for effect in result.effects] == ["unknown"]


@pytest.mark.parametrize("name", ["preview", "print_out"])
async def test_cancelling_a_run_that_waits_for_it_ends_at_once(harness: Harness, name: str) -> None:
    printer = Printer(timeout=86_400)
    async with tool_worker(harness, printer.preview, printer.print_out, calling=[(name, {})]):
        run = await harness.start(PROMPT)
        job = await printer.job(harness)
        await cancelled(run)
        await is_over(job)
        state = await state_of(run)
        assert ("effect_unknown" in await event_types(run)) == (name == "print_out")
    assert [effect.state for effect in state.effects] == (["unknown"] if name == "print_out" else [])


async def cancelled(run: Handle) -> None:
    """Cancel the run and wait for its end."""
    await run.cancel()
    async with asyncio.timeout(20):
        with pytest.raises(WorkflowFailureError):
            await run.result()


@pytest.mark.parametrize(("side_effect", "category"), [("read", "internal"), ("write", "unknown_outcome")])
async def test_later_without_saying_so_in_the_contract_is_a_named_failure(
    harness: Harness, side_effect: str, category: str
) -> None:
    async def undeclared() -> Later:
        """Promise what nobody waits for."""
        return LATER

    made: Tool = tool(side_effect=side_effect)(undeclared)  # type: ignore[arg-type]
    async with tool_worker(harness, made):
        (outcome,) = await outcomes(harness)
    assert outcome.error is not None
    assert (outcome.error.category, outcome.error.code) == (category, "not_declared")


def test_a_hook_that_what_comes_later_would_not_pass_is_refused() -> None:
    printer = Printer()

    @printer.preview.prepare_result
    def censor(outcome: ToolOutcome) -> ToolOutcome | None:
        return None

    with pytest.raises(CatalogError, match="what comes later passes no prepare_result"):
        Catalog([scripted_agent(printer.preview)])
