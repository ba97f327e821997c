"""How long a tool may take, and what becomes of one that takes longer, falls silent, or does not stop."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import WorkflowFailureError

from activities.in_flight import InFlight
from activities.tooling import Tool, tool
from contracts.policies import HeartbeatRule, RetryRule
from contracts.tools import ToolInvocation
from tests.support.agents import PROMPT
from tests.support.harness import CHECKOUT, Handle, Harness, attempts, failure_of, histories, state_of
from tests.support.tool_worker import outcomes, outcomes_of, tool_worker
from tests.support.waiting import eventually

ONCE = RetryRule(max_attempts=1)
TWICE = RetryRule(max_attempts=2, initial_interval=0.01, max_interval=0.02)


class Stuck:
    """A plain function that goes on until it is released, whatever becomes of its attempt, and then wants to write."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.started: list[int] = []
        self.written: list[int] = []
        self.refused: list[int] = []

    def run(self, invocation: ToolInvocation) -> str:
        self.started.append(invocation.attempt)
        if invocation.attempt == 1:
            assert self.release.wait(30)
        if invocation.still_mine():
            self.written.append(invocation.attempt)
        else:
            self.refused.append(invocation.attempt)
        return f"attempt {invocation.attempt}"


async def settled(in_flight: InFlight) -> None:
    """Wait until no body runs that has outlived its attempt."""

    async def none_stuck() -> bool:
        return in_flight.stuck == {}

    await eventually(none_stuck)


# -- the tool's timeout --


async def test_a_read_that_takes_too_long_is_a_timeout_and_its_coroutine_is_stopped(harness: Harness) -> None:
    stopped = asyncio.Event()

    @tool(side_effect="read", timeout=0.1, retry=ONCE)
    async def slow() -> str:
        """Take too long."""
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    async with tool_worker(harness, slow):
        (outcome,) = await outcomes(harness)
        async with asyncio.timeout(20):
            await stopped.wait()
    assert outcome.error is not None
    assert (outcome.error.category, outcome.error.retryable) == ("timeout", True)
    assert outcome.metadata["late_result_discarded"] is True


