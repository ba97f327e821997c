"""Somebody else's workers that are gone when a run would undo what they did, or ask them what they did."""

import asyncio

import pytest
from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.tooling import tool
from contracts.policies import CompensationRule
from contracts.tools import ToolContract
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, event_types, failure_of, says, script
from tests.support.waiting import eventually

REPLIES = {"main": script(calls(("pay", {})), calls(("fail", {})), says("-"))}


@pytest.mark.parametrize("ok", [True, False], ids=["undo", "reconcile"])
async def test_a_run_ends_though_nobody_takes_its_undo_or_its_question(harness: Harness, ok: bool) -> None:
    go_on, answered = asyncio.Event(), asyncio.Event()
    queue = f"{harness.task_queue}-elsewhere"

    @activity.defn(name="pay")
    async def pay(invocation: dict[str, object]) -> dict[str, object]:
        if not ok:
            answered.set()
        return {"ok": ok, "error": None if ok else {"category": "unknown_outcome"}}

    @tool(side_effect="read")
    async def fail() -> str:
        """Fail."""
        await go_on.wait()
        raise RuntimeError("no")

    contract = ToolContract(
        name="pay",
        description="Pay.",
        input_schema={"type": "object", "properties": {}, "additionalProperties": False},
        side_effect="write",
        task_queue=queue,
        taken_within=0.5,
        compensation=CompensationRule() if ok else None,
        reconciles=not ok,
    )
    agent = scripted_agent(contract, fail).model_copy(update={"compensate_on": ("failed",)})
    async with harness.worker(agent, scripts=REPLIES), asyncio.timeout(20):
        run = await harness.start({**PROMPT, "options": {"on_tool_error": "fail_run"}})
        async with Worker(harness.client, task_queue=queue, activities=[pay]):

            async def paid() -> bool:
                types = await event_types(run)
                return "tool_completed" in types or answered.is_set()

            await eventually(paid)
        go_on.set()
        _, partial = await failure_of(run)
        (effect,) = partial.effects
        assert effect.state == ("compensation_failed" if ok else "unknown")
        if ok:
            undoing = await harness.compensate({"workflow_id": run.id})
            with pytest.raises(WorkflowFailureError) as failed:
                await undoing.result()
            assert isinstance(failed.value.cause, ApplicationError)
            assert failed.value.cause.type == "CompensationFailed"
