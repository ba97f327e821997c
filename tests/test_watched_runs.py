"""Watching runs: every viewer ends with what the run recorded, and no run is any worse for being watched."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import ModuleType

import pytest
from pydantic import JsonValue

from activities.catalog import Catalog, CatalogError
from activities.delta_sinks import Callback, DeltaSink, Posted
from activities.tooling import tool
from contracts.deltas import BuildingCall, DeltaBatch, DeltaEvent
from runtime.dev_server import DevServer
from runtime.serving import delta_sink
from runtime.settings import Settings, StartupError
from tests.providers.model_server import ModelServer, Response, chat_reply
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, attempts, histories, state_of, transcript_of
from tests.support.tool_worker import texts_in_history
from tests.support.watching import Relay, Viewer, answer, broken_off, calls, in_parts, says, watched_worker
from tests.support.worker_process import worker_process
from tests.test_cancellation import cancelled_state

TOKEN = "token-for-the-receiver"
RECORDED = "The harbour opens at nine."


@asynccontextmanager
async def a_sink(kind: str, relay: Relay) -> AsyncIterator[DeltaSink]:
    """A sink of this kind that ends in the relay; posted events go over the network."""
    if kind == "callback":
        yield Callback(relay.take)
        return

    async def receive(body: dict[str, JsonValue]) -> Response:
        for event in DeltaBatch.model_validate(body).events:
            await relay.take(event)
        return Response(204, {"content-length": "0"})

    async with ModelServer(receive) as receiver:
        yield Posted(receiver.base_url, TOKEN, gather_seconds=0.01)


@pytest.mark.parametrize("kind", ["callback", "posted"])
@pytest.mark.parametrize("with_half_a_call", [False, True], ids=["text", "half a call"])
async def test_all_viewers_of_a_retried_call_end_with_the_recorded_text(
    harness: Harness, kind: str, with_half_a_call: bool
) -> None:
    """Field report R-39: one viewer from the start, one that joins late, one that comes back."""
    ran: list[str] = []

    @tool(side_effect="write", approval="always")
    def book(berth: str) -> str:
        """Book a berth."""
        ran.append(berth)
        return berth

    relay, meanwhile = Relay(), list[str]()

    async def the_first_attempt_is_seen() -> None:
        last = "tool_call_building" if with_half_a_call else "model_content_delta"
        await relay.told(lambda event: event.type == last)

    async def somebody_joins() -> None:
        shown = await relay.told(lambda event: event.attempt == 2 and event.type == "model_content_delta")
        meanwhile.append(relay.watching[0].view.text)
        relay.watching.append(Viewer.of(shown))

    half = [calls("book", '{"berth": "No')] if with_half_a_call else []
    replies = [
        in_parts(says("The harbour op"), *half, the_first_attempt_is_seen, cut=True),
        in_parts(says("The harbour opens"), somebody_joins, says(" at nine."), "[DONE]"),
    ]
    async with (
        ModelServer(replies) as server,
        a_sink(kind, relay) as sink,
        watched_worker(harness, server, sink, book),
    ):
        run = await harness.start(PROMPT)
        first = await relay.told(lambda event: event.attempt == 1)
        always, back = Viewer.of(first), Viewer.of(first)
        always.show(relay.events)
        relay.watching.append(always)
        # The third one has seen a little of the first attempt when its connection is lost.
        back.show(relay.events[:2])
        await run.result()
        recorded = (await transcript_of(run)).messages[-1].text
        pending = (await state_of(run)).pending_approvals
    assert recorded == RECORDED
    offset = back.view.position
    assert offset[0] == 1
    back.show([event for event in relay.events if (event.attempt, event.sequence) > offset])
    # What the first attempt said is gone as soon as the second one speaks.
    (shown,) = meanwhile
    assert RECORDED.startswith(shown)
    assert shown
    late = relay.watching[-1]
    assert late is not always
    for viewer in (always, late, back):
        assert (viewer.view.text, viewer.view.complete, viewer.view.ready) == (RECORDED, True, ())
    one, two = ([event for event in relay.events if event.attempt == number] for number in (1, 2))
    for events in (one, two):
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert {event.key for event in relay.events} == {first.key}
    assert (one[-1].type, one[-1].error, one[-1].retried) == ("model_failed", "ModelUnavailable", True)
    assert "tool_call_ready" not in [event.type for event in relay.events]
    half_way = Viewer.of(first)
    half_way.show(one[:-1])
    assert half_way.view.text == "The harbour op"
    assert half_way.view.building == ((BuildingCall(0, "book", '{"berth": "No'),) if with_half_a_call else ())
    assert (ran, pending) == ([], ())


async def test_a_call_is_ready_once_the_whole_reply_is_there(harness: Harness) -> None:
    @tool(side_effect="read")
    def look(x: str) -> str:
        """Look."""
        return x

    relay = Relay()
    asked = answer(
        calls("look", '{"x"'), calls(None, ': "a"}'), calls("look", '{"y": 1}', 1), finish_reason="tool_calls"
    )
    async with (
        ModelServer([asked, answer(says("Done."))]) as server,
        watched_worker(harness, server, Callback(relay.take), look),
    ):
        result = await (await harness.start(PROMPT)).result()
    first = [event for event in relay.events if event.key == relay.events[0].key]
    assert [(event.type, event.call, event.tool, event.text) for event in first] == [
        ("model_first_event", None, "", ""),
        ("tool_call_building", 0, "look", '{"x"'),
        ("tool_call_building", 0, "look", ': "a"}'),
        ("tool_call_building", 1, "look", '{"y": 1}'),
        # The other one has illegal arguments.
        ("tool_call_ready", 0, "look", ""),
        ("model_completed", None, "", ""),
    ]
    assert first[4].call_id == result.tool_results[0].call_id
    assert {event.key for event in relay.events} > {first[0].key}


async def test_replies_are_streamed_without_a_sink_too(harness: Harness) -> None:
    async with (
        ModelServer([answer(says("All the "), says("same."))]) as server,
        watched_worker(harness, server, None),
    ):
        result = await (await harness.start(PROMPT)).result()
        assert (server.requests[0].json or {})["stream"] is True
    assert result.text == "All the same."


async def test_a_server_that_does_not_stream_gives_one_delta_with_the_whole_text(harness: Harness) -> None:
    relay = Relay()
    async with (
        ModelServer([chat_reply({"content": "In one piece."})]) as server,
        watched_worker(harness, server, Callback(relay.take), streaming=False),
    ):
        await (await harness.start(PROMPT)).result()
        assert (server.requests[0].json or {})["stream"] is False
    assert [(event.type, event.text) for event in relay.events] == [
        ("model_first_event", ""),
        ("model_content_delta", "In one piece."),
        ("model_completed", "In one piece."),
    ]


class Failing(DeltaSink):
    """Does what it is told to do with every batch."""

    def __init__(self, mishap: str) -> None:
        self.mishap = mishap
        self.diary: list[str] = []

    async def publish(self, events: Sequence[DeltaEvent]) -> None:
        self.diary.append("publish")
        if self.mishap == "raises":
            raise RuntimeError(events[0].text)
        await asyncio.Event().wait()

    async def start(self) -> None:
        self.diary.append("start")

    async def close(self) -> None:
        self.diary.append("close")


@pytest.mark.parametrize("mishap", ["raises", "hangs"])
async def test_a_sink_that_fails_harms_no_run_and_lives_as_long_as_the_worker(harness: Harness, mishap: str) -> None:
    sink = Failing(mishap)
    sink.delivery = type(sink.delivery)(patience_seconds=0.2)
    async with (
        ModelServer([answer(says("Fine, "), says("thanks.")), answer(says("Again."))]) as server,
        watched_worker(harness, server, sink),
    ):
        first = await (await harness.start(PROMPT)).result()
        second = await (await harness.start(PROMPT)).result()
    assert (first.text, second.text) == ("Fine, thanks.", "Again.")
    assert sink.diary == ["start", "publish", "publish", "close"]


async def test_deltas_never_enter_history(harness: Harness) -> None:
    relay = Relay()
    marker = "never-to-be-recorded"
    replies = [broken_off(says(marker), calls("look", marker)), answer(says("Recorded."))]
    async with (
        ModelServer(replies) as server,
        watched_worker(harness, server, Callback(relay.take)),
    ):
        run = await harness.start(PROMPT)
        result = await run.result()
        (history,) = await histories(harness.client, run.id)
    assert result.text == "Recorded."
    assert attempts(history, "call_model") == [2]
    assert marker in [event.text for event in relay.events]
    written = b"".join(event.SerializeToString() for event in history.events)
    texts = await texts_in_history(harness, run.id)
    assert "Recorded." in texts
    assert marker.encode() not in written
    assert not any(marker in text for text in texts)


async def test_cancelling_a_run_mid_stream_ends_everything_of_it_and_nothing_else(harness: Harness) -> None:
    relay, go_on = Relay(), asyncio.Event()

    def reply(request: dict[str, JsonValue]) -> Response:
        if "Stay." in str(request["messages"]):
            return in_parts(says("Still "), go_on.wait, says("here."), "[DONE]")
        # Whoever stops listening hears nothing of what is sent after that.
        return in_parts(says("Some text"), the_text_is_seen, *[says(" more")] * 3, asyncio.Event().wait)

    async def the_text_is_seen() -> None:
        await relay.told(lambda event: event.text == "Some text")

    clock = asyncio.get_running_loop().time
    async with (
        ModelServer(reply) as server,
        watched_worker(harness, server, Callback(relay.take)),
    ):
        other = await harness.start({**PROMPT, "prompt": "Stay."})
        await relay.told(lambda event: event.text == "Still ")
        run = await harness.start(PROMPT)
        await relay.told(lambda event: event.workflow_id == run.id and event.text == " more")
        await run.cancel()
        began = clock()
        await server.disconnected(1)
        # A beat a second brings the cancellation; the rest is for a busy machine.
        assert clock() - began < 3
        await cancelled_state(run)
        told = len(relay.of(run.id))
        assert await idle_share() < 0.25
        assert len(relay.of(run.id)) == told
        assert "model_failed" not in [event.type for event in relay.of(run.id)]
        assert server.disconnects == 1
        go_on.set()
        result = await other.result()
    assert result.text == "Still here."
    others = Viewer.of(relay.of(other.id)[0])
    others.show(relay.of(other.id))
    assert (others.view.text, others.view.complete, others.view.gap) == ("Still here.", True, False)
    assert len(relay.of(run.id)) == told


async def idle_share() -> float:
    """How much of one CPU this process, worker and all, uses while nothing should happen: the least of four looks,
    since something else may happen in one of them."""
    shares = []
    for _ in range(4):
        wall, cpu = time.monotonic(), time.process_time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.25):
                await asyncio.Event().wait()
        shares.append((time.process_time() - cpu) / (time.monotonic() - wall))
    return min(shares)


def test_a_module_may_bring_one_sink() -> None:
    sink, module, other = Callback(print), ModuleType("app"), ModuleType("other")
    vars(module).update(agent=scripted_agent(), watch=sink, Callback=Callback)
    vars(other).update(watch=sink)
    catalog = Catalog.from_modules([module, other])
    assert catalog.sink is sink
    assert delta_sink(Settings(), catalog) is sink
    vars(other).update(more=Posted("https://host/"))
    with pytest.raises(CatalogError, match="2 sinks for deltas, Callback and Posted: a worker has at most one"):
        Catalog.from_modules([module, other])
    with pytest.raises(StartupError, match="STEADYHAND_DELTAS_URL is set, and an app has a sink of its own, Callback"):
        delta_sink(Settings(deltas_url="https://host/"), catalog)


def test_the_settings_make_a_sink_and_are_not_shown() -> None:
    catalog = Catalog([scripted_agent()])
    environment = {"STEADYHAND_DELTAS_URL": "https://host/room-7", "STEADYHAND_DELTAS_TOKEN": TOKEN}
    settings = Settings.from_environment(environment)
    assert isinstance(delta_sink(settings, catalog), Posted)
    assert TOKEN not in repr(settings)
    assert "room-7" not in repr(settings)
    assert delta_sink(Settings.from_environment(dict.fromkeys(environment, "")), catalog) is None
    with pytest.raises(StartupError, match=r"^STEADYHAND_DELTAS_URL or its token: the URL for deltas must look like"):
        delta_sink(Settings(deltas_url=f"https://{TOKEN}@host/"), catalog)
    with pytest.raises(StartupError, match="STEADYHAND_DELTAS_TOKEN holds characters that cannot") as refused:
        delta_sink(Settings(deltas_url="https://host/", deltas_token=f"{TOKEN} x"), catalog)
    assert TOKEN not in str(refused.value)


async def test_a_worker_posts_to_the_url_of_its_settings(harness: Harness, server: DevServer) -> None:
    async with (
        ModelServer([answer(says("Posted."))]) as model,
        ModelServer(lambda _: Response.of({}, 500)) as receiver,
    ):
        settings = {
            "STEADYHAND_MODEL": "openai:any",
            "OPENAI_API_KEY": "any-key-at-all",
            "OPENAI_BASE_URL": model.base_url,
            "STEADYHAND_DELTAS_URL": f"{receiver.base_url}/{TOKEN}",
            "STEADYHAND_DELTAS_TOKEN": TOKEN,
        }
        async with worker_process("tests.apps.payments", harness.task_queue, server.address, settings) as worker:
            result = await (await harness.start({"agent": "refunder", "prompt": "Go."})).result()
            await worker.terminate()
            log = worker.log()
    assert result.text == "Posted."
    assert {request.headers["authorization"] for request in receiver.requests} == {f"Bearer {TOKEN}"}
    assert {request.path for request in receiver.requests} == {f"/v1/{TOKEN}"}
    (line,) = log.splitlines()
    assert line.endswith(
        f"steadyhand.deltas: deltas of call_model of {result.workflow_id}, attempt 1, are given up: HTTPStatusError"
    )
    assert TOKEN not in line
