"""Where deltas go: in order, numbered, within bounds, and never at the expense of the run that they are about."""

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import cast

import pytest
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.delta_sinks import Callback, Delivery, DeltaSink, Dropped, Posted
from activities.deltas import DeltaPublisher
from activities.providers.interface import Delta
from contracts.activities import ModelReply
from contracts.deltas import DeltaBatch, DeltaEvent, DeltaView
from contracts.messages import InvalidToolCall, ToolCall, Usage
from tests.providers.model_server import ModelServer, Received, Response

TOKEN = "token-for-the-receiver"
MARKER = "what the model said"
TAKEN = Response(204, {"content-length": "0"})
ANSWER = ModelReply(text="The answer.", finish_reason="stop", usage=Usage(output_tokens=3))


class Kept(DeltaSink):
    """Keeps what it is given, batch by batch."""

    def __init__(self, delivery: Delivery | None = None) -> None:
        self.delivery = delivery or Delivery()
        self.batches: list[list[DeltaEvent]] = []

    async def publish(self, events: Sequence[DeltaEvent]) -> None:
        self.batches.append(list(events))

    @property
    def events(self) -> list[DeltaEvent]:
        return [event for batch in self.batches for event in batch]


async def attempt_of(
    sink: DeltaSink,
    attempt: Callable[[DeltaPublisher], Awaitable[None]],
    number: int = 1,
    retry: RetryPolicy | None = None,
) -> None:
    """One attempt of an activity that publishes to the sink."""
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, attempt=number, retry_policy=retry)

    async def call_model() -> None:
        async with DeltaPublisher(sink, "call-7") as publisher:
            await attempt(publisher)

    await sink.start()
    try:
        await environment.run(call_model)
    finally:
        await sink.close()


def saying(*deltas: Delta, reply: ModelReply = ANSWER) -> Callable[[DeltaPublisher], Awaitable[None]]:
    async def attempt(publisher: DeltaPublisher) -> None:
        for delta in deltas:
            await publisher(delta)
        await publisher.completed(reply)

    return attempt


def words(count: int, kind: str = "text") -> list[Delta]:
    return [Delta("text" if kind == "text" else "reasoning", f"{number} ") for number in range(count)]


def seen(events: Sequence[DeltaEvent]) -> DeltaView:
    view = DeltaView(events[0].run_id, events[0].key)
    for event in events:
        view = view.after(event)
    return view


async def test_an_attempt_is_told_from_its_first_event_to_its_end() -> None:
    sink = Kept()
    call = ToolCall(call_id="call_1", tool="look", arguments={})
    broken = InvalidToolCall(call_id="call_2", tool="look", issues=(), reason="invalid_arguments")
    reply = ANSWER.model_copy(update={"calls": (broken, call)})
    deltas = [
        Delta("reasoning", "Hm."),
        Delta("text", ""),
        Delta("text", "The answer."),
        Delta("refusal", "Not that."),
        Delta("tool_call", "", call=1, name="look"),
        Delta("tool_call", "{\ud800}", call=1, name="look"),
    ]
    await attempt_of(sink, saying(*deltas, reply=reply), number=3)
    assert [(event.type, event.text) for event in sink.events] == [
        ("model_first_event", ""),
        ("model_reasoning_delta", "Hm."),
        ("model_reasoning_completed", ""),
        ("model_content_delta", "The answer."),
        ("model_refusal_delta", "Not that."),
        ("tool_call_building", ""),
        ("tool_call_building", "{\ufffd}"),
        ("tool_call_ready", ""),
        ("model_completed", "The answer."),
    ]
    assert [event.sequence for event in sink.events] == list(range(1, 10))
    assert {(event.key, event.attempt) for event in sink.events} == {("call-7", 3)}
    building, ready, end = sink.events[5], sink.events[7], sink.events[8]
    assert (building.call, building.tool) == (1, "look")
    assert (ready.call, ready.call_id, ready.tool) == (1, "call_1", "look")
    assert (end.finish_reason, end.usage) == ("stop", ANSWER.usage)


async def test_a_provider_that_publishes_nothing_gives_one_delta_with_the_whole_text() -> None:
    sink = Kept()
    await attempt_of(sink, saying())
    assert [(event.type, event.text) for event in sink.events] == [
        ("model_first_event", ""),
        ("model_content_delta", "The answer."),
        ("model_completed", "The answer."),
    ]


async def test_a_truncated_reply_has_no_call_that_is_ready() -> None:
    sink = Kept()
    call = ToolCall(call_id="call_1", tool="look", arguments={})
    await attempt_of(sink, saying(reply=ModelReply(calls=(call,), truncated=True)))
    assert [event.type for event in sink.events] == ["model_first_event", "model_completed"]


