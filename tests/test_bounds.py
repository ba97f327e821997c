"""Everything is bounded in total: whatever tools, models and callers send, a run ends with a name and all effects."""

import json

import pytest
from pydantic import ValidationError

from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import ToolError, tool
from contracts.outcomes import OUTCOME_MAX_BYTES, ToolErrorInfo, ToolOutcome
from contracts.policies import OutputLimits
from contracts.runs import AgentRunState
from contracts.tools import ToolContract
from runtime.dev_server import DevServer
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Harness,
    calls,
    event_of,
    failure_of,
    histories,
    pending_approval,
    says,
    script,
    state_of,
)
from tests.support.waiting import eventually


async def test_text_that_grows_in_json_does_not_keep_a_run_from_ending(harness: Harness) -> None:
    """Control characters take six bytes each as JSON."""

    @tool(side_effect="read")
    def binary() -> str:
        """Return control characters."""
        return "\x01" * 16_000

    replies = script(calls(*[("binary", {})] * 30), says("\x01" * 150_000))
    async with harness.worker(scripted_agent(binary), scripts={"main": replies}):
        result = await (await harness.start(PROMPT)).result()
    assert result.status == "completed"
    assert len(result.model_dump_json().encode()) <= 1_048_576
    assert len(result.tool_results) + result.tool_results_omitted == 30


async def test_error_texts_are_cut_wherever_they_come_from(harness: Harness) -> None:
    ran: list[str] = []

    @tool(side_effect="read")
    def raises() -> str:
        """Raise huge texts."""
        ran.append("raises")
        raise ToolError("conflict", "m" * 2_500_000, code="c\ud800" * 1_000_000)

    @tool(side_effect="read")
    def returns() -> ToolOutcome:
        """Return huge texts."""
        ran.append("returns")
        error = ToolErrorInfo(category="conflict", code="c" * 900_000, message="m" * 900_000)
        return ToolOutcome(ok=False, error=error, metadata={"note": "n" * 900_000})

    replies = script(calls(("raises", {}), *[("returns", {})] * 3), says("Done."))
    async with harness.worker(scripted_agent(raises, returns), scripts={"main": replies}):
        result = await (await harness.start(PROMPT)).result()
    assert sorted(ran) == ["raises", "returns", "returns", "returns"]
    for answered in result.tool_results:
        assert answered.error is not None
        assert answered.error.category == "conflict"
        assert len(answered.error.message.encode()) <= 2_000
        assert len(answered.error.code.encode()) <= 100


@pytest.mark.parametrize("ok", [True, False])
async def test_an_outcome_that_contradicts_itself_is_a_failure(harness: Harness, ok: bool) -> None:
    @tool(side_effect="read")
    def contradicts() -> ToolOutcome:
        """Contradict."""
        error = ToolErrorInfo(category="conflict", message="taken") if ok else None
        return ToolOutcome(ok=ok, error=error, text="hm", metadata={"original_bytes": 10**9})

    replies = script(calls(("contradicts", {})), says("Done."))
    async with harness.worker(scripted_agent(contradicts), scripts={"main": replies}):
        error, partial = await failure_of(await harness.start({**PROMPT, "options": {"on_tool_error": "fail_run"}}))
    assert error.type == "ToolFailed"
    assert not partial.tool_results[0].ok
    assert not partial.tool_results[0].truncated


@pytest.mark.long
async def test_a_hundred_reads_of_a_quarter_megabyte_in_one_batch(harness: Harness) -> None:
    @tool(side_effect="read")
    def block() -> str:
        """Return as much as one outcome may hold."""
        return "x" * (OUTCOME_MAX_BYTES - 1_000)

    replies = script(calls(*[("block", {})] * 100), says("Done."))
    agent = scripted_agent(block, max_tool_calls=100)
    async with harness.worker(agent, scripts={"main": replies}):
        run = await harness.start(PROMPT)
        result = await run.result()
    assert result.tool_results_omitted + len(result.tool_results) == 100
    (history, *_) = await histories(harness.client, run.id)
    pending = most = 0
    for event in history.events:
        pending += event.HasField("activity_task_scheduled_event_attributes")
        pending -= event.HasField("activity_task_completed_event_attributes")
        most = max(most, pending)
    assert most == 32


class Talker:
    """A model that says so much at once."""

    def __init__(self, *completions: Completion) -> None:
        self._completions = list(completions)
        self.asked = 0

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        self.asked += 1
        return self._completions.pop(0)


@pytest.mark.parametrize(
    "completion",
    [
        Completion("t" * 5_000_000),
        Completion("", (RawToolCall("look", json.dumps({"text": "a" * 3_000_000})),)),
        Completion("", tuple(RawToolCall("look", json.dumps({"text": "a" * 20_000})) for _ in range(60))),
    ],
    ids=["text", "arguments", "calls"],
)
async def test_a_reply_beyond_all_bounds_is_paid_for_once(harness: Harness, completion: Completion) -> None:
    @tool(side_effect="read")
    def look(text: str) -> str:
        """Look."""
        raise AssertionError("ran a call of a reply that does not fit")

    model = Talker(completion)
    agent = scripted_agent(look, max_tool_calls=100).model_copy(update={"model": "talker:main"})
    async with harness.worker(agent, providers={"talker": model}):
        error, _ = await failure_of(await harness.start(PROMPT))
    assert error.type == "PayloadTooLarge"
    assert model.asked == 1


