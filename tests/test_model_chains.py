"""Model calls of runs that continue as new again and again: nothing of them is lost, and no key comes twice."""

import json

from pydantic import JsonValue
from temporalio.client import WorkflowHistory

from activities.hooks import Hooks
from activities.providers.interface import (
    Completion,
    CompletionRequest,
    ModelFailure,
    Publish,
    RawToolCall,
    to_nobody,
)
from activities.tooling import tool
from contracts.context import ExecutionContext
from contracts.messages import Message, ToolCall, Usage
from contracts.models import Price
from runtime.dev_server import DevServer
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, histories, state_of

ROUNDS = 24
SCHEMA: dict[str, JsonValue] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@tool(side_effect="read")
def look(x: int) -> str:
    """Look."""
    return f"seen {x}"


def block(number: int) -> dict[str, JsonValue]:
    return {"type": "thinking", "signature": f"s{number}+/=\u2028", "n": 1.0}


class Thinker:
    """A model that thinks, looks, pauses a turn, and at last answers, first wrongly. `away` says when it is not there,
    by the number of turns so far."""

    def __init__(self, name: str, away: int = 0) -> None:
        self._name = name
        self._away = away
        self.requests: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        self.requests.append(request)
        turns = sum(message.role == "assistant" for message in request.messages)
        usage = Usage(input_tokens=10, output_tokens=1)
        if self._away and turns >= self._away:
            raise ModelFailure("ModelAuthentication", "the key was revoked", usage=usage)
        opaque: tuple[JsonValue, ...] = ({"block": block(turns), "reasoning": []}, {"call": 0})
        if turns == 10:
            return Completion("", paused=True, usage=usage, opaque=({"block": block(turns), "reasoning": []},))
        if turns < ROUNDS:
            return Completion("", (RawToolCall("look", json.dumps({"x": turns})),), usage=usage, opaque=opaque)
        return Completion('{"n": 1}' if turns > ROUNDS else "Not yet.", usage=usage)


async def test_what_model_calls_left_behind_goes_along(impatient: DevServer) -> None:
    first, second = Thinker("first", away=6), Thinker("second")
    agent = scripted_agent(look, max_rounds=50).model_copy(
        update={
            "model": "first:m",
            "fallback_models": ("first:m", "second:m"),
            "prices": {"first:m": Price(input=100_000, output=0), "second:m": Price(input=200_000, output=0)},
            "max_cost_usd": 1_000.0,
        }
    )

    contexts: list[str | None] = []

    def prepare(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        contexts.append(context.tenant_id)
        return request

    def check(call: ToolCall, context: ExecutionContext) -> ToolCall:
        contexts.append(context.tenant_id)
        return call

    harness = Harness(impatient.client)
    hooks = [Hooks("tester", prepare_model_request=prepare, prepare_tool_call=check)]
    async with harness.worker(agent, providers={"first": first, "second": second}, hooks=hooks):
        run = await harness.start(
            {**PROMPT, "context": {"tenant_id": "acme"}, "options": {"output_schema": SCHEMA, "max_cost_usd": 999.0}}
        )
        result = await run.result()
        state = await state_of(run)
        chain = await histories(harness.client, run.id)
    await harness.check_histories()
    assert len(chain) > 2
    assert (result.output, state.model, state.limits["cost_usd"].max) == ({"n": 1}, "second:m", 999.0)
    # Six turns and the failure of the first model, then all others and the wrong answer.
    asked = [len(first.requests), len(second.requests)]
    assert asked == [7, ROUNDS - 6 + 2]
    assert result.usage == Usage(input_tokens=10 * sum(asked), output_tokens=sum(asked))
    assert result.cost.total == 7 * 1.0 + asked[1] * 2.0
    keys = [request["key"] for request in requests_in(chain)]
    assert keys == [f"{chain[0].run_id}/model_{number}" for number in range(1, sum(asked) + 1)]
    # One call more than rounds: the paused turn and the two answers called nothing.
    assert contexts == ["acme"] * (sum(asked) + ROUNDS - 1)
    thoughts = [blocks_of(message) for message in second.requests[-1].messages if message.role == "assistant"]
    assert thoughts == [[]] * 6 + [[block(turn)] for turn in range(6, ROUNDS)] + [[]]


def blocks_of(message: Message) -> list[JsonValue]:
    return [part["block"] for part in message.opaque if isinstance(part, dict) and "block" in part]


def requests_in(chain: list[WorkflowHistory]) -> list[dict[str, JsonValue]]:
    """The inputs of all model calls, first to last."""
    scheduled = [event.activity_task_scheduled_event_attributes for history in chain for event in history.events]
    return [json.loads(each.input.payloads[0].data) for each in scheduled if each.activity_type.name == "call_model"]
