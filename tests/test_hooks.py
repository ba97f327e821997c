"""What an application decides while its agent runs: requests prepared or refused, calls changed or denied."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from activities.catalog import Catalog, CatalogError
from activities.hooks import Denied, Hooks, PrepareModelRequest
from activities.providers.interface import Completion, CompletionRequest, Publish, to_nobody
from activities.tooling import tool
from contracts.agents import AgentSpec
from contracts.context import ExecutionContext
from contracts.messages import Message, ToolCall
from contracts.tools import ToolContract, ToolInvocation
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Handle,
    Harness,
    calls,
    event_types,
    failure_of,
    pending_approval,
    says,
    script,
    transcript_of,
)

PAID: list[int] = []


@tool(side_effect="write", approval="always")
def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return f"paid {amount}"


@tool(side_effect="read")
def look(x: str = "") -> str:
    """Look."""
    return f"seen {x}"


class Listener:
    """A model that keeps what it was sent and says "Done."."""

    def __init__(self) -> None:
        self.requests: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        self.requests.append(request)
        return Completion("Done.")


@asynccontextmanager
async def hooked(
    harness: Harness, prepare: PrepareModelRequest, **run_input: object
) -> AsyncIterator[tuple[Handle, Listener]]:
    """A run of an agent with this hook, and the model it talks to."""
    model = Listener()
    agent = scripted_agent(look, pay).model_copy(update={"model": "listener:any"})
    hooks = Hooks("tester", prepare_model_request=prepare)
    async with harness.worker(agent, providers={"listener": model}, hooks=[hooks]):
        yield await harness.start({**PROMPT, **run_input}), model


async def test_a_request_may_be_prepared_with_the_runs_context(harness: Harness) -> None:
    def prepare(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        hint = Message(role="user", text=f"Speak {context.locale}.")
        return replace(request, messages=(hint, *request.messages), tools=request.tools[:1])

    async with hooked(harness, prepare, context={"locale": "de-AT"}) as (run, model):
        await run.result()
        remembered = (await transcript_of(run)).messages
    assert [message.text for message in model.requests[0].messages] == ["Speak de-AT.", "Go."]
    assert [each.name for each in model.requests[0].tools] == ["look"]
    # What the model reads in one request is not what the run remembers.
    assert [message.text for message in remembered] == ["Go.", "Done."]


async def test_a_refused_request_ends_the_run_before_the_model_is_paid(harness: Harness) -> None:
    async def refuse(request: CompletionRequest, context: ExecutionContext) -> None:
        return None

    async with hooked(harness, refuse) as (run, model):
        error, _ = await failure_of(run)
    assert (error.type, model.requests) == ("ModelRefused", [])


async def test_a_request_hook_cannot_add_tools_or_change_the_model(harness: Harness) -> None:
    stray = ToolContract(name="stray", description="d", input_schema={"type": "object"}, side_effect="write")

    def widen(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        return replace(request, tools=(*request.tools, stray))

    async with hooked(harness, widen) as (run, model):
        error, _ = await failure_of(run)
    assert (error.type, model.requests) == ("InternalError", [])


async def test_a_request_hook_cannot_take_the_runs_context_away(harness: Harness) -> None:
    seen, told = list[str](), list[str]()

    @tool(side_effect="read")
    def who(invocation: ToolInvocation) -> str:
        """Say who asks."""
        told.append(f"{invocation.context.tenant_id} {invocation.context.metadata}")
        return "you"

    def erase(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        seen.append(f"{context.tenant_id} {context.metadata}")
        context.metadata.clear()
        return replace(request, instructions="", messages=(Message(role="user", text="Hi."), *request.messages[1:]))

    replies = script(calls(("who", {})), says("Done."))
    async with harness.worker(
        scripted_agent(who), scripts={"main": replies}, hooks=[Hooks("tester", prepare_model_request=erase)]
    ):
        run = await harness.start({**PROMPT, "context": {"tenant_id": "acme", "metadata": {"ticket": "T-1"}}})
        await run.result()
        remembered = (await transcript_of(run)).messages
        frozen: AgentSpec = await run.query("agent", result_type=AgentSpec)
    assert seen == ["acme {'ticket': 'T-1'}"] * 2
    assert told == ["acme {'ticket': 'T-1'}"]
    assert (remembered[0].text, frozen.instructions) == ("Go.", "Test.")


async def test_a_hook_that_raises_is_asked_again(harness: Harness) -> None:
    asked = list[int]()

    def moody(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        asked.append(1)
        if len(asked) == 1:
            raise OSError("the policy service is away")
        return request

    async with hooked(harness, moody) as (run, model):
        assert (await run.result()).text == "Done."
    assert (len(asked), len(model.requests)) == (2, 1)


async def test_a_changed_call_is_what_is_shown_approved_run_and_kept(harness: Harness) -> None:
    def halve(call: ToolCall, context: ExecutionContext) -> ToolCall:
        return call.model_copy(update={"arguments": {"amount": 5}})

    PAID.clear()
    hooks = Hooks("tester", prepare_tool_call=halve)
    replies = script(calls(("pay", {"amount": 10})), says("Done."))
    async with harness.worker(scripted_agent(pay), scripts={"main": replies}, hooks=[hooks]):
        run = await harness.start(PROMPT)
        approval = await pending_approval(run)
        assert approval.arguments == {"amount": 5}
        await run.signal(
            "resolve_approval",
            {"approval_id": approval.approval_id, "resolution": "approved", "by": "ann"},
        )
        await run.result()
        messages = (await transcript_of(run)).messages
    assert PAID == [5]
    assert messages[1].tool_calls[0].arguments == {"amount": 5}


async def test_a_denied_call_is_told_to_the_model_and_the_others_run(harness: Harness) -> None:
    async def check(call: ToolCall, context: ExecutionContext) -> ToolCall | Denied:
        return Denied("not on Sundays") if call.tool == "pay" else call

    PAID.clear()
    replies = script(calls(("pay", {"amount": 10}), ("look", {"x": "1"})), says("Done."))
    async with harness.worker(
        scripted_agent(pay, look), scripts={"main": replies}, hooks=[Hooks("tester", prepare_tool_call=check)]
    ):
        run = await harness.start(PROMPT)
        result = await run.result()
        types = await event_types(run)
    denied, seen = result.tool_results
    assert denied.error is not None
    assert (denied.error.category, denied.error.code, denied.error.message) == (
        "permission_denied",
        "denied",
        "not on Sundays",
    )
    assert (seen.text, PAID) == ("seen 1", [])
    assert "approval_requested" not in types


async def test_changed_arguments_are_validated_again(harness: Harness) -> None:
    def spoil(call: ToolCall, context: ExecutionContext) -> ToolCall:
        return call.model_copy(update={"arguments": {"amount": "all of it"}})

    PAID.clear()
    replies = script(calls(("pay", {"amount": 10})), says("Done."))
    hooks = Hooks("tester", prepare_tool_call=spoil)
    async with harness.worker(scripted_agent(pay), scripts={"main": replies}, hooks=[hooks]):
        result = await (await harness.start(PROMPT)).result()
    assert result.tool_results[0].error is not None
    assert (result.tool_results[0].error.category, PAID) == ("invalid_input", [])


def test_hooks_are_for_agents_that_there_are_and_one_each() -> None:
    with pytest.raises(CatalogError, match="hooks for agent 'nobody': there is no such agent"):
        Catalog([scripted_agent()], hooks=[Hooks("nobody")])
    with pytest.raises(CatalogError, match="'tester' has two Hooks"):
        Catalog([scripted_agent()], hooks=[Hooks("tester"), Hooks("tester", prepare_tool_call=lambda call, _: call)])