@pytest.mark.parametrize(
    ("error", "attempt", "told", "retried"),
    [
        (ApplicationError("x", type="ModelUnavailable"), 1, "ModelUnavailable", True),
        (ApplicationError("x", type="ModelUnavailable"), 3, "ModelUnavailable", False),
        (ApplicationError("x", type="ModelRefused", non_retryable=True), 1, "ModelRefused", False),
        (RuntimeError("x"), 1, "RuntimeError", True),
    ],
)
async def test_a_failed_attempt_says_whether_there_is_another(
    error: Exception, attempt: int, told: str, retried: bool
) -> None:
    sink = Kept()

    async def fail(publisher: DeltaPublisher) -> None:
        await publisher(Delta("text", "The harb"))
        raise error

    with pytest.raises(type(error)):
        await attempt_of(sink, fail, attempt, RetryPolicy(maximum_attempts=3))
    end = sink.events[-1]
    assert (end.type, end.error, end.retried) == ("model_failed", told, retried)


async def test_the_end_is_told_once() -> None:
    sink = Kept()

    async def attempt(publisher: DeltaPublisher) -> None:
        await publisher.completed(ANSWER)
        await publisher.completed(ANSWER)
        await publisher.failed("ModelUnavailable", retryable=True)
        raise RuntimeError("x")

    with pytest.raises(RuntimeError):
        await attempt_of(sink, attempt)
    assert [event.type for event in sink.events][2:] == ["model_completed"]


async def test_dropping_everything_makes_nothing_and_starts_nothing() -> None:
    called = list[str]()

    def note(frame: FrameType, what: str, _: object) -> None:
        if what == "call":
            called.append(frame.f_code.co_qualname)

    async def attempt(publisher: DeltaPublisher) -> None:
        delta, before = Delta("text", "x"), asyncio.all_tasks()
        sys.setprofile(note)
        try:
            for _ in range(1_000):
                await publisher(delta)
            await publisher.completed(ANSWER)
        finally:
            sys.setprofile(None)
        assert asyncio.all_tasks() == before

    await attempt_of(Dropped(), attempt)
    assert called == ["DeltaPublisher.__call__"] * 1_000 + ["DeltaPublisher.completed"]


class Raising(Kept):
    """Takes one batch and raises what it was given at each one after it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(Delivery(batch_limit=1))
        self._error = error

    async def publish(self, events: Sequence[DeltaEvent]) -> None:
        await super().publish(events)
        if len(self.batches) > 1:
            raise self._error


@pytest.mark.parametrize(
    "error", [RuntimeError(MARKER), TimeoutError(MARKER), asyncio.CancelledError(MARKER), SystemExit(MARKER)]
)
async def test_a_sink_that_raises_is_logged_once_by_its_class_and_left_alone(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Raising(error)
    await attempt_of(sink, saying(*words(20)))
    assert len(sink.batches) == 2
    (line,) = caplog.messages
    assert line == f"deltas of call_model of test, attempt 1, are given up: {type(error).__name__}"
    # Another attempt gets another chance.
    await attempt_of(sink, saying(), number=2)
    assert len(sink.batches) == 3


class Stubborn(Kept):
    """Never comes back, not even when it is cancelled."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery)
        self.let_go = asyncio.Event()

    async def publish(self, events: Sequence[DeltaEvent]) -> None:
        await super().publish(events)
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                continue


