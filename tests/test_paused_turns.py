"""A turn that the provider wants to go on with: it is sent back as it stands, a bounded number of times."""

from pydantic import JsonValue

from contracts.messages import illegality
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, failure_of, says, script, transcript_of
from workflows.model_calls import PAUSES_IN_A_ROW

SEARCHED: dict[str, JsonValue] = {"paused": True, "opaque": [{"block": {"type": "server_tool_use", "id": "s1"}}]}


async def test_a_paused_turn_is_gone_on_with(harness: Harness) -> None:
    replies = script({**says("Searching."), **SEARCHED}, {**SEARCHED, "text": ""}, says("Found it."))
    async with harness.worker(scripted_agent(), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        result = await run.result()
        messages = (await transcript_of(run)).messages
    assert result.text == "Found it."
    assert [(message.role, message.text) for message in messages] == [
        ("user", "Go."),
        ("assistant", "Searching."),
        ("assistant", ""),
        ("assistant", "Found it."),
    ]


async def test_pauses_without_end_end_with_what_was_said_last(harness: Harness) -> None:
    replies = script(*[{**says(f"Part {n}."), **SEARCHED} for n in range(PAUSES_IN_A_ROW + 2)])
    async with harness.worker(scripted_agent(), scripts={"main": replies}):
        result = await (await harness.start(PROMPT)).result()
    assert result.text == f"Part {PAUSES_IN_A_ROW}."


async def test_a_pause_that_says_nothing_leaves_nothing_in_the_transcript(harness: Harness) -> None:
    async with harness.worker(scripted_agent(), scripts={"main": script({"text": "", "paused": True})}):
        run = await harness.start(PROMPT)
        error, _ = await failure_of(run)
        messages = (await transcript_of(run)).messages
    assert error.type == "ModelBehaviour"
    assert illegality(messages) is None
