"""A transcript too long to be taken along leaves its oldest exchanges behind, and stays one conversation."""

import base64
import json
import random

import pytest
from temporalio.testing import ActivityEnvironment

from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.runs import HeldRuns
from activities.tooling import tool
from contracts.messages import Message, ToolCall
from contracts.policies import OutputLimits
from contracts.transcripts import EMPTY_DIGEST, TranscriptPage, TranscriptQuery, chain, message_text
from tests.support.agents import scripted_agent
from tests.support.harness import Harness, event_types, histories, state_of, transcript_of
from workflows.history import FULL_BYTES
from workflows.transcript import Transcript

ANSWER_BYTES = 1_000


def exchange(number: int, calls: int = 1) -> list[Message]:
    """A reply that makes calls, and their answers."""
    ids = [f"call_{number}_{call}" for call in range(calls)]
    reply = Message(
        role="assistant", tool_calls=tuple(ToolCall(call_id=each, tool="look", arguments={}) for each in ids)
    )
    return [reply, *(Message(role="tool", call_id=each, text="x" * ANSWER_BYTES) for each in ids)]


def conversation(exchanges: int, calls: int = 1) -> Transcript:
    """A prompt that follows what was said before, and then so many exchanges."""
    transcript = Transcript()
    transcript.open([Message(role="user", text="Hello."), Message(role="assistant", text="Yes?")])
    transcript.open([Message(role="user", text="Look everywhere.")])
    for number in range(exchanges):
        for message in exchange(number, calls):
            transcript.append(message)
    return transcript


def size(*messages: Message) -> int:
    return sum(len(message_text(message).encode()) for message in messages)


def test_it_keeps_the_prompt_and_the_latest_whole_exchanges() -> None:
    whole = conversation(10, calls=3)
    prompt, last = whole.messages[2], whole.messages[-8:]
    latest = whole.latest(size(prompt, *last))
    assert latest.messages == (prompt, *last)
    assert latest.count == whole.count == 43
    # The prompt stands in the place of the last message that was left behind.
    assert (latest.first, latest.prompt) == (34, 0)
    # One byte less, and an exchange less; no answer stands without its call.
    fewer = whole.latest(size(prompt, *last) - 1)
    assert fewer.messages == (prompt, *last[4:])
    assert (fewer.first, fewer.count) == (38, 43)
    # At least the last one, however large.
    assert whole.latest(1).messages == (prompt, *last[4:])


def test_it_stays_whole_where_nothing_can_be_left() -> None:
    for exchanges in (0, 1):
        alone = Transcript([Message(role="user", text="Look."), *(exchange(0) if exchanges else [])])
        assert alone.latest(1) is alone


def test_it_goes_on_leaving_messages_behind() -> None:
    transcript = conversation(5)
    kept = size(transcript.messages[2], *exchange(0)) + 10
    for number in range(5, 9):
        left = transcript.latest(kept)
        # As the next execution takes it up.
        transcript = Transcript(left.messages, left.first, left.prompt)
        assert transcript.messages == (conversation(0).messages[2], *exchange(number - 1))
        assert transcript.first == 3 + 2 * number - 3
        for message in exchange(number):
            transcript.append(message)
        assert transcript.count == 3 + 2 * (number + 1)


def test_pages_and_references_count_what_was_left_behind() -> None:
    latest = conversation(10).latest(5_000)
    first, messages = latest.first, latest.messages
    assert first > 0
    assert latest.page(TranscriptQuery()) == TranscriptPage(messages=messages, next=23, total=23, first_available=first)
    assert latest.page(TranscriptQuery(start=first - 1)).messages == messages
    assert latest.page(TranscriptQuery(start=first + 1, max_bytes=1)) == TranscriptPage(
        messages=messages[1:2], next=first + 2, total=23, first_available=first
    )
    assert latest.page(TranscriptQuery(start=23)).messages == ()
    ref = latest.ref()
    assert (ref.count, ref.first, ref.digest) == (23, first, chain(EMPTY_DIGEST, messages))
    assert ref.tail == ()
    added = Message(role="user", text="And here?")
    latest.append(added)
    assert (latest.ref().tail, latest.ref().tail) == ((added,), ())


