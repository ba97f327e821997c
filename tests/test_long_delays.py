"""A provider that asks to wait for hours: the run waits, durably, and no worker does."""

from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError, WorkflowHistory
from temporalio.exceptions import CancelledError
from temporalio.testing import WorkflowEnvironment

from activities.hooks import Hooks
from activities.providers.interface import Completion, CompletionRequest, ModelFailure, Publish, to_nobody
from contracts.context import ExecutionContext
from contracts.messages import Usage
from contracts.runs import AgentRunResult
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, attempts, event_of, failure_of, histories, state_of

HOURS = 3_600.0
AGENT = scripted_agent(deadline_seconds=2_592_000).model_copy(update={"model": "moody:main"})


class Moody:
    """A model whose calls end as they are told to, one after the other; the last one goes on for ever."""

    def __init__(self, *ends: ModelFailure | Completion) -> None:
        self._ends = list(ends)
        self.calls = 0

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        self.calls += 1
        end = self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]
        if isinstance(end, ModelFailure):
            raise end
        return end


def asks_to_wait(seconds: float) -> ModelFailure:
    usage = Usage(input_tokens=1)
    return ModelFailure("ModelUnavailable", "out of quota", retryable=True, retry_after=seconds, usage=usage)


def timers(history: WorkflowHistory) -> list[timedelta]:
    """How long each timer was to wait, without the one of the run's deadline."""
    waits = [
        event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED
    ]
    return [wait for wait in waits if wait <= timedelta(days=1)]


async def finished(skipping: WorkflowEnvironment, model: Moody) -> tuple[AgentRunResult, WorkflowHistory]:
    harness = Harness(skipping.client)
    async with harness.worker(AGENT, providers={"moody": model}):
        run = await harness.start(PROMPT)
        result = await run.result()
    (history,) = await histories(harness.client, run.id)
    await harness.check_histories()
    return result, history


async def test_a_delay_of_hours_is_a_timer_of_the_run_and_the_bill_goes_on(skipping: WorkflowEnvironment) -> None:
    model = Moody(asks_to_wait(5 * HOURS), Completion("Done.", usage=Usage(input_tokens=2)))
    result, history = await finished(skipping, model)
    assert timers(history) == [timedelta(hours=5)]
    assert (result.text, result.usage.input_tokens, model.calls) == ("Done.", 3, 2)
    assert attempts(history, "call_model") == [1, 1]


async def test_a_short_delay_is_temporals_own_retry(skipping: WorkflowEnvironment) -> None:
    model = Moody(asks_to_wait(HOURS), Completion("Done."))
    _, history = await finished(skipping, model)
    assert timers(history) == []
    assert attempts(history, "call_model") == [2]


async def test_waits_are_bounded_in_number_and_length(skipping: WorkflowEnvironment) -> None:
    harness = Harness(skipping.client)
    for model, waits in ((Moody(asks_to_wait(24 * HOURS)), 3), (Moody(asks_to_wait(24 * HOURS + 1)), 0)):
        async with harness.worker(AGENT, providers={"moody": model}):
            run = await harness.start(PROMPT)
            error, result = await failure_of(run)
            (history,) = await histories(harness.client, run.id)
        assert error.type == "ModelUnavailable"
        assert len(timers(history)) == waits
        assert result.usage.input_tokens == model.calls == waits + 1


@pytest.mark.parametrize("seconds", [1e10, 1e300, float("inf"), float("nan"), -1.0])
async def test_no_delay_is_too_odd_to_fail_by_name(skipping: WorkflowEnvironment, seconds: float) -> None:
    harness = Harness(skipping.client)
    async with harness.worker(AGENT, providers={"moody": Moody(asks_to_wait(seconds))}):
        error, result = await failure_of(await harness.start(PROMPT))
    assert (error.type, error.message) == ("ModelUnavailable", "out of quota")
    assert result.usage.input_tokens > 0


async def test_a_bug_before_the_call_is_no_missing_model_and_keeps_the_bill(skipping: WorkflowEnvironment) -> None:
    harness = Harness(skipping.client)
    asked = list[int]()

    def broken(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        asked.append(1)
        if len(asked) > 1:
            raise ValueError("a bug")
        return request

    model, other = Moody(asks_to_wait(1)), Moody(Completion("Done."))
    agent = AGENT.model_copy(update={"fallback_models": ("other:main",)})
    hooks = [Hooks("tester", prepare_model_request=broken)]
    async with harness.worker(agent, providers={"moody": model, "other": other}, hooks=hooks):
        error, result = await failure_of(await harness.start(PROMPT))
    assert (error.type, result.usage.input_tokens, model.calls, other.calls) == ("InternalError", 1, 1, 0)
    assert "ValueError in prepare_model_request" in error.message


async def test_another_model_is_asked_rather_than_waited_for(skipping: WorkflowEnvironment) -> None:
    harness = Harness(skipping.client)
    away, there = Moody(asks_to_wait(5 * HOURS)), Moody(Completion("Done."))
    agent = AGENT.model_copy(update={"fallback_models": ("other:main",)})
    async with harness.worker(agent, providers={"moody": away, "other": there}):
        run = await harness.start(PROMPT)
        assert (await run.result()).text == "Done."
        (history,) = await histories(harness.client, run.id)
    assert (away.calls, there.calls, timers(history)) == (1, 1, [])


async def test_a_run_is_cancelled_while_it_waits(skipping: WorkflowEnvironment) -> None:
    harness = Harness(skipping.client)
    model = Moody(asks_to_wait(5 * HOURS))
    async with harness.worker(AGENT, providers={"moody": model}):
        run = await harness.start(PROMPT)
        await event_of(run, "model_failed")
        await run.cancel()
        with pytest.raises(WorkflowFailureError) as ended:
            await run.result()
        state = await state_of(run)
        (history,) = await histories(harness.client, run.id)
    assert isinstance(ended.value.cause, CancelledError)
    # It does not wait for the hours to pass first.
    assert not [event for event in history.events if event.event_type == EventType.EVENT_TYPE_TIMER_FIRED]
    assert (state.status, state.usage.input_tokens, model.calls) == ("cancelled", 1, 1)
