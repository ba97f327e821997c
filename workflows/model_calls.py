"""Asking the model: until it says something usable, within what may be spent, and past a model that is not there."""

from collections.abc import Iterable
from datetime import timedelta

from pydantic import JsonValue, ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

from contracts.activities import ModelActivities, ModelCallFailure, ModelReply, ModelRequest
from contracts.hints import EMPTY_REPLY_HINT, OUTPUT_HINT
from contracts.hooks import WANTS_CONTEXT
from contracts.messages import Message, Usage
from contracts.runs import ErrorType
from workflows import options as activity_options
from workflows.failures import RunFailed, run_failure
from workflows.interruption import Interruption
from workflows.run_state import RunState

UNUSABLE_REPLIES_IN_A_ROW = 3
# A provider pauses a turn after some searches of its own.
PAUSES_IN_A_ROW = 10
# Waits that a provider asked for, each of at most a day, before a model counts as not available.
WAITS_IN_A_ROW = 3
LONGEST_WAIT = timedelta(days=1)

# What another model may do better at: this one cannot be had.
_NOT_THERE = ("ModelUnavailable", "ModelAuthentication")


class ModelCalls:
    """The model calls of one run."""

    def __init__(self, state: RunState, interruption: Interruption) -> None:
        self._state = state
        self._interruption = interruption

    async def next_reply(self) -> ModelReply:
        """The model's next usable reply: words, calls, or both. Empty ones and answers that break the output schema are
        asked for again, within a bound. Raises `RunFailed`."""
        unusable = pauses = 0
        while True:
            reply = await self._ask()
            if reply.paused and not reply.calls and pauses < PAUSES_IN_A_ROW:
                pauses += 1
                if reply.text.strip() or reply.opaque:
                    self._append(reply)
                continue
            problem = self._problem(reply)
            if problem is None:
                return reply
            unusable += 1
            if unusable == UNUSABLE_REPLIES_IN_A_ROW:
                raise RunFailed("ModelBehaviour", f"the model gave {unusable} unusable replies in a row; {problem[0]}")
            if reply.text.strip():
                self._append(reply)
            self._state.transcript.append(Message(role="user", text=problem[1]))

    def _problem(self, reply: ModelReply) -> tuple[str, str] | None:
        """Why this reply is of no use, for people and for the model, or None."""
        if reply.calls:
            return None
        if not reply.text.strip():
            return "the last one was empty", EMPTY_REPLY_HINT
        if reply.output_issues:
            listed = "\n".join(reply.output_issues)
            return f"the last answer does not match its schema: {reply.output_issues[0]}", OUTPUT_HINT + listed
        return None

    def _append(self, reply: ModelReply) -> None:
        self._state.transcript.append(Message(role="assistant", text=reply.text, opaque=reply.opaque))

    async def _ask(self) -> ModelReply:
        """One reply of the model, or of the one that takes its place."""
        waits = 0
        while True:
            try:
                return await self._call(self._state.model)
            except _NotNow as failed:
                # A call that fails as the run is being stopped has nothing of that in its error.
                self._interruption.check()
                if self._fall_back(failed.failure):
                    waits = 0
                elif failed.wait is not None and waits < WAITS_IN_A_ROW:
                    waits += 1
                    await workflow.sleep(failed.wait, summary=f"{self._state.model} asks to wait")
                else:
                    raise failed.failure from None

    def _fall_back(self, failure: RunFailed) -> bool:
        """Go on with the agent's next model, if the failure is one that another model may not have."""
        state = self._state
        models = state.models
        if failure.type not in _NOT_THERE or state.fallbacks + 1 >= len(models):
            return False
        state.fallbacks += 1
        state.journal.record("model_replaced", model=models[state.fallbacks - 1], by=state.model, error=failure.type)
        return True

    async def _call(self, model: str) -> ModelReply:
        """One activity: one request, and those that Temporal repeats. Raises `_NotNow` with what it failed for."""
        state = self._state
        self._interruption.check()
        state.inbox.join(state.transcript)
        state.model_calls += 1
        state.journal.record("model_started", messages=len(state.transcript.messages), model=model)
        request = ModelRequest(
            agent_digest=state.agent_digest,
            transcript=state.transcript.ref(),
            next_call=state.next_call,
            model=model,
            key=f"{workflow.info().first_execution_run_id}/model_{state.model_calls}",
            round=state.limits.rounds,
            tokens_left=state.spending.tokens_left,
            cost_left_usd=state.spending.cost_left,
            context=state.context if WANTS_CONTEXT in state.hooks else None,
        )
        try:
            reply = await workflow.execute_activity_method(
                ModelActivities.call_model, request, **activity_options.model(state.model_calls)
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            told = _told(error)
            state.spending.add(model, told.usage)
            # A worker that was lost or too slow may do better with another model. What fails by a name that is not
            # public is a bug of ours.
            unnamed: ErrorType = (
                "ModelUnavailable" if isinstance(error.cause, ActivityTimeoutError) else "InternalError"
            )
            failed = run_failure(error, otherwise=unnamed)
            spent = _spent(told.usage)
            state.journal.record("model_failed", error=failed.type, message=failed.message, model=model, usage=spent)
            raise _NotNow(failed, _wait(told)) from None
        state.spending.add(model, reply.usage)
        state.next_call += len(reply.calls)
        state.journal.record(
            "model_completed",
            calls=len(reply.calls),
            finish_reason=reply.finish_reason,
            truncated=reply.truncated or None,
            usage=reply.usage.model_dump(mode="json"),
            usage_estimated=reply.usage_estimated or None,
            attempts=reply.attempts if reply.attempts > 1 else None,
            failed_usage=_spent(reply.failed_usage),
            replaced_characters=reply.replaced_characters or None,
        )
        return reply


class _NotNow(Exception):
    """A model call that failed, and how long to wait before the next one, where the provider asked for that."""

    def __init__(self, failure: RunFailed, wait: timedelta | None) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.wait = wait


def _spent(usage: Usage) -> JsonValue:
    """Usage for the log; None where nothing was used."""
    return None if usage == Usage() else usage.model_dump(mode="json")


def _wait(told: ModelCallFailure) -> timedelta | None:
    """How long to wait, if a provider asked for a time that a run waits for. No other number need be one of a date."""
    seconds = told.wait_seconds
    if seconds is None or not 0 < seconds <= LONGEST_WAIT.total_seconds():
        return None
    return timedelta(seconds=seconds)


def _told(error: ActivityError) -> ModelCallFailure:
    """What a failed model call says that it cost; of one whose worker was lost, what its last heartbeat said."""
    cause = error.cause
    details: Iterable[object] = ()
    if isinstance(cause, ApplicationError):
        details = cause.details
    elif isinstance(cause, ActivityTimeoutError):
        details = [{"usage": usage} for usage in cause.last_heartbeat_details]
    for detail in details:
        try:
            return ModelCallFailure.model_validate(detail)
        except ValidationError:
            break
    return ModelCallFailure()
