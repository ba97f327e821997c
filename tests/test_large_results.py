"""R-31: a result over Temporal's limit of 2 MiB is bounded before it leaves the activity: made once, paid for once."""

import asyncio
import base64
from collections.abc import Callable

import pytest
from pydantic import JsonValue

from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import tool
from contracts.outcomes import OUTCOME_MAX_BYTES
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, attempts, failure_of, histories, transcript_of
from tests.support.tool_worker import outcomes_of

# The report gives a run 10 s; a machine that has much else to do, more.
LIMIT_SECONDS = 30
PART = base64.b64encode(bytes(225_000)).decode()


class Once:
    """A model that asks for the tool once, and is told what it gave."""

    def __init__(self) -> None:
        self.asked = 0

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        self.asked += 1
        return Completion("Seen.") if self.asked > 1 else Completion("", (RawToolCall("dump", "{}"),))


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: "x" * 2_097_152, 2_097_152),
        (lambda: [{"type": "image", "media_type": "image/png", "data": PART} for _ in range(10)], 3_000_521),
        (lambda: {"k": "x" * 1_900_000}, 1_900_008),
        (lambda: "\ufffd" * 700_000, 2_100_000),
    ],
    ids=["text", "images", "object", "three_bytes_each"],
)
async def test_r31_a_result_over_the_limit_is_cut_once_and_says_its_size(
    harness: Harness, make: Callable[[], JsonValue], size: int
) -> None:
    ran: list[int] = []

    @tool(side_effect="read")
    def dump() -> JsonValue:
        """Return more than one payload holds."""
        ran.append(1)
        return make()

    model = Once()
    agent = scripted_agent(dump).model_copy(update={"model": "once:main"})
    async with harness.worker(agent, providers={"once": model}):
        run = await harness.start(PROMPT)
        async with asyncio.timeout(LIMIT_SECONDS):
            result = await run.result()
        (outcome,) = await outcomes_of(run)
        told = (await transcript_of(run)).messages[2].text
    (history,) = await histories(harness.client, run.id)
    # One tool run in one attempt, and one model call to ask and one to be told.
    assert (ran, attempts(history, "dump"), attempts(history, "call_model")) == ([1], [1], [1, 1])
    assert (result.status, model.asked, result.tool_results[0].truncated) == ("completed", 2, True)
    assert outcome.metadata["original_bytes"] == size
    assert len(outcome.model_dump_json().encode()) <= OUTCOME_MAX_BYTES
    assert str(size) in told
    assert len(told.encode()) <= 65_536
    assert max(event.ByteSize() for event in history.events) < 300_000


async def test_r31_what_fits_into_history_but_not_before_the_model_is_a_query_away(harness: Harness) -> None:
    @tool(side_effect="read")
    def dump() -> str:
        """Return four times what the model reads at most."""
        return "".join(f"{number:07}," for number in range(30_000))

    model = Once()
    agent = scripted_agent(dump).model_copy(update={"model": "once:main"})
    async with harness.worker(agent, providers={"once": model}):
        run = await harness.start(PROMPT)
        await run.result()
        (outcome,) = await outcomes_of(run)
        told = (await transcript_of(run)).messages[2].text
    assert outcome.text.endswith("0029998,0029999,")
    assert len(outcome.text) == 240_000
    assert told.startswith("Warning: tool output truncated (original bytes: 240000, estimated tokens: 60000).")
    assert "To read the missing part, ask for less at once." in told


class Talker:
    """A model that says 3 MB."""

    def __init__(self) -> None:
        self.asked = 0

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        self.asked += 1
        return Completion("t" * 3_000_000)


async def test_r31_a_reply_over_the_limit_is_a_named_failure_that_is_paid_for_once(harness: Harness) -> None:
    """Words are the model's answer: there is nobody to whom a part of them would be told as if it were the whole."""
    model = Talker()
    agent = scripted_agent().model_copy(update={"model": "talker:main"})
    async with harness.worker(agent, providers={"talker": model}):
        run = await harness.start(PROMPT)
        async with asyncio.timeout(LIMIT_SECONDS):
            error, partial = await failure_of(run)
    assert (error.type, error.non_retryable, model.asked) == ("PayloadTooLarge", True, 1)
    assert "3000002 bytes; at most 1048576" in error.message
    assert partial.usage.output_tokens > 0
    (history,) = await histories(harness.client, run.id)
    assert attempts(history, "call_model") == [1]
