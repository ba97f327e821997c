"""Continuing as new, wherever it happens, changes nothing: the same run on a patient server comes to the same."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest
from pydantic import JsonValue
from temporalio import activity
from temporalio.client import WorkflowHistory

from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import Tool, tool
from contracts.agents import AgentSpec
from contracts.events import Event
from contracts.idempotency import idempotency_key
from contracts.messages import Message, Usage
from contracts.models import Price
from contracts.outcomes import ToolOutcome, failure
from contracts.policies import CompensationRule, RetryRule
from contracts.runs import AgentRunResult, AgentRunState
from contracts.tools import ToolInvocation, UndoRequest
from runtime.dev_server import DevServer
from tests.conftest import on_free_ports
from tests.support.agents import scripted_agent
from tests.support.harness import Handle, Harness, events_of, histories, state_of, transcript_of
from tests.support.waiting import eventually
from workflows.carry import Carry

SEEDS = range(2)
ROUNDS = 6
# Five events are the least that a model call takes, so that a run is asked to go on elsewhere at almost every step.
EVENTS = "13"
# What differs between any two runs.
OWN = ("approval_id", "action_digest", "expires_at", "duration_ms", "at", "previous_run_id")


@pytest.fixture(scope="module")
async def restless(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevServer]:
    """A server that suggests to continue as new after hardly anything."""
    settings = {"limit.historyCount.suggestContinueAsNew": EVENTS}
    async with on_free_ports(tmp_path_factory.mktemp("restless") / "temporal.db", dynamic_config=settings) as running:
        yield running


@dataclass
class World:
    """What the tools did, in the words of their keys."""

    made: list[tuple[str, int]] = field(default_factory=list)
    keys: dict[str, ToolInvocation] = field(default_factory=dict)
    undone: list[str] = field(default_factory=list)

    def note(self, invocation: ToolInvocation) -> None:
        self.made.append((invocation.call_id, invocation.attempt))
        self.keys[invocation.call_id] = invocation

    @property
    def tools(self) -> tuple[Tool, ...]:
        @tool(side_effect="read")
        def look(n: int, invocation: ToolInvocation) -> str:
            """Look."""
            self.note(invocation)
            return f"seen {n}"

        @tool(side_effect="read", idempotency="idempotent", retry=RetryRule(max_attempts=2, initial_interval=0.01))
        def shaky(n: int, invocation: ToolInvocation) -> ToolOutcome:
            """Look, the second time."""
            self.note(invocation)
            if activity.info().attempt == 1:
                return failure("unavailable", "not yet", retryable=True)
            return ToolOutcome(ok=True, text=f"seen {n} at last")

        @tool(side_effect="write", compensation=CompensationRule(timeout=30))
        def book(n: int, invocation: ToolInvocation) -> str:
            """Book."""
            self.note(invocation)
            return f"booked {n}"

        @tool(
            side_effect="write",
            compensation=CompensationRule(timeout=30),
            retry=RetryRule(max_attempts=2, initial_interval=0.01),
        )
        def rebook(n: int, invocation: ToolInvocation) -> ToolOutcome:
            """Book, the second time, once the first is undone."""
            self.note(invocation)
            if invocation.attempt == 1:
                half = failure("unavailable", "half done", retryable=True)
                return half.model_copy(update={"compensation_required": True})
            return ToolOutcome(ok=True, text=f"booked {n} at last")

        @tool(side_effect="write", approval="always")
        def pay(n: int, invocation: ToolInvocation) -> str:
            """Pay."""
            self.note(invocation)
            return f"paid {n}"

        @tool(side_effect="read")
        def fail(n: int, invocation: ToolInvocation) -> ToolOutcome:
            """Fail."""
            self.note(invocation)
            return failure("conflict", f"no {n} here")

        for undoable in (book, rebook):

            @undoable.undo
            def give_back(request: UndoRequest) -> None:
                self.undone.append(request.invocation.call_id)

        return look, shaky, book, rebook, pay, fail


class Planner:
    """A model whose calls follow from the prompt, a seed. Users talk to its run while it thinks: each of them twice."""

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        turn = sum(message.role == "assistant" for message in request.messages)
        dice = random.Random(f"{request.messages[0].text} {turn}")
        run = activity.client().get_workflow_handle(activity.info().workflow_id or "")
        # Even while it gives its answer; and what they said before, they say again.
        for number in (max(0, turn - 2), min(turn, ROUNDS)):
            await run.signal("add_message", {"id": f"m{number}", "text": f"message {number}"})
        usage = Usage(input_tokens=100 + turn, output_tokens=10)
        if turn >= ROUNDS:
            return Completion(f"Done after {turn} turns.", usage=usage)
        names = dice.choices(["look", "shaky", "book", "rebook", "pay", "fail", "broken"], k=dice.randint(1, 3))
        return Completion("", tuple(called(name, turn * 10 + at) for at, name in enumerate(names)), usage=usage)


def called(name: str, n: int) -> RawToolCall:
    if name == "broken":
        return RawToolCall("look", '{"n": "not a number"}')
    return RawToolCall(name, json.dumps({"n": n}))


def planners_agent(world: World) -> AgentSpec:
    return scripted_agent(*world.tools, max_rounds=ROUNDS, max_tool_calls=3 * ROUNDS).model_copy(
        update={
            "model": "planner:main",
            "prices": {"planner:main": Price(input=1.0, output=2.0)},
            "max_total_tokens": 100_000,
            "max_cost_usd": 5.0,
            "max_failures_per_tool": 100,
            "compensate_on": ("failed",),
        }
    )


@dataclass
class Told:
    """Everything that can be known of a finished run."""

    run: Handle
    world: World
    result: AgentRunResult
    state: AgentRunState
    messages: Sequence[Message]
    events: Sequence[Event]
    ledger: JsonValue
    chain: list[WorkflowHistory]


async def decide_everything(run: Handle) -> None:
    """Deny one call in three, one after the other, until the run is over. Every answer must come."""

    async def is_over() -> bool:
        state = await state_of(run)
        for pending in state.pending_approvals:
            denied = int(pending.call_id.removeprefix("call_")) % 3 == 0
            decision = {"approval_id": pending.approval_id, "resolution": "denied" if denied else "approved"}
            await run.execute_update("decide", {**decision, "by": "ann", "action_digest": pending.action_digest})
        return state.status not in ("created", "running", "waiting_for_approval")

    await eventually(is_over)


async def told(corner: Harness, seed: int) -> Told:
    """One run, from its start to its end."""
    world = World()
    agent = planners_agent(world)
    corner = Harness(corner.client)
    async with corner.worker(agent, providers={"planner": Planner()}):
        run = await corner.start({"agent": "tester", "prompt": f"seed {seed}"})
        deciding = asyncio.create_task(decide_everything(run))
        result = await run.result()
        await deciding
        state = await state_of(run)
        messages = (await transcript_of(run)).messages
        ledger: JsonValue = await run.query("ledger")
        events = await events_of(run)
    chain = await histories(corner.client, run.id)
    await corner.check_histories()
    return Told(run, world, result, state, messages, events, ledger, chain)


def plain(value: JsonValue) -> JsonValue:
    """A value without what differs between any two runs."""
    if isinstance(value, dict):
        own = {"workflow_id", "run_id", "trace_id", "idempotency_key", "last_sequence", *OWN}
        return {name: plain(each) for name, each in value.items() if name not in own}
    return [plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_run_that_continues_as_new_everywhere_comes_to_the_same(
    server: DevServer, restless: DevServer, seed: int
) -> None:
    patient, hurried = await asyncio.gather(told(Harness(server.client), seed), told(Harness(restless.client), seed))
    assert (len(patient.chain), len(hurried.chain) > ROUNDS) == (1, True)
    assert plain(hurried.result.model_dump(mode="json")) == plain(patient.result.model_dump(mode="json"))
    assert hurried.result.text == f"Done after {ROUNDS + 1} turns."
    assert hurried.messages == patient.messages
    assert plain(hurried.ledger) == plain(patient.ledger)
    # No call ran twice, and each under its own key, which its chain gives it.
    assert Counter(hurried.world.made) == Counter(patient.world.made)
    assert hurried.world.undone == patient.world.undone
    for each in (patient, hurried):
        chain = (each.run.id, each.chain[0].run_id)
        for call_id, made in each.world.keys.items():
            key = idempotency_key(chain, call_id, made.tool, made.version, made.arguments)
            assert made.idempotency_key == key
        numbers = [event.sequence for event in each.events]
        assert numbers == list(range(1, each.result.last_sequence + 1))
    # Nothing is spent twice, nor forgotten.
    uses = [
        {name: use for name, use in each.state.limits.items() if name != "deadline_seconds"}
        for each in (patient, hurried)
    ]
    assert uses[0] == uses[1]
    assert uses[0]["cost_usd"].used > 0
    assert hurried.result.rounds == ROUNDS
    # The log is the same, call by call; calls side by side may end in any order.
    assert log(hurried) == log(patient)
    left = [event.data["previous_run_id"] for event in hurried.events if event.type == "continued_as_new"]
    assert left == [history.run_id for history in hurried.chain[:-1]]


def log(of: Told) -> dict[JsonValue, list[tuple[str, str]]]:
    """What the log says of each call, and of what is no call's."""
    said: dict[JsonValue, list[tuple[str, str]]] = {}
    for event in of.events:
        if event.type != "continued_as_new":
            kept = json.dumps(plain(dict(event.data)), sort_keys=True)
            said.setdefault(event.data.get("call_id"), []).append((event.type, kept))
    return said


