"""Payloads of a million items, which a workflow task has no time to go through one by one."""

import asyncio
import json

import pytest
from pydantic import JsonValue
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import LATER, Later, tool
from contracts.effects import CompensateRunInput
from contracts.records import MalformedPayload
from contracts.tools import ToolInvocation
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, failure_of, says, script
from tests.support.tool_worker import outcomes_of, tool_worker

MILLION: JsonValue = [1] * 990_000


async def test_a_reply_of_more_calls_than_a_task_can_answer_ends_the_run_by_name(harness: Harness) -> None:
    class Talker:
        asked = 0

        async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
            self.asked += 1
            return Completion("", (RawToolCall("look", ""),) * 8_000)

    @tool(side_effect="read")
    def look() -> str:
        """Look."""
        raise AssertionError("ran a call of a reply that has too many")

    model = Talker()
    agent = scripted_agent(look).model_copy(update={"model": "talker:main"})
    async with harness.worker(agent, providers={"talker": model}):
        async with asyncio.timeout(30):
            error, _ = await failure_of(await harness.start(PROMPT))
    assert (error.type, model.asked) == ("PayloadTooLarge", 1)
    assert "8000 tool calls; at most 1000" in error.message


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{"role": "assistant", "tool_calls": [{}] * 600_000}]},
        {"options": {"compensate_on": MILLION}},
    ],
    ids=["messages", "options"],
)
async def test_input_with_a_million_mistakes_is_refused_by_the_first(
    harness: Harness, change: dict[str, object]
) -> None:
    async with harness.worker(scripted_agent(), scripts={"main": script(says("never"))}):
        async with asyncio.timeout(30):
            error, _ = await failure_of(await harness.start({**PROMPT, **change}))
    assert error.type == "InvalidInput"
    assert ".0" in error.message
    assert ".1" not in error.message


async def test_compensate_run_with_a_million_mistakes_is_refused_by_the_first(harness: Harness) -> None:
    async with harness.worker(scripted_agent(), scripts={}):
        undoing = await harness.compensate({"workflow_id": "some-run", "call_ids": MILLION})
        with pytest.raises(WorkflowFailureError) as failed:
            await undoing.result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "InvalidInput"
    assert "call_ids.0" in failed.value.cause.message


@pytest.mark.parametrize("call_ids", [["call_1"] * 10_001, ["call_" + "1" * 16]], ids=["many", "long"])
def test_calls_to_compensate_are_so_many_that_they_can_be_carried_along(call_ids: list[str]) -> None:
    with pytest.raises(MalformedPayload, match="call_ids"):
        CompensateRunInput.from_wire(json.dumps({"workflow_id": "w", "call_ids": call_ids}).encode())


async def test_an_outcome_of_a_million_items_is_cut_and_the_run_goes_on(harness: Harness) -> None:
    tokens: asyncio.Queue[bytes] = asyncio.Queue()

    @tool(side_effect="write", completes_later=True)
    async def print_out(invocation: ToolInvocation) -> Later:
        """Print."""
        tokens.put_nowait(invocation.completion_token())
        return LATER

    async with tool_worker(harness, print_out):
        run = await harness.start(PROMPT)
        await harness.client.get_async_activity_handle(task_token=await tokens.get()).complete(
            {"ok": True, "text": "All pages.", "data": MILLION, "resource_version": "7"}
        )
        async with asyncio.timeout(30):
            ended = await run.result()
        (outcome,) = await outcomes_of(run)
    assert [effect.state for effect in ended.effects] == ["done"]
    assert outcome.text.startswith('{"ok":true,"message":"All pages.","data":[1,1,1')
    assert outcome.metadata["original_bytes"] == len(
        json.dumps({"ok": True, "message": "All pages.", "data": MILLION}, separators=(",", ":"))
    )
    assert (outcome.data, outcome.resource_version) == (None, "7")
    assert len(outcome.model_dump_json()) < 262_144