@pytest.mark.parametrize(
    ("change", "says_what"),
    [
        ({"context": {"metadata": {"note": "n" * 17_000}}}, "context has"),
        ({"prompt": "p" * 1_048_577}, "messages[0] has"),
        ({"messages": [{"role": "user", "text": "x"}] * 10_001}, "at most 10000 fit"),
        ({"options": {"tool_output": {"max_bytes": 255}}}, "options.tool_output.max_bytes"),
        ({"options": {"tool_output": {"max_tokens": 63}}}, "options.tool_output.max_tokens"),
        ({"options": {"tool_output": {"max_bytes": 65_537}}}, "at most 65536"),
    ],
)
async def test_input_beyond_the_bounds_is_refused_by_name(
    harness: Harness, change: dict[str, object], says_what: str
) -> None:
    async with harness.worker(scripted_agent(), scripts={"main": script(says("never"))}):
        error, _ = await failure_of(await harness.start({**PROMPT, **change}))
    assert error.type == "InvalidInput"
    assert says_what in error.message


async def test_twenty_thousand_calls_answered_in_reverse_are_checked_in_no_time(harness: Harness) -> None:
    asked = [{"call_id": f"c{n}", "tool": "t", "arguments": {}} for n in range(9_000)]
    answers = [{"role": "tool", "call_id": f"c{n}"} for n in reversed(range(9_000))]
    messages = [{"role": "user", "text": "Go."}, {"role": "assistant", "tool_calls": asked}, *answers]
    async with harness.worker(scripted_agent(), scripts={"main": script(says("-"), says("Fine."))}):
        result = await (await harness.start({"agent": "tester", "messages": messages})).result()
    assert result.text == "Fine."


async def test_junk_signals_cannot_lock_out_the_approval(harness: Harness, impatient: DevServer) -> None:
    """While it waits for people a run continues as new: same request, same expiry, one effect."""
    corner = Harness(impatient.client)
    paid: list[int] = []

    @tool(side_effect="write", approval="always")
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    replies = script(calls(("pay", {"amount": 1}), ("pay", {"amount": 2})), says("Paid."))
    async with corner.worker(scripted_agent(pay), scripts={"main": replies}):
        run = await corner.start(PROMPT)

        async def both() -> AgentRunState | None:
            state = await state_of(run)
            return state if len(state.pending_approvals) == 2 else None

        first, second = (await eventually(both)).pending_approvals
        decision = {"resolution": "approved", "by": "ann"}
        await run.signal("resolve_approval", {"approval_id": first.approval_id, **decision})
        for _ in range(150):
            await run.signal("junk", "x" * 1_000)
        assert (await state_of(run)).pending_approvals == (second,)
        await run.signal("resolve_approval", {"approval_id": second.approval_id, **decision})
        result = await run.result()
        proposed = await event_of(run, "run_completed")
    assert paid == [1, 2]
    assert proposed.sequence == result.last_sequence
    assert len(await histories(impatient.client, run.id)) > 1
    await corner.check_histories()


async def test_events_are_paged_by_size(harness: Harness) -> None:
    @tool(side_effect="write", approval="always")
    def pay() -> str:
        """Pay."""
        return "paid"

    async with harness.worker(scripted_agent(pay), scripts={"main": script(calls(("pay", {})), says("Paid."))}):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
        for _ in range(300):
            await run.signal("\x01" * 900)
        seen = 0
        while True:
            page = await run.query("events", {"after_sequence": seen, "limit": 1_000})
            if not page["events"]:
                break
            assert page["events"][0]["sequence"] == seen + 1
            seen = page["events"][-1]["sequence"]
        assert seen > 300
        await run.signal(
            "resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"}
        )
        await run.result()


async def test_a_tools_own_limit_is_the_tighter_one(harness: Harness) -> None:
    @tool(side_effect="read", model_output=OutputLimits(max_bytes=256, max_tokens=64))
    def dump() -> str:
        """Return 5 KB."""
        return "y" * 5_010

    async with harness.worker(scripted_agent(dump), scripts={"main": script(calls(("dump", {})), says("Done."))}):
        run = await harness.start({**PROMPT, "options": {"tool_output": {"max_bytes": 1_024, "max_tokens": 128}}})
        result = await run.result()
        complete = await run.query("tool_results")
        recorded = await event_of(run, "tool_output_projection_recorded")
    assert len(result.tool_results[0].text.encode()) <= 256
    assert complete["records"][0]["outcome"]["text"] == "y" * 5_010
    report = recorded.data["report"]
    assert isinstance(report, dict)
    assert report["max_bytes"] == 256


@pytest.mark.parametrize("limits", [{"max_bytes": 255}, {"max_tokens": 63}])
def test_a_tool_or_agent_that_shows_less_than_an_envelope_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match=next(iter(limits))):
        scripted_agent().model_validate({**scripted_agent().model_dump(), "tool_output": limits})
    contract = {"name": "t", "description": "d", "input_schema": {"type": "object"}, "side_effect": "read"}
    with pytest.raises(ValidationError, match=next(iter(limits))):
        ToolContract.model_validate({**contract, "model_output": limits})
