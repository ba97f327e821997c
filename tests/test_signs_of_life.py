"""R-29: whatever waits long shows that it lives, so that it is neither given up nor out of reach of a cancellation."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from itertools import pairwise

import pytest
from pydantic import ValidationError
from temporalio.client import WorkflowFailureError

from activities.providers.interface import Completion, CompletionRequest, Publish, to_nobody
from activities.tooling import tool
from contracts.policies import HeartbeatRule, RetryRule
from contracts.tools import ToolContract, ToolInvocation
from tests.providers.model_server import ModelServer, Response
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, attempts, histories
from tests.support.loopback import loopback_client
from tests.support.three_apis import said
from tests.support.tool_worker import tool_worker
from tests.support.waiting import eventually
from tests.support.watching import watched_worker

ONCE = RetryRule(max_attempts=1)
DEFAULT_LOST_AFTER = 10.0


def beats_left() -> list[str]:
    """The tasks of this process that beat for an activity."""
    return [task.get_name() for task in asyncio.all_tasks() if " _beat " in str(task.get_coro())]


async def nobody_beats() -> None:
    """Wait until the worker beats for no activity any more."""

    async def none() -> bool:
        return not beats_left()

    await eventually(none)


async def beat_times(run: Handle, activity: str, count: int) -> Sequence[float]:
    """When so many beats of this activity reached the server, in seconds, as the server says."""
    times: list[float] = []

    async def enough() -> bool:
        for pending in (await run.describe()).raw_description.pending_activities:
            at = pending.last_heartbeat_time.ToNanoseconds() / 1e9
            if pending.activity_type.name == activity and at and at not in times:
                times.append(at)
        return len(times) == count

    await eventually(enough)
    return times


async def beats_in_time(run: Handle, activity: str) -> None:
    """The server hears of this activity at least every half of its heartbeat timeout."""
    (config,) = [
        pending.activity_options.heartbeat_timeout
        for pending in (await run.describe()).raw_description.pending_activities
        if pending.activity_type.name == activity
    ]
    times = await beat_times(run, activity, 3)
    between = [later - earlier for earlier, later in pairwise(times)]
    assert max(between) <= config.ToTimedelta().total_seconds() / 2, between


class Slow:
    """A server of any kind that gives no byte until it is released."""

    def __init__(self, answer: Response) -> None:
        self._answer = answer
        self._released = asyncio.Event()
        self.asked = asyncio.Event()

    async def answer(self, request: object) -> Response:
        self.asked.set()
        await self._released.wait()
        return self._answer

    def release(self) -> None:
        self._released.set()


# -- (a), (d), (e): long work beats, by itself -------------------------------------------------------------------------


async def test_r29_a_long_tool_beats_though_it_does_nothing_for_it(harness: Harness) -> None:
    release = asyncio.Event()

    @tool(side_effect="read", lost_after=5, retry=ONCE)
    async def long() -> str:
        """Take long."""
        await release.wait()
        return "done"

    async with tool_worker(harness, long):
        run = await harness.start(PROMPT)
        await eventually(partial(started, run, "long"))
        await beats_in_time(run, "long")
        release.set()
        await run.result()
        await nobody_beats()
    assert attempts((await histories(harness.client, run.id))[0], "long") == [1]


async def test_r29_a_model_that_gives_no_byte_for_long_is_still_waited_for(harness: Harness) -> None:
    slow = Slow(said("chat", text="At last."))
    async with ModelServer(slow.answer) as server, watched_worker(harness, server, None, streaming=False):
        run = await harness.start(PROMPT)
        await slow.asked.wait()
        await beats_in_time(run, "call_model")
        slow.release()
        assert (await run.result()).text == "At last."
        await nobody_beats()
    assert attempts((await histories(harness.client, run.id))[0], "call_model") == [1]
    assert len(server.requests) == 1


async def test_r29_a_tool_that_waits_for_another_process_beats(harness: Harness) -> None:
    """As a call over MCP does: one request over a connection, and nothing comes for long."""
    slow = Slow(Response.of({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "found"}]}}))
    async with ModelServer(slow.answer) as server:

        @tool(side_effect="read", lost_after=5, retry=ONCE)
        async def search() -> str:
            """Search elsewhere."""
            async with loopback_client(timeout=None) as http:
                request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
                return (await http.post(server.base_url, json=request)).text

        async with tool_worker(harness, search):
            run = await harness.start(PROMPT)
            await slow.asked.wait()
            await beats_in_time(run, "search")
            slow.release()
            result = await run.result()
    assert "found" in result.tool_results[0].text
    assert attempts((await histories(harness.client, run.id))[0], "search") == [1]


# -- (b): a cancellation arrives with the next beat --------------------------------------------------------------------


@pytest.mark.parametrize("lost_after", [5.0, DEFAULT_LOST_AFTER], ids=["given", "default"])
async def test_r29_a_cancelled_tool_is_stopped_within_one_interval(harness: Harness, lost_after: float) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    @tool(side_effect="read", lost_after=lost_after, retry=ONCE)
    async def long() -> str:
        """Take long."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    async with tool_worker(harness, long):
        run = await harness.start(PROMPT)
        await began.wait()
        await run.cancel()
        async with asyncio.timeout(lost_after / 2):
            await stopped.wait()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        await nobody_beats()


