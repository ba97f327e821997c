"""What happens to the calls of a reply: failures, retries, order, names that do not exist, replies cut off."""

import asyncio
import re

import pytest

from activities.tooling import ToolError, tool
from contracts.policies import RetryRule
from contracts.runs import ToolResultsPage
from contracts.tools import ToolInvocation
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Harness,
    attempts,
    calls,
    event_types,
    events_of,
    failure_of,
    histories,
    pending_approval,
    says,
    script,
    state_of,
    transcript_of,
)
from tests.support.waiting import eventually

QUICK = RetryRule(max_attempts=3, initial_interval=0.01, max_interval=0.02)


async def test_a_failure_is_told_to_the_model_and_the_run_goes_on(harness: Harness) -> None:
    @tool(side_effect="read")
    def fetch() -> str:
        """Fetch a page."""
        raise ToolError("not_found", "HTTP 404", code="http_404")

    async with harness.worker(
        scripted_agent(fetch), scripts={"main": script(calls(("fetch", {})), says("Not there."))}
    ):
        run = await harness.start(PROMPT)
        result = await run.result()
    assert result.text == "Not there."
    (answered,) = result.tool_results
    assert not answered.ok
    assert answered.text == (
        '{"ok": false, "error": {"category": "not_found", "code": "http_404", '
        '"message": "HTTP 404", "retryable": false}}'
    )
    assert attempts((await histories(harness.client, run.id))[0], "fetch") == [1]


async def test_a_flaky_tool_is_retried_by_temporal_and_the_model_never_knows(harness: Harness) -> None:
    seen: list[ToolInvocation] = []

    @tool(side_effect="read", retry=QUICK)
    def flaky(invocation: ToolInvocation) -> str:
        """Work at the third attempt."""
        seen.append(invocation)
        if invocation.attempt < 3:
            raise ConnectionError("reset by peer")
        return "done"

    async with harness.worker(scripted_agent(flaky), scripts={"main": script(calls(("flaky", {})), says("Fine."))}):
        result = await (await harness.start(PROMPT)).result()
    assert [invocation.attempt for invocation in seen] == [1, 2, 3]
    assert len({invocation.idempotency_key for invocation in seen}) == 1
    assert (result.tool_results[0].text, result.tool_results[0].attempts) == ("done", 3)


async def test_a_broken_tool_is_told_to_the_model_once_its_attempts_are_spent(harness: Harness) -> None:
    @tool(side_effect="read", retry=QUICK)
    def broken() -> str:
        """Never work."""
        raise ValueError("no such column")

    async with harness.worker(
        scripted_agent(broken), scripts={"main": script(calls(("broken", {})), says("It is broken."))}
    ):
        run = await harness.start(PROMPT)
        result = await run.result()
        page = await run.query("tool_results", result_type=ToolResultsPage)
    assert attempts((await histories(harness.client, run.id))[0], "broken") == [3]
    assert page.records[0].outcome.metadata["tool_exception"] is True
    error = result.tool_results[0].error
    assert error is not None
    assert (error.category, error.code) == ("internal", "ValueError")
    assert re.fullmatch(r"ValueError: no such column \(reference [0-9a-f]{8}\)", error.message)
    assert result.tool_results[0].attempts == 3


async def test_a_write_that_must_not_be_repeated_gets_one_attempt_and_is_unknown(harness: Harness) -> None:
    ran: list[int] = []

    @tool(side_effect="write")
    def transfer(amount: int) -> str:
        """Move money."""
        ran.append(amount)
        raise ConnectionError("the line went dead")

    async with harness.worker(
        scripted_agent(transfer), scripts={"main": script(calls(("transfer", {"amount": 5})), says("I do not know."))}
    ):
        run = await harness.start(PROMPT)
        result = await run.result()
        assert "effect_unknown" in await event_types(run)
    assert ran == [5]
    assert [(effect.tool, effect.state) for effect in result.effects] == [("transfer", "unknown")]