async def test_a_run_leaves_between_the_calls_of_one_reply(restless: DevServer) -> None:
    """Mid-turn: what is answered already goes along, and does not run again."""
    world = World()

    class Once:
        async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
            if len(request.messages) > 1:
                return Completion("Done.")
            return Completion("", tuple(called("book", n) for n in range(12)))

    corner = Harness(restless.client)
    agent = scripted_agent(*world.tools).model_copy(update={"model": "once:main"})
    async with corner.worker(agent, providers={"once": Once()}):
        run = await corner.start({"agent": "tester", "prompt": "Book twelve."})
        result = await run.result()
    given = carries(await histories(restless.client, run.id))
    answered = [len(carry.answers) for carry in given if carry.open_reply]
    assert answered == sorted(answered)
    assert len([number for number in answered if 0 < number < 12]) > 2
    assert world.made == [(f"call_{number}", 1) for number in range(1, 13)]
    assert [effect.state for effect in result.effects] == ["done"] * 12
    assert result.rounds == 1
    await corner.check_histories()


def carries(chain: Sequence[WorkflowHistory]) -> list[Carry]:
    """What each execution but the first was given."""
    inputs = [
        json.loads(history.events[0].workflow_execution_started_event_attributes.input.payloads[0].data)
        for history in chain[1:]
    ]
    return [Carry.unpack(each["carried"]) for each in inputs]
