"""R-35: a hundred calls after a long conversation. What history takes grows with what is new, not with its square."""

import base64
import random
import time

import pytest
from pydantic import JsonValue

from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import tool
from runtime.dev_server import DevServer
from tests.support.agents import scripted_agent
from tests.support.harness import Harness, attempts, histories

CALLS = 100
RESULT_BYTES = 5_000
# What a call may take beside its result, and its result once more: as the tail that the next model call is given.
CALL_MAX_BYTES = 2 * RESULT_BYTES + 5_000
# The default timeout of a workflow task, in which a worker that knows nothing of a run has to replay it.
TASK_TIMEOUT_SECONDS = 10


def text(number: int, size: int) -> str:
    """A text that does not compress well, the same for each number."""
    return base64.b64encode(random.Random(number).randbytes(size * 3 // 4)).decode()


def conversation(size: int) -> list[JsonValue]:
    """An earlier conversation of so many bytes."""
    return [
        {"role": ("user", "assistant")[number % 2], "text": text(number, 10_000)} for number in range(size // 10_000)
    ]


@tool(side_effect="read")
async def look(number: int) -> str:
    """Return 5 kB."""
    return text(1_000 + number, RESULT_BYTES)


class Looking:
    """A model that looks a hundred times, and is shown all that was said so far each time."""

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        seen = sum(message.role == "tool" for message in request.messages)
        self.shown = sum(len(message.text) for message in request.messages)
        return Completion("Seen.") if seen == CALLS else Completion("", (RawToolCall("look", f'{{"number": {seen}}}'),))


@pytest.mark.long
@pytest.mark.parametrize("size", [200_000, 800_000])
async def test_r35_a_hundred_calls_after_a_long_conversation(server: DevServer, size: int) -> None:
    harness = Harness(server.client)
    model = Looking()
    agent = scripted_agent(look, max_rounds=CALLS, max_tool_calls=CALLS).model_copy(update={"model": "looking:main"})
    async with harness.worker(agent, providers={"looking": model}):
        run = await harness.start({"agent": "tester", "messages": conversation(size), "prompt": "Look."})
        result = await run.result()
    assert (result.status, result.rounds) == ("completed", CALLS)
    # Nothing of the conversation was left out to make it fit.
    assert model.shown > size + CALLS * RESULT_BYTES * 0.99
    chain = await histories(harness.client, run.id)
    assert sum(len(attempts(history, "call_model")) for history in chain) == CALLS + 1
    total = sum(event.ByteSize() for history in chain for event in history.events)
    assert total < len(chain) * size * 1.1 + CALLS * CALL_MAX_BYTES
    # The naive way takes N times the start and the square of the rest: 44 MB for the smaller one.
    assert total < 3_000_000
    began = time.process_time()
    await harness.check_histories()
    assert time.process_time() - began < TASK_TIMEOUT_SECONDS
