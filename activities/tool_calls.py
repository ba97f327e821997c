"""Each tool as an activity of its own name: guard, invoke, settle the outcome."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.attempt import Attempt
from activities.heartbeats import beating
from activities.in_flight import Body, CapacityExhausted, InFlight, Raised
from activities.returned import outcome_of
from activities.schemas import compile_schema
from activities.settling import settle
from activities.spans import describe_span
from activities.tool_secrets import ToolSecrets
from activities.tooling import Later, Tool, ToolError
from activities.unexpected import reference, unexpected
from contracts.approvals import action_digest
from contracts.outcomes import MAY_HAVE_HAPPENED, ToolOutcome, failure, not_certain, says_not_done
from contracts.tools import ToolInvocation

log = logging.getLogger("steadyhand.tools")

# Marks the last heartbeat of an attempt that did nothing.
HARMLESS = "nothing happened"

ToolActivity = Callable[[ToolInvocation], Awaitable[ToolOutcome]]


class ToolCalls:
    """Runs the tools of one worker. `settings` holds the values that their contracts name."""

    def __init__(self, tools: Iterable[Tool], settings: Mapping[str, str], in_flight: InFlight) -> None:
        self._tools = tuple(tools)
        self._settings = settings
        self._in_flight = in_flight

    def activities(self) -> list[ToolActivity]:
        """One activity a tool, named after it."""
        return [self._activity(tool) for tool in self._tools]

    def _activity(self, tool: Tool) -> ToolActivity:
        @activity.defn(name=tool.name)
        async def call_tool(invocation: ToolInvocation) -> ToolOutcome:
            info = activity.info()
            after_unknown = invocation.after_unknown or (info.attempt > 1 and not _harmless_so_far())
            _refuse_other_version(tool, invocation, after_unknown)
            # Retries are Temporal's, or the run's own where an undo comes between them: then each starts from one.
            attempt = invocation.attempt + info.attempt - 1
            invocation = invocation.model_copy(update={"attempt": attempt, "after_unknown": after_unknown})
            describe_span(invocation.context.attributes, attempt)
            secrets = ToolSecrets.of(tool, self._settings)
            control = Attempt(tool, self._settings)
            deadline = _deadline(tool, invocation)
            received = invocation.model_copy(update={"deadline": deadline}).controlled_by(control)
            call = _bound(tool, received, secrets)
            again: timedelta | None = None
            if isinstance(call, ToolOutcome):
                outcome = call
            else:
                outcome = await self._invoke(tool, received, call, control, secrets)
                # Decided by what the tool said, before that is prepared and validated: a result that breaks a schema
                # is never asked for again.
                again = _again(tool, received, outcome)
            outcome = settle(
                tool, invocation, outcome, prepare=tool.prepare if again is None else None, secrets=secrets
            )
            if after_unknown and tool.has_effect and says_not_done(outcome):
                outcome = not_certain(outcome)
            outcome = outcome.model_copy(update={"metadata": {**outcome.metadata, "tool_attempt": attempt}})
            if again is not None:
                raise _repeat(outcome, again)
            return outcome

        return call_tool

    async def _invoke(
        self,
        tool: Tool,
        invocation: ToolInvocation,
        call: Callable[[], object],
        attempt: Attempt,
        secrets: ToolSecrets,
    ) -> ToolOutcome:
        """What one attempt came to. Cancellation passes."""
        deadline = invocation.deadline or _deadline(tool, invocation)
        try:
            async with beating(lambda: attempt.details or ()):
                made = partial(_made, call, secrets, tool.is_async)
                try:
                    body = await self._in_flight.begin(made, in_thread=not tool.is_async)
                except asyncio.CancelledError:
                    return _not_begun()
                attempt.begin()
                try:
                    given_up = await _end_of(body, tool, attempt, deadline)
                finally:
                    attempt.end()
                    if not body.future.done():
                        self._in_flight.abandon(tool.name, body)
                return given_up or _returned(tool, invocation, body, secrets)
        except CapacityExhausted:
            reason = "all tool threads of this worker are busy; the call did not run"
            outcome = failure("unavailable", reason, code="tool_capacity_exhausted", retryable=True)
            return outcome.model_copy(update={"metadata": {"tool_execution_capacity_exhausted": True}})


def _made(call: Callable[[], object], secrets: ToolSecrets, is_async: bool) -> object:
    """Make the call and turn what it returns into an outcome, both where the tool runs: writing a huge value as JSON
    must block its own thread, not the worker."""
    return _made_later(call, secrets) if is_async else _outcome(call(), secrets)


async def _made_later(call: Callable[[], object], secrets: ToolSecrets) -> object:
    result = call()
    value = await result if isinstance(result, Awaitable) else result
    return await asyncio.to_thread(_outcome, value, secrets)


def _outcome(value: object, secrets: ToolSecrets) -> ToolOutcome | Later:
    return value if isinstance(value, Later) else outcome_of(value, secrets)


async def _end_of(body: Body, tool: Tool, attempt: Attempt, deadline: datetime) -> ToolOutcome | None:
    """Wait for the body. The outcome if it was given up, for its timeout or its silence; None if it ended by itself.

    When the call is cancelled an effect is asked to stop and still waited for: what it came to must be known.
    """
    loop = asyncio.get_running_loop()
    seconds = (deadline - datetime.now(UTC)).total_seconds()
    gives_up_at = loop.time() + seconds
    while not body.future.done():
        patience = gives_up_at - loop.time()
        if patience <= 0:
            return _timed_out(tool, f"no result within {seconds:.3g} s; a late one is discarded")
        if tool.heartbeat is not None:
            quiet = tool.heartbeat.timeout - attempt.silent_for
            if quiet <= 0:
                outcome = _timed_out(tool, f"no sign of life for {tool.heartbeat.timeout:g} s")
                return outcome.model_copy(update={"metadata": {**outcome.metadata, "heartbeat_timeout": True}})
            patience = min(patience, quiet)
        try:
            await asyncio.wait({body.future}, timeout=patience)
        except asyncio.CancelledError:
            if not tool.has_effect or activity.is_worker_shutdown():
                raise
            attempt.end()
            body.stop()
    return None


def _deadline(tool: Tool, invocation: ToolInvocation) -> datetime:
    """When the attempt is given up: after the tool's own timeout, or when the run's caller said that it is too late."""
    own, callers = datetime.now(UTC) + timedelta(seconds=tool.timeout), invocation.context.deadline_utc
    return own if callers is None else min(own, callers)


def _not_begun() -> ToolOutcome:
    """The call was cancelled while it waited for a thread: whatever its kind, nothing happened."""
    if activity.is_worker_shutdown():
        return failure("unavailable", "the worker stopped; the call did not run", code="not_started", retryable=True)
    return failure("cancelled", "the call was cancelled; it did not run", code="not_started")


def _returned(tool: Tool, invocation: ToolInvocation, body: Body, secrets: ToolSecrets) -> ToolOutcome:
    """What a body that has ended came to. Whatever a tool raises is told to the model, not to the run."""
    if body.future.cancelled():
        raise asyncio.CancelledError
    match body.future.result():
        case Raised(ToolError() as error):
            return error.outcome(secrets)
        case Raised(error):
            log.error("tool %s failed (reference %s)", tool.name, reference(invocation), exc_info=error)
            return unexpected(tool, invocation, error, secrets)
        case Later() if tool.completes_later:
            activity.raise_complete_async()
        case Later():
            reason = "the tool returned LATER, but its contract does not say completes_later"
            return failure("unknown_outcome" if tool.has_effect else "internal", reason, code="not_declared")
        case ToolOutcome() as outcome:
            return outcome
    raise AssertionError("a body ends with an outcome, an exception or LATER")


def _harmless_so_far() -> bool:
    """Whether every earlier attempt said that nothing had happened. What they leave behind is their last heartbeat."""
    info = activity.info()
    return list(info.heartbeat_details) == [HARMLESS, info.attempt - 1]


def _again(tool: Tool, invocation: ToolInvocation, outcome: ToolOutcome) -> timedelta | None:
    """After which delay Temporal is to make another attempt; None where this outcome is the answer."""
    if not tool.repeatable or not tool.repeats(outcome):
        return None
    policy = activity.info().retry_policy
    if policy is not None and 0 < policy.maximum_attempts <= activity.info().attempt:
        return None
    delay = timedelta(seconds=tool.delay_after(outcome, invocation.attempt, random.random()))  # noqa: S311 - jitter
    # An attempt that would only begin when it is too late is not waited for.
    return None if invocation.context.is_over(datetime.now(UTC) + delay) else delay


def _repeat(outcome: ToolOutcome, delay: timedelta) -> ApplicationError:
    """Raised, so that Temporal repeats the attempt."""
    if says_not_done(outcome):
        activity.heartbeat(HARMLESS, activity.info().attempt)
    message = outcome.error.message if outcome.error else ""
    return ApplicationError(message, outcome, type="ToolFailed", next_retry_delay=delay)


def _refuse_other_version(tool: Tool, invocation: ToolInvocation, after_unknown: bool) -> None:
    """Not an attempt: nothing runs, and another worker may have the version that was consented to."""
    if invocation.version != tool.version:
        reason = f"this worker has version {tool.version} of {tool.name}, the run asks for {invocation.version}"
        raise ApplicationError(reason, after_unknown, type="ToolVersionMismatch", non_retryable=True)


def _bound(tool: Tool, invocation: ToolInvocation, secrets: ToolSecrets) -> Callable[[], object] | ToolOutcome:
    """The call, ready to be made, or why it must not run, which no other attempt would change. What was approved is
    what runs, by this worker's own schema too."""
    if action_digest(invocation.tool, invocation.version, invocation.arguments) != invocation.action_digest:
        reason = "the arguments are not those the action digest was made of"
        return failure("permission_denied", reason, code="action_digest_mismatch")
    if invocation.context.is_over(datetime.now(UTC)):
        return failure("timeout", "the run's deadline has passed; the call did not run", code="not_started")
    if issues := compile_schema(tool.input_schema).issues(invocation.arguments):
        told = failure("invalid_input", "; ".join(map(str, issues)), code="invalid_arguments")
        return told.model_copy(update={"metadata": {"schema_issues": [issue.as_json() for issue in issues]}})
    try:
        return tool.bind(invocation.arguments, invocation)
    except ToolError as error:
        return error.outcome(secrets)


def _timed_out(tool: Tool, reason: str) -> ToolOutcome:
    if tool.has_effect:
        outcome = failure("unknown_outcome", f"{reason}; {MAY_HAVE_HAPPENED}", retryable=tool.repeatable)
    else:
        outcome = failure("timeout", reason, retryable=True)
    return outcome.model_copy(update={"metadata": {"late_result_discarded": True}})
