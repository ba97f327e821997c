"""R-28: a plain function goes on after its attempt is over. It must not write beside its retry, nor keep its thread."""

import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import BaseModel, JsonValue, model_serializer
from temporalio.client import Client, WorkflowFailureError
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig

from activities.in_flight import InFlight
from activities.tooling import Tool, tool
from contracts.policies import RetryRule
from contracts.tools import ToolInvocation
from runtime.converter import data_converter
from runtime.dev_server import DevServer
from tests.support.agents import PROMPT
from tests.support.harness import Harness, state_of
from tests.support.tool_worker import outcomes, tool_worker
from tests.support.waiting import eventually

TWICE = RetryRule(max_attempts=2, initial_interval=0.01, max_interval=0.02)


@tool(side_effect="read")
def probe() -> str:
    """Answer."""
    return "served"


class Slots:
    """How many activity slots the workers of one client use, as the SDK's own metric says."""

    def __init__(self, buffer: MetricBuffer) -> None:
        self._buffer = buffer
        self._used: dict[str, float] = {}

    def used(self) -> float:
        """By the last report of each task queue."""
        for update in self._buffer.retrieve_updates():
            if update.metric.name == "temporal_worker_task_slots_used":
                labels: Mapping[str, object] = update.attributes
                if labels.get("worker_type") == "ActivityWorker":
                    self._used[str(labels.get("task_queue"))] = update.value
        return sum(self._used.values())


@asynccontextmanager
async def measured(server: DevServer) -> AsyncIterator[tuple[Harness, Slots]]:
    """A corner of the server whose client counts its workers' slots."""
    buffer = MetricBuffer(100_000)
    client = await Client.connect(
        server.address,
        data_converter=data_converter,
        runtime=Runtime(telemetry=TelemetryConfig(metrics=buffer)),
    )
    corner = Harness(client)
    yield corner, Slots(buffer)
    await corner.check_histories()


async def all_free(in_flight: InFlight, slots: Slots | None = None) -> None:
    """Wait until no body outlives its attempt, and no slot is used."""

    async def free() -> bool:
        return in_flight.stuck == {} and (slots is None or slots.used() == 0)

    await eventually(free)


@pytest.mark.parametrize("asks_before_each_line", [True, False])
async def test_r28_no_line_of_an_attempt_comes_after_the_next_one_began(
    server: DevServer, tmp_path: Path, asks_before_each_line: bool
) -> None:
    """A fifth of the report's times. With one thread a function that never asks is done before its retry begins."""
    lines, in_flight = tmp_path / "lines", InFlight(threads=1)

    @tool(side_effect="write", idempotency="idempotent", timeout=0.5, retry=TWICE)
    def append(invocation: ToolInvocation) -> str:
        """Append ten lines, one in a fifth of a second."""
        for number in range(10):
            time.sleep(0.2)
            if asks_before_each_line and not invocation.still_mine():
                return "given up"
            with lines.open("a") as file:
                file.write(f"{invocation.attempt} {number}\n")
        return "appended"

    async with measured(server) as (harness, slots), tool_worker(harness, append, probe, in_flight=in_flight):
        appended, probed = await outcomes(harness)
        await all_free(in_flight, slots)
    written = [line.split()[0] for line in lines.read_text().splitlines()]
    assert set(written) == {"1", "2"}
    assert written == sorted(written)
    assert asks_before_each_line == (len(written) < 10)
    assert appended.error is not None
    assert (appended.error.category, appended.metadata["tool_attempt"]) == ("unknown_outcome", 2)
    assert probed.text == "served"


class Slow(BaseModel):
    """A result that is being written as JSON until the test says so."""

    @model_serializer
    def written(self) -> dict[str, str]:
        writing.set()
        assert go_on.wait(30)
        return {"receipt": "r_1"}


writing, go_on = threading.Event(), threading.Event()
invoked: list[ToolInvocation] = []


@tool(side_effect="read", lost_after=1)
def look(invocation: ToolInvocation) -> Slow:
    """Return something that takes long to write."""
    invoked.append(invocation)
    return Slow()


@tool(side_effect="write", lost_after=1)
def pay(invocation: ToolInvocation) -> Slow:
    """Pay, and return something that takes long to write."""
    invoked.append(invocation)
    return Slow()


@pytest.mark.parametrize(("called", "state"), [(look, None), (pay, "done")], ids=["read", "write"])
async def test_r28_a_cancellation_while_the_result_is_written_costs_no_thread(
    harness: Harness, called: Tool, state: str | None
) -> None:
    """The function has returned: an effect is known to be done, and the thread comes back."""
    writing.clear()
    go_on.clear()
    in_flight = InFlight(threads=1)
    calling: list[tuple[str, Mapping[str, JsonValue]]] = [(called.name, {})]
    async with tool_worker(harness, called, probe, calling=calling, in_flight=in_flight):
        run = await harness.start(PROMPT)

        async def is_writing() -> bool:
            return writing.is_set()

        async def told_to_stop() -> bool:
            return not invoked[-1].still_mine()

        await eventually(is_writing)
        await run.cancel()
        await eventually(told_to_stop)
        go_on.set()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        effects = (await state_of(run)).effects
        await all_free(in_flight)
    assert [effect.state for effect in effects] == ([state] if state else [])
    async with tool_worker(harness, probe, in_flight=in_flight):
        (probed,) = await outcomes(harness)
    assert probed.text == "served"
