"""Rules of the loop that hold whatever the model does: whose ids count, what a handle is, what half a turn leaves."""

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from activities.providers.interface import (
    Completion,
    CompletionRequest,
    Delta,
    ModelFailure,
    Publish,
    RawToolCall,
    to_nobody,
)
from activities.tooling import tool
from contracts.messages import illegality
from contracts.runs import AgentRunResult
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, failure_of, pending_approval, says, script, state_of, transcript_of


@tool(side_effect="read")
def echo(x: str) -> str:
    """Echo."""
    return f"echo {x}"


@tool(side_effect="write", approval="always")
def pay() -> str:
    """Pay."""
    return "paid"


class Careless:
    """A model whose API gives no ids, the same ids twice, the same again in the next round, and calls without names."""

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        rounds = sum(message.role == "assistant" for message in request.messages)
        if rounds == 2:
            return Completion("Done.")
        ids = [None, "same", "same", ""]
        named = [RawToolCall("echo", f'{{"x":"{rounds}{index}"}}', given) for index, given in enumerate(ids)]
        return Completion("", (*named, RawToolCall("", "{}", "same")))


async def test_every_call_has_an_id_of_the_run_whatever_the_api_calls_it(harness: Harness) -> None:
    agent = scripted_agent(echo).model_copy(update={"model": "careless:any"})
    async with harness.worker(agent, providers={"careless": Careless()}):
        run = await harness.start(PROMPT)
        result = await run.result()
        messages = (await transcript_of(run)).messages
    assert [record.call_id for record in result.tool_results] == [f"call_{number}" for number in range(1, 11)]
    # Each answer is that of its own call; one without a name is told as an unknown tool.
    assert [record.text for record in result.tool_results if record.ok] == [
        f"echo {number}{index}" for number in range(2) for index in range(4)
    ]
    nameless = [record.error for record in result.tool_results if record.error]
    assert [(error.category, error.code) for error in nameless] == [("not_found", "unknown_tool")] * 2
    keys = [record.idempotency_key for record in result.tool_results if record.ok]
    assert len(set(keys)) == 8
    assert illegality(messages) is None


async def test_a_handle_is_a_name_of_a_run_and_no_owner_of_it(harness: Harness) -> None:
    """Dropping it leaves the run alone, and cancelling through it cancels that run and no other."""
    replies = script(calls(("pay", {})), says("Done."))
    async with harness.worker(scripted_agent(pay), scripts={"main": replies}):
        first, second = await harness.start(PROMPT), await harness.start(PROMPT)
        await pending_approval(first)
        approval = await pending_approval(second)
        name = second.id
        del second
        await first.cancel()
        with pytest.raises(WorkflowFailureError) as ended:
            await first.result()
        found = harness.client.get_workflow_handle(name, result_type=AgentRunResult)
        await found.signal(
            "resolve_approval", {"approval_id": approval.approval_id, "resolution": "approved", "by": "ann"}
        )
        result = await found.result()
    assert isinstance(ended.value.cause, CancelledError)
    assert (result.status, result.text) == ("completed", "Done.")


class BreaksOff:
    """A model that calls a tool, then says half of what it wants to say, and is gone for good."""

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        if not any(message.role == "assistant" for message in request.messages):
            return Completion("Let me see.", (RawToolCall("echo", '{"x":"1"}'),))
        await publish(Delta("text", "It is half"))
        raise ModelFailure("ModelUnavailable", "the connection broke", retryable=False)


async def test_a_partial_result_holds_what_was_done_and_no_half_said_text(harness: Harness) -> None:
    agent = scripted_agent(echo).model_copy(update={"model": "breaking:off"})
    async with harness.worker(agent, providers={"breaking": BreaksOff()}):
        run = await harness.start(PROMPT)
        error, partial = await failure_of(run)
        queried: AgentRunResult = await run.query("result", result_type=AgentRunResult)
        state = await state_of(run)
        messages = (await transcript_of(run)).messages
    assert error.type == "ModelUnavailable"
    assert (partial.text, partial.rounds, partial.status) == ("Let me see.", 1, "failed")
    assert [(record.tool, record.text) for record in partial.tool_results] == [("echo", "echo 1")]
    assert partial.usage == state.usage
    # The same by query, and the turn so far is readable: nothing of a sentence that was not finished.
    assert queried == partial
    assert [message.text for message in messages] == ["Go.", "Let me see.", "echo 1"]
