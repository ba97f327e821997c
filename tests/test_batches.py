"""Many large results at once: of one batch, all landing in the same moment, round after round."""

import asyncio

from pydantic import JsonValue

from activities.tooling import Tool, tool
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, calls, histories, says, script, state_of, transcript_of
from tests.support.tool_worker import outcomes_of

# What the server takes in one payload.
PAYLOAD_MAX_BYTES = 2_097_152


def together(count: int, size: int) -> Tool:
    """A tool whose calls all return in the same moment, each with so many bytes and its own number."""
    there: set[int] = set()
    all_there = asyncio.Event()

    @tool(side_effect="read")
    async def block(number: int) -> str:
        """Return a block."""
        # By number: an attempt that is repeated is not another call.
        there.add(number)
        if len(there) == count:
            all_there.set()
        await all_there.wait()
        return f"{number:04}".ljust(size, "x")

    return block


async def all_pages(run: Handle, query: str, items: str) -> list[JsonValue]:
    """Everything a query has, page by page, each of which fits into one answer."""
    found: list[JsonValue] = []
    while True:
        page: dict[str, JsonValue] = await run.query(query, {"start": len(found)})
        listed = page[items]
        assert isinstance(listed, list)
        if not listed:
            return found
        found += listed


async def test_forty_results_of_100_kb_in_one_batch(harness: Harness) -> None:
    block = together(32, 100_000)
    # 32 run side by side, and then the other eight.
    batch = calls(*(("block", {"number": number}) for number in range(40)))
    async with harness.worker(scripted_agent(block), scripts={"main": script(batch, says("Done."))}):
        run = await harness.start(PROMPT)
        result = await run.result()
        answers = [message.text for message in (await transcript_of(run)).messages if message.role == "tool"]
        # So much may make the run continue as new. Complete outcomes stay in the execution that made them.
        chain = [history.run_id for history in await histories(harness.client, run.id)]
        executions = [harness.client.get_workflow_handle(run.id, run_id=run_id) for run_id in chain]
        complete = [each for one in executions for each in await all_pages(one, "tool_results", "records")]
        whole = [each for one in executions for each in await outcomes_of(one)]
    assert (result.status, result.text) == ("completed", "Done.")
    assert len(complete) == 40
    assert len(result.tool_results) + result.tool_results_omitted == 40
    assert len(result.model_dump_json().encode()) < PAYLOAD_MAX_BYTES
    assert [outcome.text[:4] for outcome in whole] == [f"{number:04}" for number in range(len(whole))]
    assert all(len(outcome.text) == 100_000 for outcome in whole)
    assert len(answers) > 5


async def test_thirty_results_of_240_kb_that_land_at_once(harness: Harness) -> None:
    """7 MB. While a task is open the server holds at most 2 MB of results: it closes the task and asks anew."""
    block = together(30, 240_000)
    batch = calls(*(("block", {"number": number}) for number in range(30)))
    async with harness.worker(scripted_agent(block), scripts={"main": script(batch, says("Done."))}):
        run = await harness.start(PROMPT)
        result = await run.result()
        used = (await state_of(run)).limits["tool_calls"].used
        messages = await all_pages(run, "transcript", "messages")
    assert (result.status, result.rounds, used) == ("completed", 1, 30)
    assert len(result.model_dump_json().encode()) < PAYLOAD_MAX_BYTES
    texts = [message["text"] for message in messages if isinstance(message, dict) and message["role"] == "tool"]
    # The model reads the beginning and the end of each, in the order of the calls.
    numbers = [text.splitlines()[1][:4] for text in texts if isinstance(text, str)]
    assert numbers == [f"{number:04}" for number in range(30)]
    for history in await histories(harness.client, run.id):
        assert max(event.ByteSize() for event in history.events) < PAYLOAD_MAX_BYTES
