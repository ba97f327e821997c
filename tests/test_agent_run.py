"""One run, end to end, on the real server."""

from activities.tooling import tool
from tests.support.agents import scripted_agent
from tests.support.harness import Harness, calls, events_of, says, script, state_of, transcript_of


@tool(side_effect="read")
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


async def test_a_run_goes_from_prompt_over_tool_calls_to_an_answer(harness: Harness) -> None:
    replies = script(
        {**calls(("add", {"left": 2, "right": 3}), text="Adding."), "usage": {"input_tokens": 10, "output_tokens": 4}},
        {**says("The sum is 5."), "finish_reason": "stop", "usage": {"input_tokens": 20, "output_tokens": 6}},
    )
    async with harness.worker(scripted_agent(add), scripts={"main": replies}):
        run = await harness.start({"agent": "tester", "prompt": "What is 2 + 3?"})
        result = await run.result()

        assert (result.status, result.text, result.finish_reason) == ("completed", "The sum is 5.", "stop")
        assert result.rounds == 1
        assert (result.usage.input_tokens, result.usage.output_tokens) == (30, 10)
        (answered,) = result.tool_results
        assert (answered.call_id, answered.tool, answered.ok, answered.text) == ("call_1", "add", True, "5")
        assert answered.attempts == 1
        assert answered.idempotency_key is not None
        assert len(answered.idempotency_key) == 64

        messages = (await transcript_of(run)).messages
        assert [(message.role, message.text) for message in messages] == [
            ("user", "What is 2 + 3?"),
            ("assistant", "Adding."),
            ("tool", "5"),
            ("assistant", "The sum is 5."),
        ]
        state = await state_of(run)
        assert state.status == "completed"
        assert state.limits["rounds"].used == 1
        assert state.revision == state.last_sequence == result.last_sequence

        events = await events_of(run)
        assert [event.sequence for event in events] == list(range(1, result.last_sequence + 1))
        assert [event.type for event in events] == [
            "run_started",
            "model_started",
            "model_completed",
            "tool_proposed",
            "tool_started",
            "tool_completed",
            "tool_output_projection_recorded",
            "model_started",
            "model_completed",
            "run_completed",
        ]