async def test_a_timeout_of_a_write_is_an_unknown_outcome_told_to_the_model(harness: Harness) -> None:
    @tool(side_effect="write", timeout=0.2)
    async def slow() -> str:
        """Take too long."""
        await asyncio.Event().wait()
        return "never"

    async with harness.worker(scripted_agent(slow), scripts={"main": script(calls(("slow", {})), says("Unknown."))}):
        result = await (await harness.start(PROMPT)).result()
    error = result.tool_results[0].error
    assert error is not None
    assert error.category == "unknown_outcome"
    assert result.effects[0].state == "unknown"


async def test_reads_run_side_by_side_and_are_answered_in_call_order(harness: Harness) -> None:
    both_running = asyncio.Barrier(2)

    @tool(side_effect="read", timeout=30)
    async def meet(name: str) -> str:
        """Wait for the other call."""
        await both_running.wait()
        return name

    replies = script(calls(("meet", {"name": "first"}), ("meet", {"name": "second"})), says("Both."))
    async with harness.worker(scripted_agent(meet), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        await run.result()
        texts = [message.text for message in (await transcript_of(run)).messages if message.role == "tool"]
    assert texts == ["first", "second"]


@pytest.mark.parametrize(
    ("concurrency", "expected"),
    [("auto", ["write 1", "write 2"]), ("sequential", ["write 1", "write 2"])],
)
async def test_writes_run_one_after_the_other_in_the_models_order(
    harness: Harness, concurrency: str, expected: list[str]
) -> None:
    log: list[str] = []
    running = 0

    @tool(side_effect="write")
    async def write(number: int) -> None:
        """Write a number."""
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        log.append(f"write {number}")
        running -= 1

    replies = script(calls(("write", {"number": 1}), ("write", {"number": 2})), says("Written."))
    async with harness.worker(scripted_agent(write), scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": {"tool_concurrency": concurrency}})
        result = await run.result()
        ran = [event.type for event in await events_of(run) if event.type in ("tool_started", "tool_completed")]
    assert log == expected
    assert ran == ["tool_started", "tool_completed"] * 2
    assert [effect.state for effect in result.effects] == ["done", "done"]
    keys = {answered.idempotency_key for answered in result.tool_results}
    assert len(keys) == 2


async def test_parallel_can_be_chosen_for_writes(harness: Harness) -> None:
    both_running = asyncio.Barrier(2)

    @tool(side_effect="write", timeout=30)
    async def write(number: int) -> int:
        """Write a number."""
        await both_running.wait()
        return number

    replies = script(calls(("write", {"number": 1}), ("write", {"number": 2})), says("Written."))
    async with harness.worker(scripted_agent(write), scripts={"main": replies}):
        result = await (await harness.start({**PROMPT, "options": {"tool_concurrency": "parallel"}})).result()
    assert [answered.text for answered in result.tool_results] == ["1", "2"]


async def test_on_tool_error_fail_run_ends_the_run_and_starts_no_later_call(harness: Harness) -> None:
    ran: list[str] = []

    @tool(side_effect="write")
    def step(name: str) -> str:
        """Do a step."""
        ran.append(name)
        if name == "b":
            raise ToolError("conflict", "b is taken")
        return "ok"

    replies = script(calls(("step", {"name": "a"}), ("step", {"name": "b"}), ("step", {"name": "c"})), says("-"))
    async with harness.worker(scripted_agent(step), scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": {"on_tool_error": "fail_run"}})
        error, partial = await failure_of(run)
    assert (error.type, error.message) == ("ToolFailed", "step: conflict: b is taken")
    assert ran == ["a", "b"]
    assert [(answered.ok, answered.attempts) for answered in partial.tool_results] == [
        (True, 1),
        (False, 1),
        (False, 0),
    ]
    assert [effect.state for effect in partial.effects] == ["done", "failed"]


async def test_invalid_arguments_run_nothing_and_list_what_is_wrong(harness: Harness) -> None:
    ran: list[int] = []

    @tool(side_effect="write")
    def pay(amount: int, dry_run: bool) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    replies = script(
        calls(("pay", {"amount": "5", "dry_run": "NO", "force": True})),
        {"calls": [{"tool": "pay", "arguments": '{"amount": 5, "dry_'}]},
        says("Gave up."),
    )
    async with harness.worker(scripted_agent(pay), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        result = await run.result()
        invalid = [event for event in await events_of(run) if event.type == "tool_invalid"]
        page = await transcript_of(run)
    assert ran == []
    assert result.effects == ()
    error = result.tool_results[0].error
    assert error is not None
    assert error.category == "invalid_input"
    assert "/amount" in error.message
    assert "/dry_run" in error.message
    assert "force" in error.message
    assert invalid[1].data["raw"] == '{"amount": 5, "dry_'
    # What the model reads of its own broken call is legal for every provider.
    assert page.messages[3].tool_calls[0].arguments == {}


async def test_an_unknown_tool_is_told_with_the_names_there_are_and_the_fourth_ends_the_run(harness: Harness) -> None:
    @tool(side_effect="read")
    def known() -> str:
        """Exist."""
        return "yes"

    replies = script(*(calls(("unknwon", {})) for _ in range(5)))
    async with harness.worker(scripted_agent(known), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        error, partial = await failure_of(run)
    assert error.type == "ModelBehaviour"
    assert len(partial.tool_results) == 4
    assert "known" in partial.tool_results[0].text


async def test_a_reply_that_was_cut_off_runs_none_of_its_calls(harness: Harness) -> None:
    ran: list[str] = []

    @tool(side_effect="write")
    def run_steps(steps: list[str]) -> str:
        """Run commands."""
        ran.extend(steps)
        return "ok"

    cut_off = {
        "calls": [
            {"tool": "run_steps", "arguments": '{"steps":["complete"]}'},
            {"tool": "run_steps", "arguments": '{"steps":["make clean","make te'},
        ],
        "finish_reason": "length",
        "truncated": True,
    }
    async with harness.worker(scripted_agent(run_steps), scripts={"main": script(cut_off, says("Sorry."))}):
        result = await (await harness.start(PROMPT)).result()
    assert ran == []
    assert [answered.ok for answered in result.tool_results] == [False, False]


@pytest.mark.parametrize(
    ("limits", "error_type", "ran_before"),
    [
        ({"max_rounds": 0}, "MaxRoundsExceeded", 0),
        ({"max_rounds": 2}, "MaxRoundsExceeded", 4),
        ({"max_tool_calls": 3}, "MaxToolCallsExceeded", 2),
        ({"max_tool_calls": 1}, "MaxToolCallsExceeded", 0),
    ],
)
async def test_a_limit_ends_the_run_by_name_with_what_was_done_so_far(
    harness: Harness, limits: dict[str, int], error_type: str, ran_before: int
) -> None:
    ran: list[int] = []

    @tool(side_effect="write", idempotency="idempotent")
    def count(number: int) -> int:
        """Count."""
        ran.append(number)
        return number

    replies = script(*(calls(("count", {"number": n}), ("count", {"number": n})) for n in range(5)))
    async with harness.worker(scripted_agent(count), scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": limits})
        error, partial = await failure_of(run)
        state = await state_of(run)
        page = await transcript_of(run)
    assert error.type == error_type
    assert len(ran) == ran_before
    assert partial.status == state.status == "failed"
    assert partial.error is not None
    assert partial.error.type == error_type
    # The transcript stays legal: every call has one answer.
    asked = [call.call_id for message in page.messages for call in message.tool_calls]
    answered = [message.call_id for message in page.messages if message.role == "tool"]
    assert asked == answered
    (name,) = limits
    used = state.limits[name.removeprefix("max_")]
    assert used.max == limits[name]
    assert used.used <= used.max


async def test_a_huge_result_is_cut_for_the_model_and_says_so(harness: Harness) -> None:
    @tool(side_effect="read")
    def dump() -> str:
        """Return 5 MB."""
        return "x" * 5_000_000

    async with harness.worker(scripted_agent(dump), scripts={"main": script(calls(("dump", {})), says("Big."))}):
        run = await harness.start(PROMPT)
        result = await run.result()
        text = (await transcript_of(run)).messages[2].text
        assert "tool_output_truncated" in await event_types(run)
    assert len(text.encode()) <= 65_536
    assert text.startswith("Warning: tool output truncated (original bytes: 5000000, estimated tokens: 1250000).")
    assert result.tool_results[0].truncated
    assert attempts((await histories(harness.client, run.id))[0], "dump") == [1]


async def test_surrogates_nan_and_megabytes_of_exception_cross_the_boundary_once(harness: Harness) -> None:
    @tool(side_effect="write")
    def half_an_emoji() -> str:
        """Return a lone surrogate."""
        return "ok \ud83d"

    @tool(side_effect="write")
    def not_a_number() -> dict[str, float]:
        """Return NaN."""
        return {"score": float("nan"), "max": float("inf")}

    @tool(side_effect="write")
    def loud() -> str:
        """Raise 3 MB."""
        raise RuntimeError("E" * 3_000_000)

    replies = script(calls(("half_an_emoji", {}), ("not_a_number", {}), ("loud", {})), says("Seen \ufffd."))
    async with harness.worker(scripted_agent(half_an_emoji, not_a_number, loud), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        result = await run.result()
    first, second, third = result.tool_results
    assert first.text == "ok \ufffd"
    assert second.text == '{"max":"Infinity","score":"NaN"}'
    assert third.error is not None
    assert len(third.error.message.encode()) <= 2_000
    assert [answered.attempts for answered in result.tool_results] == [1, 1, 1]


async def test_another_version_of_a_tool_never_runs_under_an_old_consent(harness: Harness) -> None:
    ran: list[str] = []

    @tool(side_effect="write", name="deploy", version="2", approval="always")
    def deploy_v2() -> str:
        """Deploy."""
        ran.append("2")
        return "deployed by 2"

    @tool(side_effect="write", name="deploy", version="1", approval="always")
    def deploy_v1() -> str:
        """Deploy."""
        ran.append("1")
        return "deployed by 1"

    replies = {"main": script(calls(("deploy", {})), says("Deployed."))}
    async with harness.worker(scripted_agent(deploy_v1), scripts=replies):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
    async with harness.worker(scripted_agent(deploy_v2), scripts=replies):
        await run.signal(
            "resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"}
        )

        async def refused() -> bool:
            history = await run.fetch_history()
            return any(event.HasField("activity_task_failed_event_attributes") for event in history.events)

        await eventually(refused)
    assert ran == []
    async with harness.worker(scripted_agent(deploy_v1), scripts=replies):
        result = await run.result()
    assert ran == ["1"]
    assert result.tool_results[0].text == "deployed by 1"


async def test_eight_calls_side_by_side_keep_their_order_when_every_step_is_a_replay(harness: Harness) -> None:
    """Without a cache each workflow task replays the run: an order that came from a set would break it."""
    finished: list[int] = []

    @tool(side_effect="read")
    async def probe(number: int) -> int:
        """Answer at once."""
        finished.append(number)
        return number

    batch = calls(*(("probe", {"number": number}) for number in range(8)))
    replies = script(batch, batch, says("Done."))
    async with harness.worker(scripted_agent(probe), scripts={"main": replies}, max_cached_workflows=0):
        runs = [await harness.start(PROMPT) for _ in range(3)]
        results = [await run.result() for run in runs]
    assert len(finished) == 3 * 16
    for result in results:
        assert [answered.text for answered in result.tool_results] == [str(number) for number in range(8)] * 2
