"""What ends a run after a model's reply and before its calls: tools to stop on, and the hook `should_stop`."""

from collections.abc import Mapping
from typing import Any

import pytest

from activities.hooks import Hooks, Proposed
from activities.providers.scripted import Script
from activities.tooling import tool
from contracts.agents import AgentSpec
from contracts.context import ExecutionContext
from contracts.messages import ToolCall, illegality
from contracts.runs import AgentRunResult
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Handle,
    Harness,
    attempts,
    calls,
    event_types,
    events_of,
    failure_of,
    histories,
    says,
    script,
    transcript_of,
)

RAN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@tool(side_effect="write", approval="always")
def hand_over(to: str) -> str:
    """Hand the case over to a person."""
    RAN.append(f"hand over to {to}")
    return "handed over"


@tool(side_effect="read")
def look(x: str = "") -> str:
    """Look."""
    RAN.append(f"look {x}")
    return "seen"


HAND_OVER = calls(("look", {"x": "1"}), ("hand_over", {"to": "ann"}), text="This is for Ann.")


def stopping(*tools: str, **settings: int) -> AgentSpec:
    return scripted_agent(look, hand_over, **settings).model_copy(update={"stop_on_tools": tools})


async def ended(
    harness: Harness, agent: AgentSpec, replies: Script, options: Mapping[str, Any] | None = None, *hooks: Hooks
) -> tuple[Handle, AgentRunResult, list[str]]:
    """A run that has completed, its result, and the types of its events."""
    async with harness.worker(agent, scripts={"main": replies}, hooks=hooks):
        run = await harness.start({**PROMPT, "options": options or {}})
        return run, await run.result(), await event_types(run)


@pytest.mark.parametrize("source", ["agent", "options"])
async def test_a_run_completes_before_the_calls_of_a_reply_that_calls_a_tool_to_stop_on(
    harness: Harness, source: str
) -> None:
    agent = stopping(*(["hand_over"] if source == "agent" else []))
    options = {"stop_on_tools": ["hand_over"]} if source == "options" else {}
    async with harness.worker(agent, scripts={"main": script(HAND_OVER, says("never"))}):
        run = await harness.start({**PROMPT, "options": options})
        result = await run.result()
        types = await event_types(run)
        completed = (await events_of(run))[-1]
        messages = (await transcript_of(run)).messages
    assert (result.status, result.text) == ("completed", "This is for Ann.")
    assert result.stop is not None
    assert result.stop.reason == "stop_on_tools: hand_over"
    # Whoever started the run does the rest: all of the reply's calls are told, in order.
    assert [(call.tool, call.arguments) for call in result.stop.calls] == [
        ("look", {"x": "1"}),
        ("hand_over", {"to": "ann"}),
    ]
    assert (RAN, result.rounds) == ([], 0)
    assert (completed.type, completed.data["stop"]) == ("run_completed", "stop_on_tools: hand_over")
    assert not {"approval_requested", "tool_proposed", "tool_started"} & set(types)
    # What the run leaves is a legal conversation, which another one may go on with.
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool"]
    assert illegality(messages) is None
    assert [(record.error.code, record.attempts) for record in result.tool_results if record.error] == [
        ("stopped", 0)
    ] * 2


async def test_a_conversation_that_was_stopped_can_be_gone_on_with(harness: Harness) -> None:
    agent = stopping("hand_over")
    async with harness.worker(agent, scripts={"main": script(HAND_OVER, says("Ann has it."))}):
        first = await harness.start(PROMPT)
        await first.result()
        messages = [message.model_dump(mode="json") for message in (await transcript_of(first)).messages]
        second = await harness.start({"agent": "tester", "messages": messages, "prompt": "And now?"})
        assert (await second.result()).text == "Ann has it."