async def test_a_worker_that_holds_the_whole_follows_a_run_that_has_left_messages_behind() -> None:
    """And the other way round: references to the whole are still understood. Nothing is asked of the run for that."""
    held, environment = HeldRuns(), ActivityEnvironment()
    whole = Transcript([Message(role="user", text="Look."), *exchange(0)[:1], Message(role="tool", call_id="call_0_0")])
    whole_ref = whole.ref()
    assert await environment.run(held.transcript, whole_ref) == whole.messages
    for number in range(1, 4):
        whole.append(Message(role="assistant", text=f"So {number}."))
        whole.append(Message(role="user", text=f"More {number}."))
    latest = whole.latest(200)
    assert latest.first > 0
    ref = latest.ref()
    assert ref.tail == latest.messages
    assert await environment.run(held.transcript, ref) == latest.messages
    latest.append(Message(role="assistant", text="Well."))
    assert await environment.run(held.transcript, latest.ref()) == latest.messages
    # An earlier reference of the same part, as a retried call has it.
    assert await environment.run(held.transcript, ref) == latest.messages[:-1]


ROUNDS, CALLS, RESULT_BYTES = 22, 6, 240_000


@tool(side_effect="read")
def read_block(number: int) -> str:
    """Read a block that does not compress."""
    noise = base64.b64encode(random.Random(number).randbytes(RESULT_BYTES * 3 // 4)).decode()
    return f"{number}: {noise}"


class BlockReader:
    """A model that reads on from the last block it is shown."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.shown: list[list[int]] = []

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        answers = [message.text for message in request.messages if message.role == "tool"]
        numbers = [int(text.split(":")[0]) for text in answers]
        self.prompts.append(request.messages[0].text)
        self.shown.append(numbers)
        done = numbers[-1] + 1 if numbers else 0
        if done == ROUNDS * CALLS:
            return Completion(f"{done} blocks read")
        wanted = range(done, done + CALLS)
        return Completion("", tuple(RawToolCall("read_block", json.dumps({"number": number})) for number in wanted))


@pytest.mark.long
async def test_a_run_whose_history_is_full_goes_on_without_its_oldest_messages(harness: Harness) -> None:
    agent = scripted_agent(read_block, max_rounds=ROUNDS, max_tool_calls=ROUNDS * CALLS).model_copy(
        update={"model": "reader:main", "tool_output": OutputLimits(max_bytes=1_000_000, max_tokens=1_000_000)}
    )
    model = BlockReader()
    async with harness.worker(agent, providers={"reader": model}):
        run = await harness.start({"agent": "tester", "prompt": "Read them all."})
        assert (await run.result()).text == f"{ROUNDS * CALLS} blocks read"
        state, latest = await state_of(run), await transcript_of(run)
        earlier = harness.client.get_workflow_handle(run.id, run_id=state.previous_run_id)
        before = await earlier.query("transcript", TranscriptQuery(max_bytes=1), result_type=TranscriptPage)
        types = await event_types(run)
    first, second = await histories(harness.client, run.id)
    # It stayed as long as there was room, and no longer.
    assert FULL_BYTES < sum(event.ByteSize() for event in first.events) < FULL_BYTES + 4_000_000
    assert sum(event.ByteSize() for event in second.events) < FULL_BYTES
    assert types.count("continued_as_new") == 1
    assert set(model.prompts) == {"Read them all."}
    assert model.shown[-1][-1] == ROUNDS * CALLS - 1
    assert model.shown[-1][0] > 0
    assert [shown[-1] for shown in model.shown[1:]] == list(range(CALLS - 1, ROUNDS * CALLS, CALLS))
    # What was left behind stays readable where it was said.
    assert latest.first_available > 0
    assert latest.total == 2 + ROUNDS * (CALLS + 1)
    assert latest.messages[0].text == "Read them all."
    assert (before.first_available, before.messages[0].text) == (0, "Read them all.")
    assert before.total > latest.first_available