async def test_a_thread_that_does_not_stop_is_counted_named_and_fenced_off(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, in_flight = Stuck(), InFlight()

    @tool(side_effect="read", timeout=0.1, retry=ONCE)
    def endless(invocation: ToolInvocation) -> str:
        """Go on for ever."""
        return stuck.run(invocation)

    async with tool_worker(harness, endless, in_flight=in_flight):
        run = await harness.start(PROMPT)
        # The attempt and the run end while the thread goes on.
        await run.result()
        assert in_flight.stuck == {"endless": 1}

        async def named() -> bool:
            return "tool endless does not stop: 1 of its calls run on after their attempts" in caplog.text

        await eventually(named)
        stuck.release.set()
        await settled(in_flight)
        (outcome,) = await outcomes_of(run)
    assert (stuck.written, stuck.refused) == ([], [1])
    assert outcome.error is not None
    assert outcome.error.category == "timeout"


async def test_no_write_of_an_attempt_comes_after_the_next_one_began(harness: Harness) -> None:
    stuck, in_flight = Stuck(), InFlight(threads=2)

    @tool(side_effect="write", idempotency="idempotent", timeout=0.2, retry=TWICE)
    def append(invocation: ToolInvocation) -> str:
        """Append to a file."""
        return stuck.run(invocation)

    @tool(side_effect="read")
    def probe() -> str:
        """Answer."""
        return "served"

    async with tool_worker(harness, append, probe, in_flight=in_flight):
        appended, probed = await outcomes(harness)
        stuck.release.set()
        await settled(in_flight)
    assert stuck.started == [1, 2]
    assert (stuck.written, stuck.refused) == ([2], [1])
    assert (appended.text, probed.text) == ("attempt 2", "served")


async def test_a_call_that_finds_no_free_thread_is_unavailable_and_did_not_run(harness: Harness) -> None:
    stuck, in_flight = Stuck(), InFlight(threads=1, patience=0.02)

    @tool(side_effect="read", timeout=0.02, retry=ONCE)
    def busy(invocation: ToolInvocation) -> str:
        """Keep the only thread."""
        return stuck.run(invocation)

    async with tool_worker(harness, busy, calling=[("busy", {}), ("busy", {})], in_flight=in_flight):
        run = await harness.start(PROMPT)
        result = await run.result()
        first, second = await outcomes_of(run)
        stuck.release.set()
        await settled(in_flight)
    assert stuck.started == [1]
    assert first.error is not None
    assert first.error.category == "timeout"
    assert second.error is not None
    assert (second.error.category, second.error.retryable) == ("unavailable", True)
    assert second.metadata["tool_execution_capacity_exhausted"] is True
    assert '"category": "unavailable"' in result.tool_results[1].text


async def test_a_write_cancelled_while_it_waits_for_a_thread_is_known_not_to_have_happened(harness: Harness) -> None:
    stuck, in_flight = Stuck(), InFlight(threads=1, patience=30)

    @tool(side_effect="read", timeout=0.1, retry=ONCE)
    def busy(invocation: ToolInvocation) -> str:
        """Keep the only thread."""
        return stuck.run(invocation)

    @tool(side_effect="write", lost_after=1)
    def pay() -> str:
        """Pay."""
        raise AssertionError("began after the cancellation")

    async with tool_worker(harness, busy, pay, in_flight=in_flight):
        run = await harness.start(PROMPT)
        await started(run, "pay")
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        state = await state_of(run)
        stuck.release.set()
        await settled(in_flight)
    assert [effect.state for effect in state.effects] == ["failed"]


async def test_a_cancelled_read_in_a_thread_is_told_to_stop(harness: Harness) -> None:
    began, seen = threading.Event(), threading.Event()
    in_flight = InFlight()

    @tool(side_effect="read", lost_after=1)
    def watch(invocation: ToolInvocation) -> None:
        """Go on while the attempt counts."""
        began.set()
        while invocation.still_mine():
            time.sleep(0.01)
        seen.set()

    async with tool_worker(harness, watch, in_flight=in_flight):
        run = await harness.start(PROMPT)
        await asyncio.to_thread(began.wait)
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        assert await asyncio.to_thread(seen.wait, 30)
        await settled(in_flight)


def test_a_thread_that_never_stops_does_not_keep_its_process_from_ending() -> None:
    program = """
import asyncio, threading
from activities.in_flight import InFlight

async def main():
    in_flight = InFlight()
    body = await in_flight.begin(threading.Event().wait, in_thread=True)
    in_flight.abandon("endless", body)

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, check=True, timeout=20)


async def test_a_run_whose_deadline_comes_first_ends_the_attempt(harness: Harness) -> None:
    received: list[ToolInvocation] = []

    @tool(side_effect="read", retry=ONCE)
    async def slow(invocation: ToolInvocation) -> str:
        """Take longer than the caller has."""
        received.append(invocation)
        await asyncio.Event().wait()
        return "never"

    async with tool_worker(harness, slow, calling=[("slow", {}), ("slow", {})], together=True):
        deadline = datetime.now(UTC) + timedelta(seconds=4)
        options = {"tool_concurrency": "sequential"}
        run = await harness.start({**PROMPT, "context": {"deadline": deadline.isoformat()}, "options": options})
        async with asyncio.timeout(30):
            error, _ = await failure_of(run)
        first, second = await outcomes_of(run)
    (invocation,) = received
    assert invocation.deadline == deadline
    assert error.type == "DeadlineExceeded"
    assert first.error is not None
    # Whoever looks first: the attempt at its own clock, or the run at its timer.
    assert first.error.category in ("timeout", "cancelled")
    assert second.error is not None
    assert second.error.code == "not_started"


def test_the_documents_say_that_a_timeout_takes_nothing_back() -> None:
    document = (CHECKOUT / "docs" / "protocol.md").read_text()
    assert "A timeout takes nothing back" in document
    assert "invocation.still_mine()" in document


async def test_a_coroutine_that_blocks_the_event_loop_is_named_in_the_log(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    named = threading.Event()

    class Named(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            named.set()

    @tool(side_effect="read", retry=ONCE)
    async def block_the_loop() -> bool:
        """Wait as only a plain function may."""
        return named.wait(8)

    log, handler = logging.getLogger("steadyhand.loop"), Named()
    log.addHandler(handler)
    try:
        async with tool_worker(harness, block_the_loop):
            (outcome,) = await outcomes(harness)
    finally:
        log.removeHandler(handler)
    assert outcome.data is True
    assert "the event loop is blocked by" in caplog.text
    assert "block_the_loop" in caplog.text
    assert __file__ in caplog.text


# -- heartbeats --


async def test_a_tool_that_promised_to_report_and_falls_silent_is_given_up(harness: Harness) -> None:
    @tool(side_effect="read", heartbeat=HeartbeatRule(timeout=0.2), retry=ONCE)
    async def silent(invocation: ToolInvocation) -> str:
        """Report once and no more."""
        invocation.heartbeat(0.1)
        await asyncio.Event().wait()
        return "never"

    async with tool_worker(harness, silent):
        (outcome,) = await outcomes(harness)
    assert outcome.error is not None
    assert outcome.error.category == "timeout"
    assert "no sign of life for 0.2 s" in outcome.error.message
    assert outcome.metadata["heartbeat_timeout"] is True


async def test_reports_outside_the_scale_are_signs_of_life_too(harness: Harness) -> None:
    @tool(side_effect="read", heartbeat=HeartbeatRule(timeout=0.5), retry=ONCE)
    def chatty(invocation: ToolInvocation) -> str:
        """Report nonsense for longer than silence is borne."""
        until = time.monotonic() + 1
        while time.monotonic() < until:
            invocation.heartbeat(float("nan"))
            invocation.heartbeat(7.0, "no such progress")
            time.sleep(0.01)
        return "lived"

    async with tool_worker(harness, chatty):
        (outcome,) = await outcomes(harness)
    assert outcome.text == "lived"


async def test_waiting_for_a_thread_is_no_silence(harness: Harness) -> None:
    in_flight = InFlight(threads=1, patience=30)
    release = threading.Event()
    body = await in_flight.begin(release.wait, in_thread=True)

    @tool(side_effect="read", heartbeat=HeartbeatRule(timeout=0.2), retry=ONCE)
    def prompt(invocation: ToolInvocation) -> str:
        """Answer as soon as there is a thread."""
        return "answered"

    async with tool_worker(harness, prompt, in_flight=in_flight):
        run = await harness.start(PROMPT)
        await beaten_twice(run, "prompt")
        release.set()
        await body.future
        await run.result()
        (outcome,) = await outcomes_of(run)
    assert outcome.text == "answered"


async def test_progress_reaches_temporal_and_nonsense_does_not(harness: Harness) -> None:
    reports: asyncio.Queue[tuple[float, str]] = asyncio.Queue()

    @tool(side_effect="read", heartbeat=HeartbeatRule(timeout=30), lost_after=1, retry=ONCE)
    async def report(invocation: ToolInvocation) -> None:
        """Report what it is told to."""
        while (progress := (await reports.get()))[0] <= 9:
            invocation.heartbeat(*progress)

    seen: list[list[object]] = []

    async def shown(run: Handle, *wanted: object) -> None:
        async def is_shown() -> bool:
            details = await heartbeat_details(run, "report")
            if details and details != (seen[-1] if seen else None):
                seen.append(details)
            return bool(seen) and seen[-1] == list(wanted)

        await eventually(is_shown)

    async with tool_worker(harness, report):
        run = await harness.start(PROMPT)
        reports.put_nowait((0.5, "half way"))
        await shown(run, 0.5, "half way")
        reports.put_nowait((7.0, "beyond"))
        reports.put_nowait((-1.0, "before"))
        await beaten_twice(run, "report")
        await shown(run, 0.5, "half way")
        reports.put_nowait((1.0, "x" * 10_000))
        await shown(run, 1.0, "x" * (500 - 44) + " [cut: this is the beginning of 10000 bytes]")
        reports.put_nowait((99.0, "stop"))
        await run.result()
    assert len(seen) == 2


def _without_heartbeat(release: asyncio.Event) -> Tool:
    @tool(side_effect="read", lost_after=1, retry=ONCE)
    async def long() -> str:
        """Take longer than a lost worker goes unnoticed."""
        await release.wait()
        return "done"

    return long


def _with_rare_reports(release: asyncio.Event) -> Tool:
    rule = HeartbeatRule(timeout=60, minimum_interval=3_600)

    @tool(side_effect="read", lost_after=1, retry=ONCE, heartbeat=rule)
    async def long(invocation: ToolInvocation) -> str:
        """Have its reports passed on once an hour."""
        await release.wait()
        return "done"

    return long


@pytest.mark.parametrize("make", [_without_heartbeat, _with_rare_reports])
async def test_the_runtime_beats_while_the_call_lives(harness: Harness, make: Callable[[asyncio.Event], Tool]) -> None:
    release = asyncio.Event()
    async with tool_worker(harness, make(release)):
        run = await harness.start(PROMPT)
        await beaten_twice(run, "long")
        release.set()
        await run.result()
        (outcome,) = await outcomes_of(run)
    assert outcome.text == "done"
    assert attempts((await histories(harness.client, run.id))[0], "long") == [1]


async def started(run: Handle, activity: str) -> None:
    """Wait until a worker has taken this activity."""

    async def has_started() -> bool:
        pending = (await run.describe()).raw_description.pending_activities
        return any(each.activity_type.name == activity and each.HasField("last_started_time") for each in pending)

    await eventually(has_started)


async def heartbeat_details(run: Handle, activity: str) -> list[object]:
    """What the last beat of this activity carried."""
    for pending in (await run.describe()).raw_description.pending_activities:
        if pending.activity_type.name == activity and pending.HasField("heartbeat_details"):
            converter = run._client.data_converter
            return await converter.decode(pending.heartbeat_details.payloads)
    return []


async def beaten_twice(run: Handle, activity: str) -> None:
    """Wait until two more beats of this activity have come."""
    beats: list[int] = []

    async def two() -> bool:
        for pending in (await run.describe()).raw_description.pending_activities:
            if pending.activity_type.name == activity and pending.HasField("last_heartbeat_time"):
                beats.append(pending.last_heartbeat_time.ToNanoseconds())
        return len(set(beats)) >= 3

    await eventually(two, patience=15)