async def test_a_call_that_could_not_run_stops_nothing(harness: Harness) -> None:
    replies = script(calls(("hand_over", {"who": "ann"})), calls(("hand_over", {"to": "ann"})), says("never"))
    _, result, types = await ended(harness, stopping("hand_over"), replies)
    # The first one was the model's to mend; the second one could have run.
    assert [record.error.category for record in result.tool_results if record.error] == ["invalid_input", "cancelled"]
    assert result.stop is not None
    assert [call.arguments for call in result.stop.calls] == [{"to": "ann"}]
    assert types.count("model_started") == 2


async def test_a_run_that_has_used_its_rounds_stops_all_the_same(harness: Harness) -> None:
    agent = stopping("hand_over", max_rounds=1, max_tool_calls=1)
    _, result, _ = await ended(harness, agent, script(calls(("look", {})), HAND_OVER))
    assert (result.status, result.rounds, RAN) == ("completed", 1, ["look "])


async def test_calls_too_large_to_repeat_are_left_out_of_the_result_and_stand_in_the_transcript(
    harness: Harness,
) -> None:
    large = "x" * 70_000
    async with harness.worker(stopping("hand_over"), scripts={"main": script(calls(("hand_over", {"to": large})))}):
        run = await harness.start(PROMPT)
        result = await run.result()
        messages = (await transcript_of(run)).messages
    assert result.stop is not None
    assert result.stop.calls == ()
    assert messages[1].tool_calls[0].arguments == {"to": large}


@pytest.mark.parametrize("source", ["agent", "options"])
async def test_a_tool_to_stop_on_that_the_agent_lacks_is_refused(harness: Harness, source: str) -> None:
    if source == "agent":
        with pytest.raises(ValueError, match="stop_on_tools names 'hnad_over', which is no tool of this agent"):
            AgentSpec.model_validate({**scripted_agent(look).model_dump(), "stop_on_tools": ("hnad_over",)})
        return
    async with harness.worker(stopping(), scripts={"main": script(HAND_OVER)}):
        error, _ = await failure_of(await harness.start({**PROMPT, "options": {"stop_on_tools": ["hnad_over"]}}))
    assert error.type == "InvalidInput"
    assert "options.stop_on_tools names 'hnad_over'" in error.message


# -- the hook ------------------------------------------------------------------------------------------------------


