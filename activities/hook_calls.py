"""Calls of an application's hooks. They are somebody else's code: they may raise anything, hang, change what they are
given, and return what they like."""

import asyncio
import copy
import inspect
import logging
from collections.abc import Awaitable, Mapping

from temporalio.exceptions import ApplicationError

from activities.hooks import Hooks
from activities.in_flight import GivenUp, InFlight, is_cancellation
from contracts.hooks import HookName

log = logging.getLogger("steadyhand.hooks")


class HookCalls:
    """Calls the hooks of one worker, plain ones in threads that no tool and no reply waits for."""

    def __init__(self, hooks: Mapping[str, Hooks]) -> None:
        self._hooks = hooks
        self._in_flight = InFlight()

    async def answer(self, agent: str, name: HookName, *arguments: object) -> object:
        """What the hook returns for copies of these arguments, whatever that is; its caller judges it.

        Raises `ApplicationError` InternalError, which is retried, where it raises or gives no answer in time, and where
        this worker lacks it: the run began with the hook, so that "as it is" is no answer.
        """
        hooks = self._hooks.get(agent)
        hook = getattr(hooks, name, None)
        if hooks is None or hook is None:
            raise ApplicationError(f"this worker has no {name} for agent {agent}", type="InternalError")

        async def awaited(given: tuple[object, ...]) -> object:
            return await hook(*given)

        async def finished(answer: Awaitable[object]) -> object:
            return await answer

        in_flight, label = self._in_flight, f"{name} of agent {agent}"
        try:
            # What a worker holds of its runs serves many requests: a change of it would reach them all.
            given = await asyncio.to_thread(copy.deepcopy, arguments)
            call = awaited if inspect.iscoroutinefunction(hook) else lambda given: hook(*given)
            answer = await in_flight.run(label, call, given, hooks.timeout_seconds)
            if inspect.isawaitable(answer):
                answer = await in_flight.run(label, finished, answer, hooks.timeout_seconds)
        except BaseException as error:
            if is_cancellation(error):
                raise
            log.exception("%s raised", label)
            said = str(error) if isinstance(error, GivenUp) else type(error).__name__
            raise ApplicationError(f"{said} in {label}", type="InternalError") from None
        return answer
