"""The ways a run may end, and what a story that has ended means."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

from contracts.runs import RunError
from workflows.failures import RunFailed
from workflows.interruption import Interruption


@dataclass(frozen=True)
class Ending:
    """How a run ends. `error` says why it did not complete; a cancelled one has none."""

    status: Literal["completed", "failed", "cancelled", "timed_out"]
    error: RunError | None = None


async def ending_of(story: Coroutine[Any, Any, None], interruption: Interruption) -> Ending:
    """How the story ends. Only what is no end of the run is raised: it continues as new, or the worker forgets it."""
    try:
        await interruption.watch_over(story)
    except RunFailed as failed:
        # Once it is being stopped, it does not matter what else it came to.
        return failure_of(failed) if interruption.reason is None else _interrupted(interruption)
    except (asyncio.CancelledError, FailureError) as error:
        if is_cancelled_exception(error):
            return _interrupted(interruption)
        return bug(error)
    except Exception as error:  # noqa: BLE001 - any bug must end the run by name, or its task is retried for ever
        return bug(error)
    return Ending("completed")


def failure_of(failed: RunFailed) -> Ending:
    """The end of a run that failed by name."""
    return Ending("failed", RunError(type=failed.type, message=failed.message))


def bug(error: BaseException) -> Ending:
    """The end of a run whose own code is wrong."""
    workflow.logger.error("a bug ends this run", exc_info=error)
    return failure_of(RunFailed("InternalError", f"{type(error).__name__}: {error}"))


def _interrupted(interruption: Interruption) -> Ending:
    if interruption.reason == "timed_out" and interruption.deadline is not None:
        reason = f"the run was not done by its deadline, {interruption.deadline.isoformat()}"
        return Ending("timed_out", RunError(type="DeadlineExceeded", message=reason))
    return Ending("cancelled")
