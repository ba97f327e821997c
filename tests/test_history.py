"""History stays small, whatever the length of the run, and a run outlives the server's limits by continuing as new."""

import base64
import random
from collections.abc import AsyncIterator

import pytest
from temporalio.client import WorkflowHistory

from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import tool
from contracts.agents import AgentSpec
from contracts.policies import OutputLimits
from contracts.transcripts import TranscriptPage
from runtime.dev_server import DevServer
from tests.support.agents import scripted_agent
from tests.support.harness import (
    Harness,
    event_types,
    events_of,
    failure_of,
    histories,
    pending_approval,
    state_of,
)

PROMPT = {"agent": "tester", "prompt": "Read them all."}


def page_of_text(number: int, size: int = 8_192) -> str:
    """A page that does not compress well, the same for each number."""
    return base64.b64encode(random.Random(number).randbytes(size * 3 // 4)).decode()


@tool(side_effect="read")
def read_page(number: int) -> str:
    """Read one page of 8 KB."""
    return page_of_text(number)


class Reader:
    """A model that reads so many pages, and checks that it is shown every one it has read so far."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.requests = 0

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        self.requests += 1
        answers = [message.text for message in request.messages if message.role == "tool"]
        assert answers == [page_of_text(number) for number in range(len(answers))]
        if len(answers) == self.pages:
            return Completion(f"{len(answers)} pages read")
        return Completion("", (RawToolCall("read_page", f'{{"number": {len(answers)}}}'),))


def reading_agent(pages: int) -> AgentSpec:
    return scripted_agent(read_page, max_rounds=pages, max_tool_calls=pages).model_copy(update={"model": "reader:main"})


def bytes_by_round(history: WorkflowHistory) -> list[int]:
    """Bytes that each round added: from one model call's scheduling to the next one's."""
    sizes: list[int] = []
    total = 0
    for event in history.events:
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == "call_model":
            sizes.append(total)
            total = 0
        total += event.ByteSize()
    return sizes[1:]


async def test_bytes_a_round_stay_flat_over_thirty_rounds_of_8_kb(harness: Harness) -> None:
    agent = reading_agent(30)
    async with harness.worker(agent, providers={"reader": Reader(30)}):
        run = await harness.start(PROMPT)
        assert (await run.result()).text == "30 pages read"
    (history,) = await histories(harness.client, run.id)
    sizes = bytes_by_round(history)
    assert len(sizes) == 30
    early, late = sum(sizes[:6]) / 6, sum(sizes[-6:]) / 6
    assert late < early * 1.05
    # A round is one result of 8 KB and the events around it.
    assert late < 8_192 + 4_096


async def test_a_worker_that_knows_nothing_of_a_run_goes_on_with_it(harness: Harness) -> None:
    """Each round is made by a worker of its own, which asks the run for the transcript."""
    agent, model = reading_agent(3), Reader(3)
    run = await harness.start({**PROMPT, "options": {"approve": "all"}})
    for number in range(1, 4):
        async with harness.worker(agent, providers={"reader": model}):
            request = await pending_approval(run)
            assert request.call_id == f"call_{number}"
        await run.signal(
            "resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"}
        )
    async with harness.worker(agent, providers={"reader": model}):
        assert (await run.result()).text == "3 pages read"
    assert model.requests == 4


# Three executions, on a server that wants a run to continue as new after ten.
ROUNDS = 24


@pytest.fixture
async def short_harness(impatient: DevServer) -> AsyncIterator[Harness]:
    corner = Harness(impatient.client)
    yield corner
    await corner.check_histories()


async def test_a_run_continues_as_new_between_rounds_and_nothing_is_lost(short_harness: Harness) -> None:
    agent, model = reading_agent(ROUNDS), Reader(ROUNDS)
    async with short_harness.worker(agent, providers={"reader": model}):
        run = await short_harness.start(PROMPT)
        result = await run.result()
        state = await state_of(run)
        events = await events_of(run)
        page = await run.query("transcript", {"start": 0, "max_bytes": 100}, result_type=TranscriptPage)
        types = await event_types(run)
    chain = await histories(short_harness.client, run.id)
    assert len(chain) > 2
    assert (result.text, result.rounds) == (f"{ROUNDS} pages read", ROUNDS)
    assert model.requests == ROUNDS + 1
    assert state.limits["tool_calls"].used == ROUNDS
    assert state.previous_run_id is not None
    assert (page.messages[0].text, page.total, page.first_available) == ("Read them all.", 2 + 2 * ROUNDS, 0)
    # Call ids, and so idempotency keys, go on over the chain; events have no gap.
    shown = [f"call_{number}" for number in range(1 + result.tool_results_omitted, ROUNDS + 1)]
    assert [record.call_id for record in result.tool_results] == shown
    sequences = [event.sequence for event in events]
    assert sequences == list(range(sequences[0], result.last_sequence + 1))
    assert types.count("continued_as_new") == len(chain) - 1
    assert all(sum(event.ByteSize() for event in history.events) < 2_000_000 for history in chain)


async def test_limits_are_not_reset_by_continuing_as_new(short_harness: Harness) -> None:
    agent, model = reading_agent(15), Reader(100)
    async with short_harness.worker(agent, providers={"reader": model}):
        run = await short_harness.start(PROMPT)
        error, partial = await failure_of(run)
    assert len(await histories(short_harness.client, run.id)) > 1
    assert (error.type, partial.rounds) == ("MaxRoundsExceeded", 15)


@pytest.mark.long
async def test_a_state_too_large_to_carry_goes_on_in_its_execution(short_harness: Harness) -> None:
    """36 results of 64 KB that do not compress: more than one payload takes, far less than one history takes."""

    @tool(side_effect="read")
    def read_block(number: int) -> str:
        """Read 64 KB."""
        return page_of_text(number, 65_000)

    class BlockReader(Reader):
        async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
            count = sum(message.role == "tool" for message in request.messages)
            if count == self.pages:
                return Completion(f"{count} blocks read")
            return Completion("", (RawToolCall("read_block", f'{{"number": {count}}}'),))

    agent = scripted_agent(read_block, max_rounds=36, max_tool_calls=36).model_copy(
        update={"model": "reader:main", "tool_output": OutputLimits(max_tokens=1_000_000)}
    )
    async with short_harness.worker(agent, providers={"reader": BlockReader(36)}):
        run = await short_harness.start(PROMPT)
        assert (await run.result()).text == "36 blocks read"
    chain = await histories(short_harness.client, run.id)
    # It continued while it could carry its state, and then went on past the suggestion without failing a task.
    assert len(chain) > 1
    assert len(chain[-1].events) > 120
