"""Hooks that raise, hang, are missing, return nonsense or change what they were given harm no run and no worker."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from activities.hooks import Denied, Hooks
from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import tool
from contracts.context import ExecutionContext
from contracts.messages import Message, ToolCall
from contracts.models import ModelSettings
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, event_types, failure_of, pending_approval, says, script
from tests.support.waiting import eventually
from tests.test_hooks import Listener, hooked, look

PAID: list[int] = []


@tool(side_effect="write", approval="always")
def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return f"paid {amount}"


@pytest.mark.parametrize("in_thread", [True, False])
@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
async def test_whatever_a_hook_raises_it_is_asked_again(
    harness: Harness, error: type[BaseException], in_thread: bool
) -> None:
    asked = list[int]()

    def moody(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        asked.append(1)
        if len(asked) == 1:
            raise error
        return request

    async def moody_here(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        return moody(request, context)

    async with hooked(harness, moody if in_thread else moody_here) as (run, model):
        assert (await run.result()).text == "Done."
    assert (len(asked), len(model.requests)) == (2, 1)


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_hook_that_does_not_answer_is_given_up_and_asked_again(harness: Harness, in_thread: bool) -> None:
    asked, over = list[int](), threading.Event()

    def stuck(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        asked.append(1)
        if len(asked) == 1:
            over.wait()
        return request

    async def stuck_here(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        asked.append(1)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return request

    hooks = Hooks("tester", prepare_model_request=stuck if in_thread else stuck_here, timeout_seconds=0.1)
    model = Listener()
    agent = scripted_agent().model_copy(update={"model": "listener:any"})
    async with harness.worker(agent, providers={"listener": model}, hooks=[hooks]):
        assert (await (await harness.start(PROMPT)).result()).text == "Done."
    over.set()
    assert (len(asked), len(model.requests)) == (2, 1)


def bad_settings() -> ModelSettings:
    return ModelSettings().model_copy(update={"max_output_tokens": 0})


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda request: "a text",
        lambda request: replace(request, instructions=None),
        lambda request: replace(request, messages=None),
        lambda request: replace(request, messages=()),
        lambda request: replace(request, messages=({"role": "user", "text": "Go."},)),
        lambda request: replace(request, messages=request.messages[0].model_copy(update={"text": None})),
        lambda request: replace(request, messages=(Message(role="user").model_copy(update={"text": None}),)),
        lambda request: replace(request, tools=None),
        lambda request: replace(request, settings=None),
        lambda request: replace(request, settings=bad_settings()),
        lambda request: replace(request, web_search=True),
        lambda request: request.tools[0].input_schema.clear() or request,
    ],
)
async def test_what_is_no_legal_request_ends_the_run_at_once_and_unpaid(
    harness: Harness, spoilt: Callable[[CompletionRequest], CompletionRequest]
) -> None:
    asked = list[int]()

    def hook(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        asked.append(1)
        return spoilt(request)

    async with hooked(harness, hook) as (run, model):
        error, _ = await failure_of(run)
    assert (error.type, len(asked), model.requests) == ("InternalError", 1, [])


async def test_a_hook_that_changes_what_it_is_given_changes_nothing_else(harness: Harness) -> None:
    """What a worker holds of a run serves its later requests, too."""

    def redact(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        for message in request.messages:
            for call in message.tool_calls:
                call.arguments.clear()
        return replace(request, tools=())

    earlier = [
        {"role": "user", "text": "Look."},
        {"role": "assistant", "tool_calls": [{"call_id": "c", "tool": "look", "arguments": {"x": "secret"}}]},
        {"role": "tool", "call_id": "c", "text": "seen"},
    ]
    seen: list[CompletionRequest] = []

    def redact_once(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        seen.append(replace(request, messages=tuple(each.model_copy(deep=True) for each in request.messages)))
        if len(seen) == 1:
            redact(request, context)
            raise OSError("asked again after the damage")
        return request

    async with hooked(harness, redact_once, messages=earlier) as (run, _):
        await run.result()
    assert seen[0].messages == seen[1].messages


async def test_a_tool_that_was_taken_away_cannot_be_called(harness: Harness) -> None:
    def without_tools(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        return replace(request, tools=())

    replies = script(calls(("look", {})), says("Done."))
    hooks = Hooks("tester", prepare_model_request=without_tools)
    async with harness.worker(scripted_agent(look), scripts={"main": replies}, hooks=[hooks]):
        result = await (await harness.start(PROMPT)).result()
    assert result.tool_results[0].error is not None
    assert (result.tool_results[0].error.code, result.tool_results[0].attempts) == ("unknown_tool", 0)


async def test_a_tool_that_was_taken_away_is_not_forced(harness: Harness) -> None:
    def without_tools(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        return replace(request, tools=request.tools[1:])

    model = Listener()
    agent = scripted_agent(look, pay).model_copy(
        update={"model": "listener:any", "settings": ModelSettings(tool_choice="look")}
    )
    hooks = Hooks("tester", prepare_model_request=without_tools)
    async with harness.worker(agent, providers={"listener": model}, hooks=[hooks]):
        await (await harness.start(PROMPT)).result()
    assert [(each.name, model.requests[0].settings.tool_choice) for each in model.requests[0].tools] == [
        ("pay", "auto")
    ]


class Payer(Listener):
    """A model that pays first."""

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        await super().complete(request, publish)
        return Completion("Done.") if len(self.requests) > 1 else Completion("", (RawToolCall("pay", '{"amount": 1}'),))


async def test_a_worker_without_the_hook_sends_nothing_in_its_place(harness: Harness) -> None:
    def redact(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        return replace(request, instructions="Redacted.")

    hooks = Hooks("tester", prepare_model_request=redact)
    agent = scripted_agent(pay).model_copy(update={"model": "payer:any"})
    model = Payer()
    async with harness.worker(agent, providers={"payer": model}, hooks=[hooks]):
        run = await harness.start(PROMPT)
        approval = await pending_approval(run)
    await run.signal("resolve_approval", {"approval_id": approval.approval_id, "resolution": "approved", "by": "ann"})
    async with harness.worker(agent, providers={"payer": model}):
        await run.query("state")

        async def refused() -> bool:
            pending = (await run.describe()).raw_description.pending_activities
            return any("has no prepare_model_request" in activity.last_failure.message for activity in pending)

        await eventually(refused)
    async with harness.worker(agent, providers={"payer": model}, hooks=[hooks]):
        await run.result()
    assert [request.instructions for request in model.requests] == ["Redacted.", "Redacted."]


@pytest.mark.parametrize(
    ("answer", "type"),
    [
        (lambda call: None, "InternalError"),
        (lambda call: Denied(5), "InternalError"),  # type: ignore[arg-type]  # the mistake under test
        (lambda call: call.model_copy(update={"call_id": "call_9"}), "InternalError"),
        (lambda call: call.model_copy(update={"tool": "pay"}), "InternalError"),
        (lambda call: call.model_copy(update={"arguments": "x"}), "InternalError"),
        (lambda call: call.model_copy(update={"arguments": {"x": object()}}), "InternalError"),
        (lambda call: call.model_copy(update={"arguments": {"x": "y" * 1_100_000}}), "PayloadTooLarge"),
    ],
)
async def test_what_is_no_answer_about_a_call_ends_the_run_at_once(
    harness: Harness, answer: Callable[[ToolCall], ToolCall | Denied], type: str
) -> None:
    asked = list[int]()

    def hook(call: ToolCall, context: ExecutionContext) -> ToolCall | Denied:
        asked.append(1)
        return answer(call)

    replies = script(calls(("look", {"x": "1"})), says("Done."))
    hooks = Hooks("tester", prepare_tool_call=hook)
    async with harness.worker(scripted_agent(look), scripts={"main": replies}, hooks=[hooks]):
        error, _ = await failure_of(await harness.start(PROMPT))
    assert (error.type, len(asked)) == (type, 1)


async def test_arguments_that_were_changed_in_place_are_validated_as_others_are(harness: Harness) -> None:
    def spoil(call: ToolCall, context: ExecutionContext) -> ToolCall:
        call.arguments["x"] = 5
        return call

    replies = script(calls(("look", {"x": "1"})), says("Done."))
    hooks = Hooks("tester", prepare_tool_call=spoil)
    async with harness.worker(scripted_agent(look), scripts={"main": replies}, hooks=[hooks]):
        run = await harness.start(PROMPT)
        result = await run.result()
        types = await event_types(run)
    assert result.tool_results[0].error is not None
    assert result.tool_results[0].error.category == "invalid_input"
    assert ("tool_invalid" in types, "tool_started" in types) == (True, False)


def test_a_hook_has_some_time() -> None:
    with pytest.raises(ValueError, match="timeout_seconds"):
        Hooks("tester", timeout_seconds=0)
