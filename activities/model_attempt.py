"""One attempt of a model call: what it and the attempts before it were billed, and how it fails."""

import logging
from datetime import timedelta

from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.providers.interface import ModelFailure
from contracts.activities import ModelCallFailure, ModelRequest
from contracts.messages import Usage
from contracts.policies import RETRY_AFTER_MAX_SECONDS
from contracts.text import cut, encodable

log = logging.getLogger("steadyhand.model")

MESSAGE_MAX_BYTES = 2_000


class ModelAttempt:
    """One attempt of a model call, numbered from 1, what the attempts before it were billed, as far as they could tell,
    and what all of them were billed so far."""

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.number = activity.info().attempt
        self.billed_before = _billed_before()
        self.billed = self.billed_before

    def bill(self, usage: Usage | None) -> None:
        """Count what this attempt was billed, in a heartbeat too, where the next attempt finds it."""
        if usage is not None and usage != Usage():
            self.billed += usage
            activity.heartbeat(self.billed)

    def details(self) -> tuple[Usage, ...]:
        """What a heartbeat carries."""
        return () if self.billed == Usage() else (self.billed,)

    def failed(self, failure: ModelFailure) -> ApplicationError:
        """The failure as Temporal takes it. A delay that is longer than an activity should wait goes to the run, and
        one that is shorter than the wait without any does not count: all attempts would be gone in a moment."""
        told = failure.retry_after if failure.retryable else None
        wait = told if told is not None and told >= 0 else None
        long = wait is not None and wait > RETRY_AFTER_MAX_SECONDS
        delay = None if wait is None or long else max(timedelta(seconds=wait), _backoff())
        error = ApplicationError(
            _short(str(failure)),
            ModelCallFailure(usage=self.billed, wait_seconds=wait if long else None),
            type=failure.type,
            non_retryable=long or not failure.retryable,
            next_retry_delay=delay,
        )
        _log(error)
        return error

    def with_bill(self, error: ApplicationError) -> ApplicationError:
        """The error, saying what was billed."""
        known = ApplicationError(
            _short(error.message),
            ModelCallFailure(usage=self.billed),
            type=error.type,
            non_retryable=error.non_retryable,
            next_retry_delay=error.next_retry_delay,
        )
        _log(known)
        return known


def _billed_before() -> Usage:
    """What earlier attempts of this call were billed, as their last heartbeat said."""
    for detail in activity.info().heartbeat_details:
        try:
            return Usage.model_validate(detail)
        except ValidationError:
            break
    return Usage()


def _backoff() -> timedelta:
    """How long Temporal waits after this attempt where nobody says how long."""
    policy, attempt = activity.info().retry_policy, activity.info().attempt
    if policy is None:
        return timedelta()
    most = policy.maximum_interval or 100 * policy.initial_interval
    # The power of a late attempt is more than a timedelta can hold.
    doubled = min(policy.backoff_coefficient ** min(attempt - 1, 64), most / policy.initial_interval)
    return min(policy.initial_interval * doubled, most)


def _short(message: str) -> str:
    """What a failure says, whoever wrote the provider: one that does not fit would not be recorded as what it is."""
    return cut(encodable(message), MESSAGE_MAX_BYTES)


def final(type: str, reason: str) -> ApplicationError:
    """A failure that another attempt would only repeat."""
    return ApplicationError(reason, type=type, non_retryable=True)


def _log(error: ApplicationError) -> None:
    """One line a failed call: failures are a part of the work, and Temporal has all of them."""
    delay = "" if error.next_retry_delay is None else f", delay {error.next_retry_delay.total_seconds():g} s"
    retried = "not retryable" if error.non_retryable else "retryable"
    info = activity.info()
    log.warning(
        "call_model of %s, attempt %d, failed: %s (%s%s): %s",
        *(info.workflow_id, info.attempt, error.type, retried, delay, error.message),
    )