class Asked:
    """A hook `should_stop` that answers with these, one after the other, and keeps what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.proposed: list[Proposed] = []
        self.context: ExecutionContext | None = None
        self._answers = list(answers)

    def __call__(self, proposed: Proposed, context: ExecutionContext) -> Any:
        self.proposed.append(proposed)
        self.context = context
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answer", "reason"), [(True, "should_stop"), ("a person is waiting", "should_stop: a person is waiting")]
)
async def test_a_hook_ends_the_run_before_the_calls_of_a_reply(harness: Harness, answer: object, reason: str) -> None:
    asked = Asked(answer)
    hooks = [Hooks("tester", should_stop=asked)]
    async with harness.worker(stopping(), scripts={"main": script(HAND_OVER, says("never"))}, hooks=hooks):
        run = await harness.start({**PROMPT, "context": {"tenant_id": "acme"}})
        result = await run.result()
        types = await event_types(run)
        messages = (await transcript_of(run)).messages
    assert result.stop is not None
    assert (result.status, result.stop.reason, RAN) == ("completed", reason, [])
    assert [call.tool for call in result.stop.calls] == ["look", "hand_over"]
    assert "approval_requested" not in types
    assert illegality(messages) is None
    (proposed,) = asked.proposed
    assert (proposed.text, [call.tool for call in proposed.calls]) == ("This is for Ann.", ["look", "hand_over"])
    assert asked.context is not None
    assert asked.context.tenant_id == "acme"


@pytest.mark.parametrize("answer", [False, "", "  "])
async def test_a_hook_that_gives_no_reason_lets_the_run_go_on(harness: Harness, answer: object) -> None:
    hooks = Hooks("tester", should_stop=Asked(answer))
    _, result, _ = await ended(harness, stopping(), script(calls(("look", {})), says("Done.")), {}, hooks)
    assert (result.stop, result.text, RAN) == (None, "Done.", ["look "])


async def test_a_hook_may_be_asynchronous(harness: Harness) -> None:
    async def think(proposed: Proposed, context: ExecutionContext) -> str:
        return f"{len(proposed.calls)} calls are enough"

    _, result, _ = await ended(harness, stopping(), script(HAND_OVER), {}, Hooks("tester", should_stop=think))
    assert result.stop is not None
    assert result.stop.reason == "should_stop: 2 calls are enough"


async def test_a_hook_that_raises_is_asked_again_and_the_model_is_not(harness: Harness) -> None:
    asked = Asked(OSError("the policy service is away"), True)
    hooks = Hooks("tester", should_stop=asked)
    run, result, types = await ended(harness, stopping(), script(HAND_OVER), {}, hooks)
    assert result.stop is not None
    assert (len(asked.proposed), types.count("model_started")) == (2, 1)
    (history,) = await histories(harness.client, run.id)
    assert list(attempts(history, "review_calls")) == [2]


@pytest.mark.parametrize("nonsense", [None, 1, ["stop"], {"stop": True}])
async def test_an_answer_that_is_neither_yes_no_nor_a_text_ends_the_run_and_no_call_runs(
    harness: Harness, nonsense: object
) -> None:
    asked = Asked(nonsense)
    hooks = [Hooks("tester", should_stop=asked)]
    async with harness.worker(stopping(), scripts={"main": script(calls(("look", {})))}, hooks=hooks):
        error, _ = await failure_of(await harness.start(PROMPT))
    assert error.type == "InternalError"
    assert "should_stop of agent tester returned neither a bool nor a text" in error.message
    assert (RAN, len(asked.proposed)) == ([], 1)


@pytest.mark.parametrize("stops", [True, False])
async def test_it_is_asked_before_the_calls_are_prepared(harness: Harness, stops: bool) -> None:
    order: list[str] = []

    def should_stop(proposed: Proposed, context: ExecutionContext) -> bool:
        order.append("should_stop")
        return stops

    def prepare(call: ToolCall, context: ExecutionContext) -> ToolCall:
        order.append("prepare_tool_call")
        return call

    hooks = Hooks("tester", should_stop=should_stop, prepare_tool_call=prepare)
    replies = script(calls(("look", {})), says("Done."))
    await ended(harness, stopping(), replies, {}, hooks)
    assert order == (["should_stop"] if stops else ["should_stop", "prepare_tool_call"])


async def test_it_is_asked_about_a_reply_whose_calls_are_all_invalid(harness: Harness) -> None:
    asked = Asked("it does not know how to call")
    replies = script(calls(("hand_over", {"who": "ann"}), text="Hm."), says("never"))
    async with harness.worker(stopping(), scripts={"main": replies}, hooks=[Hooks("tester", should_stop=asked)]):
        run = await harness.start(PROMPT)
        result = await run.result()
        messages = (await transcript_of(run)).messages
    assert asked.proposed == [Proposed("Hm.", ())]
    assert result.stop is not None
    assert (result.stop.reason, result.stop.calls) == ("should_stop: it does not know how to call", ())
    assert illegality(messages) is None


async def test_a_tool_to_stop_on_is_looked_at_first(harness: Harness) -> None:
    asked = Asked("never asked")
    hooks = Hooks("tester", should_stop=asked)
    _, result, _ = await ended(harness, stopping("hand_over"), script(HAND_OVER), {}, hooks)
    assert result.stop is not None
    assert (result.stop.reason, asked.proposed) == ("stop_on_tools: hand_over", [])


async def test_an_agent_without_such_hooks_has_no_review(harness: Harness) -> None:
    run, _, _ = await ended(harness, stopping(), script(calls(("look", {})), says("Done.")))
    (history,) = await histories(harness.client, run.id)
    assert list(attempts(history, "review_calls")) == []
    assert list(attempts(history, "look")) == [1]
