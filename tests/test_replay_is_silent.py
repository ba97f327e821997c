"""Replay runs workflow code again and says nothing again: no span, no log line, no token and no cent counts twice."""

import ast
import logging
from collections import Counter
from contextlib import AbstractAsyncContextManager

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client, WorkflowHistory
from temporalio.contrib.opentelemetry import TracingInterceptor
from temporalio.worker import Worker

from activities.tooling import tool
from contracts.activities import ModelReply
from contracts.events import EventsPage, EventsQuery
from contracts.messages import Usage
from contracts.models import Price
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    CHECKOUT,
    Handle,
    Harness,
    attempts,
    calls,
    failure_of,
    histories,
    pending_approval,
    says,
    script,
    state_of,
)

log = logging.getLogger("steadyhand.test")

FAILED = {"message": "overloaded", "usage": {"input_tokens": 3, "output_tokens": 1}}
USED = {"input_tokens": 100, "output_tokens": 10}
CONTEXT = {"tenant_id": "acme", "user_id": "ann", "metadata": {"ticket": "T-1", "run_id": "not mine"}}


# Five replies that ask for five tool calls in all. Before the third one its model fails twice.
REPLIES = script(
    {**calls(("look", {"number": 1}), ("look", {"number": 2})), "usage": USED},
    {**calls(("look", {"number": 3})), "usage": USED},
    {**calls(("pay", {"number": 4})), "usage": USED, "failures": [FAILED, FAILED]},
    {**calls(("look", {"number": 5})), "usage": USED},
    {**says("Done."), "usage": USED},
)


@tool(side_effect="read")
def look(number: int) -> str:
    """Look."""
    log.info("looked at %d", number)
    return f"seen {number}"


@tool(side_effect="write", approval="always")
def pay(number: int) -> str:
    """Pay."""
    log.info("paid %d", number)
    return f"paid {number}"


class Spans:
    """Spans, as the tracing of a deployment gets them."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._tracer = provider.get_tracer("test")

    def traced(self, client: Client) -> Client:
        """The client, and every worker that uses it, with tracing."""
        config = client.config()
        config["interceptors"] = [TracingInterceptor(self._tracer)]
        return Client(**config)

    def counted(self) -> Counter[str]:
        """How many there are of each name."""
        return Counter(span.name for span in self._exporter.get_finished_spans())

    def values(self, name: str, key: str) -> list[object]:
        """What the spans of this name say by this key, None for those that say nothing."""
        found = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return [(span.attributes or {}).get(key) for span in found]


def lines(caplog: pytest.LogCaptureFixture) -> Counter[str]:
    """The lines that were logged by us, and by the SDK for workflow code, and how often."""
    return Counter(
        record.getMessage()
        for record in caplog.records
        if record.name.startswith(("steadyhand.", "temporalio.workflow"))
    )


async def page_of(run: Handle) -> EventsPage:
    """The query `events`."""
    page: EventsPage = await run.query("events", EventsQuery(limit=1_000), result_type=EventsPage)
    return page


def replies_in(history: WorkflowHistory) -> list[ModelReply]:
    """The model's replies as they were recorded."""
    scheduled = {
        event.event_id: event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events
    }
    return [
        ModelReply.model_validate_json(event.activity_task_completed_event_attributes.result.payloads[0].data)
        for event in history.events
        if scheduled.get(event.activity_task_completed_event_attributes.scheduled_event_id) == "call_model"
    ]


