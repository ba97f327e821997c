"""R-33: an error whose text is megabytes long is cut before it is raised; its type and its retry mark survive."""

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.client import WorkflowHistory
from temporalio.exceptions import ApplicationError

from activities.providers.interface import Completion, CompletionRequest, ModelFailure, Publish, to_nobody
from activities.tooling import ToolError, tool
from contracts.policies import CompensationRule, RetryRule
from contracts.tools import Reconciliation, ToolInvocation, UndoRequest
from tests.providers.model_server import Response
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, attempts, calls, events_of, histories, says, script, transcript_of
from tests.support.three_apis import APIS, said, serving, spec
from tests.support.tool_worker import outcomes_of, tool_worker

ONCE = RetryRule(max_attempts=1)
TWICE = RetryRule(max_attempts=2, initial_interval=0.01, max_interval=0.02)


def chained(depth: int) -> RuntimeError:
    """An exception with so many causes, each with a text of 20 kB."""
    error = RuntimeError("0" * 20_000)
    for number in range(1, depth):
        try:
            raise RuntimeError(str(number % 10) * 20_000) from error
        except RuntimeError as caught:
            error = caught
    return error


def first_failure(history: WorkflowHistory) -> Failure:
    """What the first attempt of the one repeated activity failed with."""
    (failure,) = [
        event.activity_task_started_event_attributes.last_failure
        for event in history.events
        if event.activity_task_started_event_attributes.attempt == 2
    ]
    return failure


async def test_r33_whatever_a_tool_raises_is_short_in_history_and_for_the_model(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(side_effect="read", retry=ONCE)
    def page() -> str:
        """Raise the text of a page."""
        raise RuntimeError("E" * 3_000_000)

    @tool(side_effect="read", retry=ONCE)
    def deep() -> str:
        """Raise a chain 200 deep."""
        raise chained(200)

    @tool(side_effect="read", retry=TWICE)
    def final() -> str:
        """Refuse for good, at length."""
        raise ToolError("conflict", "taken " + "m" * 5_000)

    replies = script(calls(("page", {}), ("deep", {}), ("final", {})), says("Seen."))
    async with harness.worker(scripted_agent(page, deep, final), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        result = await run.result()
        told = [message.text for message in (await transcript_of(run)).messages if message.role == "tool"]
    (history,) = await histories(harness.client, run.id)
    assert [attempts(history, name) for name in ("page", "deep", "final")] == [[1], [1], [1]]
    errors = [record.error for record in result.tool_results]
    kinds = [(error.category, error.code, error.retryable) for error in errors if error]
    assert kinds == [("internal", "RuntimeError", True), ("internal", "RuntimeError", True), ("conflict", "", False)]
    assert all(len(text.encode()) <= 2_500 for text in told)
    assert "EEE... (reference " in told[0]
    assert "[cut: this is the beginning of 5006 bytes]" in told[2]
    # Neither a stack nor a cause is in history, and no event is large.
    assert max(event.ByteSize() for event in history.events) < 20_000
    # The whole text is in the log.
    assert caplog.text.count("E" * 3_000_000) >= 1


@pytest.mark.parametrize("api", APIS)
async def test_r33_a_page_of_5_mb_from_a_provider_is_a_short_passing_failure(harness: Harness, api: str) -> None:
    body = b"<html><body>" + b"<p>upstream down</p>" * 250_000 + b"</body></html>"
    failed = Response(500, {"content-type": "text/html"}, body)
    async with serving(harness, api, spec(api), failed, said(api, text="Back.")) as server:
        run = await harness.start(PROMPT)
        result = await run.result()
    assert (result.status, result.text, len(server.requests)) == ("completed", "Back.", 2)
    (history,) = await histories(harness.client, run.id)
    assert attempts(history, "call_model") == [2]
    last = first_failure(history)
    assert last.application_failure_info.type == "ModelUnavailable"
    assert not last.application_failure_info.non_retryable
    assert "answered 500" in last.message
    assert last.ByteSize() < 5_000


class Loud:
    """A model of somebody else's that fails at length, and then answers."""

    def __init__(self, failure: Exception) -> None:
        self._failure: Exception | None = failure

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return Completion("Back.")


@pytest.mark.parametrize(
    "failure",
    [
        ModelFailure("ModelUnavailable", "m\ud83d" * 1_000_000, retryable=True),
        ApplicationError("a" * 3_000_000, type="ModelUnavailable"),
    ],
    ids=["failure", "temporals"],
)
async def test_r33_a_model_of_somebody_elses_that_fails_at_length_is_asked_again(
    harness: Harness, failure: Exception
) -> None:
    agent = scripted_agent().model_copy(update={"model": "loud:main"})
    async with harness.worker(agent, providers={"loud": Loud(failure)}):
        run = await harness.start(PROMPT)
        result = await run.result()
    assert (result.status, result.text) == ("completed", "Back.")
    (history,) = await histories(harness.client, run.id)
    assert attempts(history, "call_model") == [2]
    # What is too long the server cuts by itself, and takes the type away.
    last = first_failure(history)
    assert last.application_failure_info.type == "ModelUnavailable"
    assert last.ByteSize() < 5_000
    assert max(event.ByteSize() for event in history.events) < 20_000


async def test_r33_an_undo_and_a_reconciliation_that_raise_megabytes_are_short_too(harness: Harness) -> None:
    @tool(side_effect="write", compensation=CompensationRule())
    async def pay() -> str:
        """Leave something behind."""
        raise ToolError("internal", "half done", compensation_required=True)

    @pay.undo
    async def take_back(request: UndoRequest) -> str:
        raise RuntimeError("U" * 3_000_000)

    @tool(side_effect="write", reconciles=True)
    async def wire() -> str:
        """Lose the line."""
        raise RuntimeError("the line went dead")

    @wire.reconcile
    async def look_up(invocation: ToolInvocation) -> Reconciliation:
        raise ToolError("permission_denied", "R" * 3_000_000)

    async with tool_worker(harness, pay, wire):
        run = await harness.start(PROMPT)
        await run.result()
        paid, wired = await outcomes_of(run)
        events = await events_of(run)
    assert paid.metadata["compensation_succeeded"] is False
    assert wired.error is not None
    assert wired.error.category == "unknown_outcome"
    assert all(len(event.model_dump_json()) < 5_000 for event in events)
    (history,) = await histories(harness.client, run.id)
    assert max(event.ByteSize() for event in history.events) < 20_000
