"""How much runs at once: every pool is bounded, none waits for another, and what was accepted is finished."""

import asyncio
import threading
from functools import partial

import pytest
from temporalio import activity

from activities.hooks import Hooks
from activities.in_flight import CapacityExhausted, InFlight
from activities.providers.interface import CompletionRequest
from activities.tooling import tool
from contracts.context import ExecutionContext
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, attempts, calls, histories, says, script
from tests.support.tool_worker import outcomes, tool_worker
from tests.support.waiting import eventually


async def test_the_pool_of_tools_is_bounded_and_a_full_one_refuses_rather_than_waits() -> None:
    release, running = threading.Event(), threading.Semaphore(0)

    def hold() -> None:
        running.release()
        assert release.wait(30)

    in_flight, loop = InFlight(), asyncio.get_running_loop()
    bodies = [await in_flight.begin(hold, in_thread=True) for _ in range(32)]
    for _ in range(32):
        assert await asyncio.to_thread(running.acquire, timeout=30)
    began = loop.time()
    with pytest.raises(CapacityExhausted):
        await in_flight.begin(hold, in_thread=True)
    assert 1.9 < loop.time() - began < 10
    release.set()
    await asyncio.gather(*(body.future for body in bodies))
    again = await in_flight.begin(partial(running.acquire, blocking=False), in_thread=True)
    # The refused call never ran.
    assert await again.future is False


@pytest.mark.parametrize("threads", [0, -1])
def test_a_pool_without_threads_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match=f"at least one thread, not {threads}"):
        InFlight(threads=threads)


async def test_a_worker_without_slots_is_refused(harness: Harness) -> None:
    with pytest.raises(ValueError, match="max_concurrent"):
        async with tool_worker(harness, slots=0):
            raise AssertionError("served")


async def test_a_worker_has_a_hundred_slots_unless_its_host_says_otherwise(harness: Harness) -> None:
    async with harness.worker(scripted_agent()) as worker:
        assert worker.config()["max_concurrent_activities"] == 100


async def test_what_no_slot_takes_waits_in_temporal(harness: Harness) -> None:
    release, running, most = asyncio.Event(), list[int](), 0

    @tool(side_effect="read")
    async def look(number: int) -> str:
        """Look, and see who else does."""
        nonlocal most
        running.append(number)
        most = max(most, len(running))
        await release.wait()
        running.remove(number)
        return "seen"

    batch = [("look", {"number": number}) for number in range(3)]
    async with tool_worker(harness, look, calling=batch, together=True, slots=1):
        run = await harness.start(PROMPT)

        async def one_at_work() -> bool:
            pending = (await run.describe()).raw_description.pending_activities
            return sorted(each.HasField("last_started_time") for each in pending) == [False, False, True]

        await eventually(one_at_work, patience=10)
        release.set()
        await run.result()
    assert most == 1


async def test_hooks_do_not_wait_for_threads_of_tools(harness: Harness) -> None:
    """The pool of tools is full; the hook of the model call has a thread all the same, and the run ends."""
    seen: list[str] = []

    def watch(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        seen.append(threading.current_thread().name)
        return request

    full, release = InFlight(threads=1, patience=0.01), threading.Event()
    body = await full.begin(release.wait, in_thread=True)
    hooks = [Hooks("tester", prepare_model_request=watch)]
    async with tool_worker(harness, hooks=hooks, in_flight=full):
        run = await harness.start(PROMPT)
        async with asyncio.timeout(20):
            result = await run.result()
    release.set()
    await body.future
    assert (result.text, seen) == ("Done.", ["tool"])


async def test_a_run_needs_no_slot_of_its_own_activities(harness: Harness) -> None:
    """One slot for activities: the run that waits for them holds none, so there is nothing to lock."""

    @tool(side_effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    async with tool_worker(harness, look, calling=[("look", {})] * 3, together=True, slots=1):
        async with asyncio.timeout(20):
            seen = await outcomes(harness)
    assert [outcome.text for outcome in seen] == ["seen"] * 3


async def test_what_a_worker_has_accepted_it_finishes_before_it_stops(harness: Harness) -> None:
    began = asyncio.Event()

    @tool(side_effect="write")
    async def pay() -> str:
        """Pay, only once the worker is stopping, and not at once."""
        began.set()
        await activity.wait_for_worker_shutdown()
        await activity.client().get_workflow_handle(activity.info().workflow_id or "").describe()
        return "paid"

    scripts = {"main": script(calls(("pay", {})), says("Paid."))}
    async with harness.worker(scripted_agent(pay), scripts=scripts):
        run = await harness.start(PROMPT)
        await began.wait()
    async with harness.worker(scripted_agent(pay), scripts=scripts):
        result = await run.result()
    assert (result.text, result.tool_results[0].text) == ("Paid.", "paid")
    assert attempts((await histories(harness.client, run.id))[0], "pay") == [1]
