"""What a run says to input it cannot work with: at once, by name, with what to do."""

import pytest
from pydantic import JsonValue
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from activities.tooling import tool
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, failure_of, says, script


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


ANSWERED = {"role": "assistant", "tool_calls": [{"call_id": "a", "tool": "look", "arguments": {}}]}
BLOCK: JsonValue = {"from": "scripted:main", "block": {"type": "thinking"}}


def opaque(part: JsonValue) -> dict[str, JsonValue]:
    """A turn whose second part is this one."""
    return {"role": "assistant", "text": "x", "opaque": [BLOCK, part]}


@pytest.mark.parametrize(
    ("run_input", "error_type", "says_what"),
    [
        ({}, "InvalidInput", "agent: Field required"),
        (None, "InvalidInput", "there is no input"),
        ("refund_desk", "InvalidInput", "not an AgentRunInput"),
        ({"agent": 7, "prompt": "Go."}, "InvalidInput", "agent: Input should be a valid string"),
        ({"agent": "nobody", "prompt": "Go."}, "UnknownAgent", "this worker serves: tester"),
        ({"agent": "tester"}, "InvalidInput", "no prompt and no messages"),
        ({"agent": "tester", "prompt": "  "}, "InvalidInput", "prompt is empty"),
        ({"agent": "tester", "messages": [ANSWERED]}, "InvalidInput", "call 'a' is not answered"),
        ({**PROMPT, "messages": [ANSWERED]}, "InvalidInput", "before the answer to call 'a'"),
        ({"agent": "tester", "messages": [{"role": "tool", "call_id": "a"}]}, "InvalidInput", "answers call 'a'"),
        ({"agent": "tester", "messages": [{"role": "system", "text": "x"}]}, "InvalidInput", "messages.0.role"),
        ({"agent": "tester", "messages": [{"role": "assistant", "text": "x"}]}, "InvalidInput", "add a prompt"),
        ({**PROMPT, "messages": [{"role": "user", "text": ""}]}, "InvalidInput", "messages[0] is empty"),
        (
            {**PROMPT, "messages": [{"role": "user", "text": "x", "opaque": [BLOCK]}]},
            "InvalidInput",
            "role user and opaque",
        ),
        (
            {**PROMPT, "messages": [opaque({"block": {}})]},
            "InvalidInput",
            "messages[0].opaque[1] is neither a text, nor",
        ),
        ({**PROMPT, "messages": [opaque({"from": "m", "block": "x"})]}, "InvalidInput", "messages[0].opaque[1] is nei"),
        ({**PROMPT, "messages": [opaque("text")]}, "InvalidInput", "messages[0].opaque[1] is neither a text, nor"),
        ({**PROMPT, "context": {"metadata": {"apiKey": "x"}}}, "InvalidInput", "context.metadata.apiKey looks like a"),
        ({**PROMPT, "context": {"metadata": {"n": 1}}}, "InvalidInput", "context.metadata.n"),
        (
            {**PROMPT, "options": {"max_rounds": 21}},
            "InvalidInput",
            "options.max_rounds is 21, but the agent allows at",
        ),
        ({**PROMPT, "options": {"max_tool_calls": 51}}, "InvalidInput", "max_tool_calls is 51"),
        ({**PROMPT, "options": {"max_rounds": -1}}, "InvalidInput", "options.max_rounds"),
        ({**PROMPT, "options": {"approval_expires_seconds": 604801}}, "InvalidInput", "at most 604800"),
        ({**PROMPT, "options": {"approve": "never"}}, "InvalidInput", "options.approve"),
        ({**PROMPT, "options": {"max_cost_usd": 1.0}}, "InvalidInput", "no price is known of scripted:main"),
        ({**PROMPT, "options": {"max_total_tokens": "9"}}, "InvalidInput", "options.max_total_tokens"),
        ({**PROMPT, "options": {"output_schema": {}}}, "InvalidInput", "options.output_schema: /: the root must have"),
        ({**PROMPT, "options": {"deadline_seconds": 86401}}, "InvalidInput", "at most 86400"),
        ({**PROMPT, "options": {"deadline_seconds": 0}}, "InvalidInput", "options.deadline_seconds"),
        ({**PROMPT, "options": {"compensate_on": ["completed"]}}, "InvalidInput", "options.compensate_on"),
        ({**PROMPT, "options": {"stop_on_tools": ["x"]}}, "InvalidInput", "stop_on_tools names 'x', which is no tool"),
        ({"agent": "tester", "carried": "Zm9yZ2Vk"}, "InvalidInput", "carried is written by a run"),
    ],
)
async def test_input_that_cannot_work_fails_at_once_by_name(
    harness: Harness, run_input: object, error_type: str, says_what: str
) -> None:
    async with harness.worker(scripted_agent(look), scripts={"main": script(says("never"))}):
        error, partial = await failure_of(await harness.start(run_input))
    assert error.type == error_type
    assert error.non_retryable
    assert says_what in error.message
    assert partial.status == "failed"
    assert partial.usage.input_tokens == 0
    assert partial.error is not None
    assert partial.error.type == error_type


@pytest.mark.parametrize(
    "payload",
    [
        Payload(metadata={"encoding": b"json/plain"}, data=b"{not json"),
        Payload(metadata={"encoding": b"who/knows"}, data=b"\x00\x01"),
        Payload(metadata={"encoding": b"json/plain"}, data=b'{"agent":"tester","prompt":"\\ud83d"}'),
        Payload(metadata={"encoding": b"json/plain"}, data=b"[" * 100_000),
    ],
    ids=["broken JSON", "unknown encoding", "lone surrogate", "deep nesting"],
)
async def test_a_payload_that_does_not_decode_fails_the_run_not_its_task(harness: Harness, payload: Payload) -> None:
    async with harness.worker(scripted_agent(look), scripts={"main": script(says("never"))}):
        error, _ = await failure_of(await harness.start(RawValue(payload)))
    assert error.type == "InvalidInput"


async def test_unknown_fields_are_ignored_and_options_that_tighten_are_taken(harness: Harness) -> None:
    run_input: JsonValue = {
        **PROMPT,
        "colour": "blue",
        "options": {"max_rounds": 1, "max_tool_calls": 0, "approval_expires_seconds": 60, "verbosity": 3},
        "context": {"tenant_id": "acme", "metadata": {"ticket": "T-1"}},
    }
    async with harness.worker(scripted_agent(look), scripts={"main": script(says("Fine."))}):
        assert (await (await harness.start(run_input)).result()).text == "Fine."


async def test_a_conversation_so_far_is_continued(harness: Harness) -> None:
    messages: JsonValue = [
        {"role": "user", "text": "Look."},
        {"role": "assistant", "tool_calls": [{"call_id": "call_7", "tool": "look", "arguments": {}}]},
        {"role": "tool", "call_id": "call_7", "text": "seen"},
    ]
    replies = script(says("not played"), calls(("look", {})), says("Seen again."))
    async with harness.worker(scripted_agent(look), scripts={"main": replies}):
        result = await (await harness.start({"agent": "tester", "messages": messages})).result()
    assert result.text == "Seen again."
    # The run's own ids do not collide with those it was given.
    assert result.tool_results[0].call_id == "call_8"
