"""Each tool as an activity of its own name: guard, invoke, settle the outcome."""

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.heartbeats import beating
from activities.schemas import compile_schema
from activities.tooling import Tool, ToolError, outcome_of
from contracts.approvals import action_digest
from contracts.outcomes import ToolOutcome, failure
from contracts.tools import ToolInvocation

ToolActivity = Callable[[ToolInvocation], Awaitable[ToolOutcome]]

# Threads for tools that are plain functions.
TOOL_THREADS = 32


class ToolCalls:
    """Runs the tools of one worker."""

    def __init__(self, tools: Iterable[Tool], threads: int = TOOL_THREADS) -> None:
        self._tools = tuple(tools)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tool")

    def activities(self) -> list[ToolActivity]:
        """One activity a tool, named after it."""
        return [self._activity(tool) for tool in self._tools]

    def _activity(self, tool: Tool) -> ToolActivity:
        @activity.defn(name=tool.name)
        async def call_tool(invocation: ToolInvocation) -> ToolOutcome:
            _refuse_other_version(tool, invocation)
            attempt = activity.info().attempt
            outcome = _guard(tool, invocation)
            if outcome is None:
                deadline = datetime.now(UTC) + timedelta(seconds=tool.timeout)
                received = invocation.model_copy(update={"attempt": attempt, "deadline": deadline})
                async with beating():
                    outcome = await self._invoke(tool, received)
            outcome = outcome.model_copy(update={"metadata": {**outcome.metadata, "tool_attempt": attempt}})
            if outcome.error is not None and outcome.error.retryable:
                # Raised, so that Temporal repeats it as the contract allows; the last one becomes the answer.
                raise ApplicationError(outcome.error.message, outcome, type="ToolFailed")
            return outcome

        return call_tool

    async def _invoke(self, tool: Tool, invocation: ToolInvocation) -> ToolOutcome:
        """What the tool came to. Cancellation passes."""
        try:
            async with asyncio.timeout(tool.timeout) as deadline:
                return outcome_of(await self._run(tool, invocation))
        except ToolError as error:
            return failure(error.category, str(error), error.code, error.retryable)
        except TimeoutError as error:
            return _unexpected(tool, error) if not deadline.expired() else _timed_out(tool)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is told to the model, not to the run
            activity.logger.exception("tool %s failed", tool.name)
            return _unexpected(tool, error)

    async def _run(self, tool: Tool, invocation: ToolInvocation) -> object:
        call = tool.bind(invocation.arguments, invocation)
        if not tool.is_async:
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, call)
        result = call()
        return await result if inspect.isawaitable(result) else result


def _refuse_other_version(tool: Tool, invocation: ToolInvocation) -> None:
    """Not an attempt: nothing has run, and another worker may have the version that was consented to."""
    if invocation.version != tool.version:
        reason = f"this worker has version {tool.version} of {tool.name}, the run asks for {invocation.version}"
        raise ApplicationError(reason, type="ToolVersionMismatch", non_retryable=True)


def _guard(tool: Tool, invocation: ToolInvocation) -> ToolOutcome | None:
    """Why the call must not run, or None. What was approved is what runs, by this worker's own schema too."""
    if action_digest(invocation.tool, invocation.version, invocation.arguments) != invocation.action_digest:
        reason = "the arguments are not those the action digest was made of"
        return failure("permission_denied", reason, code="action_digest_mismatch")
    if issues := compile_schema(tool.input_schema).issues(invocation.arguments):
        return failure("invalid_input", "; ".join(f"{issue.pointer}: {issue.message}" for issue in issues))
    return None


def _timed_out(tool: Tool) -> ToolOutcome:
    reason = f"no result within {tool.timeout:g} seconds"
    if tool.has_effect:
        return failure("unknown_outcome", f"{reason}; it may have taken effect", retryable=tool.repeatable)
    return failure("timeout", reason, retryable=True)


def _unexpected(tool: Tool, error: Exception) -> ToolOutcome:
    return failure("internal", f"{type(error).__name__}: {error}", type(error).__name__, retryable=tool.repeatable)