@pytest.mark.parametrize("queue_limit", [2, 256])
async def test_a_sink_that_hangs_is_given_up_after_its_patience(
    queue_limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Stubborn(Delivery(queue_limit=queue_limit, patience_seconds=0.2))
    clock = asyncio.get_running_loop().time
    began = clock()
    await attempt_of(sink, saying(*words(20)))
    # Both waits, for one batch and for the whole, began at about the same time; whichever ended first is logged.
    assert clock() - began < 2
    assert len(sink.batches) == 1
    (line,) = caplog.messages
    assert line.startswith("deltas of call_model of test, attempt 1, are given up: ")
    sink.let_go.set()


async def test_a_sink_that_is_a_little_slow_each_time_holds_the_call_up_only_so_long() -> None:
    """The patience is for the attempt, not for each wait."""
    sink, clock = Kept(), asyncio.get_running_loop().time

    async def dawdle(event: DeltaEvent) -> None:
        await sink.publish([event])
        # In place of a slow consumer: it takes time, and nothing is waited for.
        await asyncio.sleep(0.05)

    began = clock()
    await attempt_of(Callback(dawdle, queue_limit=1, patience_seconds=0.3), saying(*words(200)))
    assert 0.2 < clock() - began < 3
    assert 3 < len(sink.events) < 20


async def test_a_callback_that_is_behind_lets_the_model_call_wait() -> None:
    sink, go_on, published = Kept(), asyncio.Event(), list[int]()

    async def slow(event: DeltaEvent) -> None:
        await sink.publish([event])
        await go_on.wait()

    async def attempt(publisher: DeltaPublisher) -> None:
        for number, delta in enumerate(words(10)):
            await publisher(delta)
            published.append(number)
        await publisher.completed(ANSWER)

    running = asyncio.create_task(attempt_of(Callback(slow, queue_limit=3, patience_seconds=30), attempt))
    # A turn of the loop is all that is needed where nothing waits.
    for _ in range(100):
        await asyncio.sleep(0)
    assert (len(sink.events), published) == (1, [0, 1, 2])
    go_on.set()
    await running
    assert [event.sequence for event in sink.events] == list(range(1, 13))


async def test_a_plain_function_runs_in_a_thread_and_one_at_a_time() -> None:
    threads, running, seen_at_once, kept = set[str](), list[int](), set[int](), list[DeltaEvent]()

    def show(event: DeltaEvent) -> None:
        running.append(1)
        threads.add(threading.current_thread().name)
        seen_at_once.add(len(running))
        kept.append(event)
        running.pop()

    await attempt_of(Callback(show), saying(*words(30)))
    assert threading.current_thread().name not in threads
    assert seen_at_once == {1}
    assert [event.sequence for event in kept] == list(range(1, 33))


async def test_a_callable_object_that_is_async_is_awaited() -> None:
    class Screen:
        text = ""

        async def __call__(self, event: DeltaEvent) -> None:
            await asyncio.sleep(0)
            self.text = event.text

    screen = Screen()
    await attempt_of(Callback(screen), saying())
    assert screen.text == "The answer."


async def test_a_plain_function_that_hangs_keeps_neither_the_call_nor_the_loop() -> None:
    let_go = threading.Event()
    await attempt_of(Callback(lambda event: let_go.wait(), patience_seconds=0.1), saying(*words(5)))
    let_go.set()


async def test_what_a_full_queue_holds_is_merged_and_nothing_is_lost() -> None:
    taken, go_on = Kept(Delivery(queue_limit=6, when_full="merge", patience_seconds=30)), asyncio.Event()

    class Stuck(DeltaSink):
        delivery = taken.delivery

        async def publish(self, events: Sequence[DeltaEvent]) -> None:
            await taken.publish(events)
            await go_on.wait()

    async def attempt(publisher: DeltaPublisher) -> None:
        for number in range(300):
            await publisher(Delta("reasoning", f"{number};"))
            await publisher(Delta("text", f"{number} "))
            await publisher(Delta("tool_call", f"{number},", call=number % 2, name="look"))
        # At most one batch is on its way, and nothing has waited for it.
        assert len(taken.batches) <= 1
        go_on.set()
        await publisher.completed(ModelReply(text="whole"))

    await attempt_of(Stuck(), attempt)
    assert [event.sequence for event in taken.events] == list(range(1, len(taken.events) + 1))
    view = seen(taken.events[:-1])
    assert view.text == "".join(f"{number} " for number in range(300))
    assert view.reasoning == "".join(f"{number};" for number in range(300))
    arguments = {call.call: call.arguments for call in view.building}
    assert arguments == {odd: "".join(f"{number}," for number in range(odd, 300, 2)) for odd in (0, 1)}
    assert taken.events[-1].type == "model_completed"


async def test_after_a_cancellation_the_sink_is_not_called_any_more() -> None:
    began, unfinished, sink = asyncio.Event(), asyncio.Event(), Kept()

    async def slow(event: DeltaEvent) -> None:
        await sink.publish([event])
        began.set()
        await unfinished.wait()

    async def attempt(publisher: DeltaPublisher) -> None:
        for delta in words(50):
            await publisher(delta)
        await asyncio.Event().wait()

    running = asyncio.create_task(attempt_of(Callback(slow), attempt))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    unfinished.set()
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(sink.events) == 1
    left = [task for task in asyncio.all_tasks() if "Outbox" in task.get_coro().__qualname__]  # type: ignore[union-attr]
    assert left == []


def batches(requests: Sequence[Received]) -> list[DeltaBatch]:
    return [DeltaBatch.from_wire(request.body) for request in requests]


async def test_events_are_posted_in_batches_with_the_token() -> None:
    async with ModelServer(lambda _: TAKEN) as receiver:
        url = f"{receiver.base_url}/deltas?room=7"
        await attempt_of(Posted(url, f" {TOKEN} "), saying(*words(400), *words(1, "reasoning"), *words(400)))
    events = [event for batch in batches(receiver.requests) for event in batch.events]
    assert {(request.method, request.path) for request in receiver.requests} == {("POST", "/v1/deltas?room=7")}
    assert {request.headers["authorization"] for request in receiver.requests} == {f"Bearer {TOKEN}"}
    assert {request.headers["content-type"] for request in receiver.requests} == {"application/json"}
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    # Pieces that came while nobody could look are one event.
    assert len(events) < 20
    assert seen(events[:-1]).text == "".join(delta.text for delta in words(400)) * 2
    assert events[-1].type == "model_completed"


async def test_what_waits_is_posted_after_a_moment_without_an_end() -> None:
    async with ModelServer(lambda _: TAKEN) as receiver:

        async def attempt(publisher: DeltaPublisher) -> None:
            await publisher(Delta("text", "Early."))
            await receiver.received(1)
            await publisher.completed(ANSWER)

        await attempt_of(Posted(receiver.base_url, gather_seconds=0.01), attempt)
    assert [event.type for event in batches(receiver.requests)[0].events] == [
        "model_first_event",
        "model_content_delta",
    ]


async def test_what_comes_within_a_moment_goes_along_and_the_end_waits_for_nothing() -> None:
    sink, clock = Kept(Delivery(gather_seconds=30, patience_seconds=60)), asyncio.get_running_loop().time

    async def attempt(publisher: DeltaPublisher) -> None:
        for delta in words(5):
            await publisher(delta)
            for _ in range(10):
                await asyncio.sleep(0)
        await publisher.completed(ANSWER)

    began = clock()
    await attempt_of(sink, attempt)
    assert clock() - began < 10
    assert [len(batch) for batch in sink.batches] == [7]


async def test_no_batch_is_larger_than_it_may_be() -> None:
    calls = [Delta("tool_call", "{}", call=number, name="look") for number in range(10)]
    async with ModelServer(lambda _: TAKEN) as receiver:
        await attempt_of(Posted(receiver.base_url, batch_limit=4), saying(*calls, reply=ModelReply()))
    assert [len(batch.events) for batch in batches(receiver.requests)] == [4, 4, 4]


async def test_a_batch_that_was_not_taken_is_posted_again_in_its_place() -> None:
    answers = [Response.of({}, 503), Response.of({}, 429), *[TAKEN] * 20]
    calls = [Delta("tool_call", "{}", call=number, name="look") for number in range(10)]
    async with ModelServer(answers) as receiver:
        await attempt_of(Posted(receiver.base_url, batch_limit=4), saying(*calls, reply=ModelReply()))
    first, second, third, *others = batches(receiver.requests)
    assert first == second == third
    assert [event.sequence for batch in (third, *others) for event in batch.events] == list(range(1, 13))


@pytest.mark.parametrize(
    ("answers", "posts", "error"),
    [
        ([Response.of({}, 503)] * 3, 3, "HTTPStatusError"),
        ([Response.of({}, 401)], 1, "HTTPStatusError"),
        ([Response(302, {"location": "/v1/elsewhere"}, b"")], 1, "HTTPStatusError"),
    ],
)
async def test_a_receiver_that_refuses_is_given_up(
    answers: list[Response], posts: int, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with ModelServer(answers) as receiver:
        await attempt_of(Posted(f"{receiver.base_url}?secret", TOKEN), saying(*words(5)))
    assert len(receiver.requests) == posts
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.endswith(f"are given up: {error}")
    assert TOKEN not in caplog.text


async def test_a_receiver_that_is_not_there_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    # Nobody listens on port 1.
    await attempt_of(Posted("http://127.0.0.1:1/"), saying(*words(5)))
    (line,) = caplog.messages
    assert line.endswith("are given up: ConnectError")


async def test_a_receiver_that_hangs_is_given_up_within_bounds() -> None:
    async def hang(_: object) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    clock = asyncio.get_running_loop().time
    async with ModelServer(hang) as receiver:
        began = clock()
        await attempt_of(Posted(receiver.base_url, patience_seconds=0.2), saying(*words(5)))
        assert clock() - began < 2
        await receiver.disconnected(1)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    "url", ["", "host/path", "ftp://host/", "http://", "https://me:pass@host/", "http://[::1", "http://host:x/"]
)
def test_a_url_that_cannot_be_used_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match=r"must look like https://host/path, without credentials$"):
        Posted(url)


def test_a_token_that_cannot_be_used_is_refused_by_its_setting() -> None:
    with pytest.raises(ValueError, match="STEADYHAND_DELTAS_TOKEN holds characters") as refused:
        Posted("https://host/", f"{TOKEN}\n{TOKEN}")
    assert TOKEN not in str(refused.value)


def test_limits_that_let_nothing_pass_are_refused() -> None:
    assert Delivery().queue_limit == Posted("https://host/").delivery.queue_limit == 256
    for make in (
        lambda: Callback(print, queue_limit=0),
        lambda: Posted("https://host/", queue_limit=0),
        lambda: Posted("https://host/", batch_limit=0),
        lambda: Callback(print, patience_seconds=0),
        lambda: Posted("https://host/", gather_seconds=-1),
    ):
        with pytest.raises(ValueError, match="must be at least 1"):
            cast(Callable[[], DeltaSink], make)()