# -- (c): no activity of a worker of ours waits without a heartbeat ----------------------------------------------------


async def test_r29_no_tool_goes_without_a_heartbeat_timeout(harness: Harness) -> None:
    @tool(side_effect="read")
    def plain() -> str:
        """Say nothing of heartbeats."""
        return "done"

    async with tool_worker(harness, plain):
        run = await harness.start(PROMPT)
        await run.result()
    (history,) = await histories(harness.client, run.id)
    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    timeouts = {each.activity_type.name: each.heartbeat_timeout.ToTimedelta() for each in scheduled}
    assert timeouts["plain"] == timedelta(seconds=DEFAULT_LOST_AFTER)
    assert timeouts["call_model"] == timedelta(seconds=15)


@pytest.mark.parametrize("lost_after", [0, 0.5, -1, float("inf"), float("nan"), None])
def test_r29_a_tool_without_a_heartbeat_timeout_is_refused(lost_after: float | None) -> None:
    contract = {"name": "t", "description": "d", "input_schema": {"type": "object"}, "side_effect": "read"}
    with pytest.raises(ValidationError, match="lost_after"):
        ToolContract.model_validate({**contract, "lost_after": lost_after})


# -- (f): what a beat carries is bounded -------------------------------------------------------------------------------


async def test_r29_megabytes_of_progress_are_cut(harness: Harness) -> None:
    release = asyncio.Event()

    @tool(side_effect="read", heartbeat=HeartbeatRule(timeout=60), lost_after=5, retry=ONCE)
    async def talkative(invocation: ToolInvocation) -> str:
        """Report 3 MB."""
        invocation.heartbeat(0.5, "p" * 3_000_000)
        await release.wait()
        return "done"

    async with tool_worker(harness, talkative):
        run = await harness.start(PROMPT)

        async def shown() -> bytes | None:
            for pending in (await run.describe()).raw_description.pending_activities:
                if pending.activity_type.name == "talkative" and pending.heartbeat_details.payloads:
                    return pending.heartbeat_details.SerializeToString()
            return None

        details = await eventually(shown)
        release.set()
        await run.result()
    assert b"this is the beginning of 3000000 bytes" in details
    assert len(details) < 1_000
    assert attempts((await histories(harness.client, run.id))[0], "talkative") == [1]


async def test_of_many_reports_only_one_in_an_interval_is_passed_on(harness: Harness) -> None:
    reports: asyncio.Queue[float] = asyncio.Queue()
    rule = HeartbeatRule(timeout=60, minimum_interval=3_600)

    @tool(side_effect="read", heartbeat=rule, lost_after=5, retry=ONCE)
    async def busy(invocation: ToolInvocation) -> str:
        """Report what it is told to."""
        while (progress := await reports.get()) < 1:
            invocation.heartbeat(progress)
        return "done"

    async with tool_worker(harness, busy):
        run = await harness.start(PROMPT)

        async def shown() -> bytes | None:
            for pending in (await run.describe()).raw_description.pending_activities:
                if pending.activity_type.name == "busy" and pending.heartbeat_details.payloads:
                    return pending.heartbeat_details.payloads[0].data
            return None

        reports.put_nowait(0.25)
        assert await eventually(shown) == b"0.25"
        for _ in range(100):
            reports.put_nowait(0.75)
        await beat_times(run, "busy", 2)
        assert await shown() == b"0.25"
        reports.put_nowait(1.0)
        await run.result()


# -- the beat dies with the work ---------------------------------------------------------------------------------------


class Raising:
    """A model that is a bug."""

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        raise LookupError("no such model here")


async def test_r29_no_beat_outlives_work_that_failed(harness: Harness) -> None:
    @tool(side_effect="read", retry=ONCE)
    async def fails() -> str:
        """Fail."""
        raise RuntimeError("no")

    raising = scripted_agent().model_copy(update={"name": "raising", "model": "raising:main"})
    async with tool_worker(harness, fails):
        await (await harness.start(PROMPT)).result()
        await nobody_beats()
    async with harness.worker(raising, providers={"raising": Raising()}):
        with pytest.raises(WorkflowFailureError):
            await (await harness.start({"agent": "raising", "prompt": "Go."})).result()
        await nobody_beats()


async def started(run: Handle, activity: str) -> bool:
    """Whether a worker has taken this activity."""
    pending = (await run.describe()).raw_description.pending_activities
    return any(each.activity_type.name == activity and each.HasField("last_started_time") for each in pending)