async def test_r47_replay_a_restart_and_queries_count_nothing_twice(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """Five model calls, one of which needs three attempts, and five tool calls, over two workers and an approval."""
    caplog.set_level(logging.INFO, logger="steadyhand")
    spans = Spans()
    traced = Harness(spans.traced(harness.client))
    agent = scripted_agent(look, pay).model_copy(update={"prices": {"scripted:main": Price(input=1_000, output=1_000)}})

    def worker() -> AbstractAsyncContextManager[Worker]:
        # Every workflow task and every query replays the run from its beginning.
        return traced.worker(agent, scripts={"main": REPLIES}, max_cached_workflows=0)

    async with worker():
        run = harness.track((await traced.start({**PROMPT, "context": CONTEXT})).id)
        approval = await pending_approval(run)
    async with worker():
        decision = {"approval_id": approval.approval_id, "resolution": "approved", "by": "ann"}
        await run.signal("resolve_approval", decision)
        result = await run.result()
        state, page = await state_of(run), await page_of(run)
        told = spans.counted(), lines(caplog)
        for _ in range(5):
            assert (await state_of(run), await page_of(run)) == (state, page)
        assert (spans.counted(), lines(caplog)) == told
    assert state.last_sequence == page.events[-1].sequence == result.last_sequence
    (history,) = await histories(harness.client, run.id)

    # What the activities say is exact. What the SDK's interceptor says of the workflow's side, `StartActivity:...`,
    # comes again where a worker that does not hold an open run answers a query: it cannot tell that from going on.
    ran = {name: count for name, count in spans.counted().items() if name.startswith("RunActivity:")}
    assert ran == {
        "RunActivity:load_agent": 1,
        "RunActivity:call_model": 7,
        "RunActivity:look": 4,
        "RunActivity:pay": 1,
    }
    # Each attempt says which one it is, and for whom.
    assert Counter(spans.values("RunActivity:call_model", "attempt")) == {1: 5, 2: 1, 3: 1}
    assert spans.values("RunActivity:look", "attempt") + spans.values("RunActivity:pay", "attempt") == [1] * 5
    assert attempts(history, "call_model") == [1, 1, 3, 1, 1]
    for name in ("RunActivity:call_model", "RunActivity:look", "RunActivity:pay"):
        for key, value in page.attributes.items():
            assert set(spans.values(name, key)) == {value}
    assert page.attributes["context.metadata.run_id"] == "not mine"

    ours = [f"looked at {number}" for number in (1, 2, 3, 5)] + ["paid 4"]
    failed = [f"call_model of {run.id}, attempt {number}, failed" for number in (1, 2)]
    assert {text.partition(":")[0] for text in lines(caplog)} == {*ours, *failed}
    assert set(lines(caplog).values()) == {1}

    recorded = replies_in(history)
    assert len(recorded) == 5
    spent = sum((reply.usage for reply in recorded), Usage())
    assert spent == Usage(input_tokens=506, output_tokens=52)
    assert state.usage == result.usage == spent
    assert state.cost.total == pytest.approx(spent.total_tokens / 1_000)
    # A failed attempt is no call, and what it used stands apart.
    types = Counter(event.type for event in page.events)
    assert [types[name] for name in ("model_started", "model_completed", "tool_started", "tool_completed")] == [5] * 4
    assert "model_failed" not in types
    apart = [event.data.get("failed_usage") for event in page.events if event.type == "model_completed"]
    assert apart == [None, None, Usage(input_tokens=6, output_tokens=2).model_dump(), None, None]
    counted = [event.data.get("attempts") for event in page.events if event.type == "model_completed"]
    assert counted == [None, None, 3, None, None]


async def test_a_model_call_that_fails_for_good_says_what_its_attempts_used(harness: Harness) -> None:
    refused = {"type": "ModelBadRequest", "retryable": False, "usage": {"input_tokens": 7}}
    replies = script({**says("Never."), "failures": [refused]})
    async with harness.worker(scripted_agent(), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        _, partial = await failure_of(run)
        (failed,) = [event for event in (await page_of(run)).events if event.type == "model_failed"]
    assert failed.data["usage"] == Usage(input_tokens=7).model_dump() == partial.usage.model_dump()


async def test_no_model_call_repeats_for_whom_it_works_in_history(harness: Harness) -> None:
    async with harness.worker(scripted_agent(), scripts={"main": script(says("Done."))}):
        run = await harness.start({**PROMPT, "context": CONTEXT})
        await run.result()
    (history,) = await histories(harness.client, run.id)
    # A run with a large context is as long as any other: a traced worker asks the run once, and keeps the answer.
    inputs = [
        event.activity_task_scheduled_event_attributes.input.payloads[0].data
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == "call_model"
    ]
    assert len(inputs) == 1
    assert b"acme" not in inputs[0]


@pytest.mark.parametrize("package", ["workflows", "contracts"])
def test_workflow_code_logs_only_where_replay_is_silent(package: str) -> None:
    """`workflow.logger` says nothing during replay; a logger, tracer or meter of its own would."""
    wrong = []
    for file in sorted((CHECKOUT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            wrong += [
                f"{file.name}: {name}"
                for name in names
                if name.split(".")[0] in ("logging", "warnings", "opentelemetry", "structlog")
            ]
            if isinstance(node, ast.Attribute) and node.attr in ("metric_meter", "logger"):
                wrong += [f"{file.name}: {ast.unparse(node)}"] * (ast.unparse(node) != "workflow.logger")
    assert wrong == []
