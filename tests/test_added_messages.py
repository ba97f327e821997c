"""What users say while a run works: every message joins the conversation once, in order, whenever it comes."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Literal

import pytest
from pydantic import JsonValue
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowFailureError

from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import Tool, tool
from contracts.agents import AgentSpec
from contracts.messages import Message
from contracts.policies import CompensationRule
from contracts.tools import UndoRequest
from runtime.dev_server import DevServer
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Handle,
    Harness,
    calls,
    event_of,
    event_types,
    events_of,
    failure_of,
    histories,
    pending_approval,
    script,
    state_of,
    transcript_of,
)

# Three of them are as much as may wait. One of more than a megabyte the server does not take itself.
PART_BYTES = 2 * 1_048_576 // 3


class Listener:
    """A model that makes so many calls one after another, then answers; it waits at its turn number `halts_at`. It
    notes what users had said by each of its turns."""

    def __init__(self, rounds: int = 0, halts_at: int | None = None) -> None:
        self.heard: list[list[str]] = []
        self.thinking, self.go_on = asyncio.Event(), asyncio.Event()
        self._rounds = rounds
        self._halts_at = halts_at

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        turns = sum(message.role == "assistant" for message in request.messages)
        self.heard.append(said_by_users(request.messages))
        if turns == self._halts_at:
            self.thinking.set()
            await self.go_on.wait()
        if turns < self._rounds:
            return Completion("", (RawToolCall("work", "{}"),))
        return Completion(f"Answer {turns}.")


def said_by_users(messages: tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages if message.role == "user"][1:]


def worker_tool(approval: Literal["never", "always"] = "never") -> Tool:
    @tool(side_effect="read", approval=approval)
    def work() -> str:
        """Work."""
        return "worked"

    return work


def listening_agent(work: Tool) -> AgentSpec:
    return scripted_agent(work, max_rounds=200, max_tool_calls=200).model_copy(update={"model": "listener:main"})


async def add(run: Handle, *texts: str, id: str = "") -> None:
    for text in texts:
        await run.signal("add_message", {"id": id or f"id of {text}", "text": text})


async def refusals(run: Handle) -> list[JsonValue]:
    return [event.data["reason"] for event in await events_of(run) if event.type == "signal_refused"]


async def test_messages_during_a_model_call_join_at_the_next_one_in_order(harness: Harness) -> None:
    model = Listener(rounds=1, halts_at=0)
    async with harness.worker(listening_agent(worker_tool()), providers={"listener": model}):
        run = await harness.start(PROMPT)
        await model.thinking.wait()
        await add(run, "one", "two", "three")
        # The same id counts once, whatever it says.
        await add(run, "four", id="id of two")
        model.go_on.set()
        result = await run.result()
        messages = (await transcript_of(run)).messages
        events = [event.data for event in await events_of(run) if event.type == "message_added"]
    assert model.heard == [[], ["one", "two", "three"]]
    # Never between a call and its answer.
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user", "user", "user", "assistant"]
    assert events == [{"id": "id of one"}, {"id": "id of two"}, {"id": "id of three"}]
    assert result.text == "Answer 1."


async def test_a_message_during_the_final_answer_is_answered_too(harness: Harness) -> None:
    model = Listener(halts_at=0)
    async with harness.worker(listening_agent(worker_tool()), providers={"listener": model}):
        run = await harness.start(PROMPT)
        await model.thinking.wait()
        await add(run, "one more thing")
        model.go_on.set()
        result = await run.result()
        messages = (await transcript_of(run)).messages
    assert (result.text, result.rounds) == ("Answer 1.", 0)
    assert [message.text for message in messages] == ["Go.", "Answer 0.", "one more thing", "Answer 1."]


async def test_a_message_during_an_approval_wait_joins_after_the_calls_answer(harness: Harness) -> None:
    model = Listener(rounds=1)
    async with harness.worker(listening_agent(worker_tool(approval="always")), providers={"listener": model}):
        run = await harness.start(PROMPT)
        approval = await pending_approval(run)
        await add(run, "hurry")
        assert (await state_of(run)).status == "waiting_for_approval"
        await run.execute_update("decide", {"approval_id": approval.approval_id, "resolution": "approved", "by": "ann"})
        await run.result()
        messages = (await transcript_of(run)).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert model.heard == [[], ["hurry"]]


async def test_a_message_before_the_first_step_joins_after_the_prompt(harness: Harness) -> None:
    model = Listener()
    run = await harness.start(PROMPT)
    await add(run, "early")
    async with harness.worker(listening_agent(worker_tool()), providers={"listener": model}):
        await run.result()
        events = await events_of(run)
    assert model.heard == [["early"]]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_messages_that_cannot_be_taken_are_refused_and_recorded(harness: Harness) -> None:
    model = Listener(halts_at=0)
    async with harness.worker(listening_agent(worker_tool()), providers={"listener": model}):
        run = await harness.start(PROMPT)
        await model.thinking.wait()
        await run.signal("add_message", {"id": "", "text": "no id"})
        await run.signal("add_message", {"id": "blank", "text": " \n "})
        await run.signal("add_message", {"text": "no id at all"})
        # What is refused does not use up its id, nor any room.
        for letter, name in (("a", "blank"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "3")):
            await add(run, letter * PART_BYTES, id=name)
        model.go_on.set()
        await run.result()
        reasons = await refusals(run)
    assert [text[0] for text in model.heard[-1]] == ["a", "b", "c"]
    for reason, says_what in zip(reasons, ("id", "text is empty", "id", "as many"), strict=True):
        assert says_what in str(reason)


@pytest.fixture
async def short_harness(impatient: DevServer) -> AsyncIterator[Harness]:
    corner = Harness(impatient.client)
    yield corner
    await corner.check_histories()


async def test_fifty_messages_while_a_run_continues_as_new_all_arrive_once_in_order(short_harness: Harness) -> None:
    """They are sent as fast as the server takes them, from the first step on, each twice, over several executions."""
    texts = [f"message {number}" for number in range(50)]
    model = Listener(rounds=45)
    async with short_harness.worker(listening_agent(worker_tool()), providers={"listener": model}):
        run = await short_harness.start(PROMPT)
        for text in texts:
            await add(run, text)
            await add(run, text)
        result = await run.result()
        messages = (await transcript_of(run)).messages
        events = await events_of(run)
    chain = await histories(short_harness.client, run.id)
    assert len(chain) > 2
    with_messages = [history for history in chain if signalled(history.events)]
    assert len(with_messages) > 1
    assert said_by_users(messages) == texts
    assert result.rounds == 45
    sequences = [event.sequence for event in events]
    assert sequences == list(range(sequences[0], result.last_sequence + 1))


def signalled(events: Iterable[HistoryEvent]) -> bool:
    return any(event.HasField("workflow_execution_signaled_event_attributes") for event in events)


@pytest.mark.long
async def test_a_cancellation_while_a_run_continues_as_new_again_and_again_is_not_lost(short_harness: Harness) -> None:
    model = Listener(rounds=200)
    async with short_harness.worker(listening_agent(worker_tool()), providers={"listener": model}):
        run = await short_harness.start(PROMPT)

        async def keep_talking() -> None:
            for number in range(2_000):
                await add(run, f"message {number}")

        talking = asyncio.create_task(keep_talking())
        while not (await state_of(run)).previous_run_id:
            pass
        accepted = await short_harness.client.get_workflow_handle(run.id).execute_update("cancel_run", {"reason": "-"})
        talking.cancel()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        state = await state_of(run)
        events = await events_of(run)
    assert accepted["reason"] == "-"
    # Whoever goes on talking is refused, and keeps the server from closing the run for a moment.
    types = [event.type for event in events]
    end = types.index("run_cancelled")
    assert (state.status, events[end].data) == ("cancelled", {"reason": "-"})
    assert "message_added" not in types[types.index("cancel_accepted") :]
    assert set(types[end + 1 :]) <= {"signal_refused"}


async def test_a_message_to_a_run_that_is_ending_is_refused(harness: Harness) -> None:
    undoing, go_on = asyncio.Event(), asyncio.Event()

    @tool(side_effect="write", compensation=CompensationRule())
    def book() -> str:
        """Book."""
        return "booked"

    @book.undo
    async def give_back(request: UndoRequest) -> None:
        undoing.set()
        await go_on.wait()

    agent = scripted_agent(book, max_rounds=1).model_copy(update={"compensate_on": ("failed",)})
    async with harness.worker(agent, scripts={"main": script(calls(("book", {})), calls(("book", {})))}):
        run = await harness.start(PROMPT)
        await undoing.wait()
        await add(run, "too late")
        refused = await event_of(run, "signal_refused")
        go_on.set()
        error, _ = await failure_of(run)
        types = await event_types(run)
    assert error.type == "MaxRoundsExceeded"
    assert refused.data == {"name": "add_message", "reason": "the run is ending already"}
    assert "message_added" not in types


async def test_a_decision_in_the_task_that_opens_the_next_execution_is_taken(impatient: DevServer) -> None:
    """Everything that comes before the state is there waits for it, in order: a decision and a message, sent while no
    worker takes the run's next step."""
    corner = Harness(impatient.client)
    model = Listener(rounds=1)
    agent = listening_agent(worker_tool(approval="always"))
    async with corner.worker(agent, providers={"listener": model}):
        run = await corner.start(PROMPT)
        approval = await pending_approval(run)
    # Junk fills the history, so that the next step is to continue as new.
    for number in range(130):
        await run.signal("junk", number)
    async with corner.worker(agent, providers={"listener": model}):
        await add(run, "hurry")
        await run.signal(
            "resolve_approval", {"approval_id": approval.approval_id, "resolution": "approved", "by": "ann"}
        )
        await run.result()
        answers = [message.text for message in (await transcript_of(run)).messages if message.role == "tool"]
    assert len(await histories(impatient.client, run.id)) > 1
    assert (answers, model.heard[-1]) == (["worked"], ["hurry"])
    await corner.check_histories()
