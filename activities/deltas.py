"""What one attempt of a model call tells people who watch."""

from functools import partial
from types import TracebackType
from typing import Self

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.delta_outbox import Outbox
from activities.delta_sinks import DeltaSink, Dropped
from activities.providers.interface import Delta
from contracts.activities import ModelReply
from contracts.deltas import DeltaEvent, DeltaType
from contracts.messages import ToolCall
from contracts.text import encodable

_TYPES: dict[str, DeltaType] = {
    "text": "model_content_delta",
    "reasoning": "model_reasoning_delta",
    "refusal": "model_refusal_delta",
    "tool_call": "tool_call_building",
}


class DeltaPublisher:
    """A `Publish` for the running activity's attempt of the model call `key`, as an async context manager.

    An exception that leaves the block is told as `model_failed`, unless the end was told before. When the attempt is
    cancelled, the sink is not called any more. Nothing that the sink does reaches the caller; what it is waited for is
    bounded by its `Delivery`.
    """

    def __init__(self, sink: DeltaSink, key: str) -> None:
        self._last: DeltaType | None = None
        self._told_text = self._ended = False
        self._outbox: Outbox | None = None
        if not isinstance(sink, Dropped):
            info = activity.info()
            self._outbox = Outbox(sink, f"call_model of {info.workflow_id}, attempt {info.attempt},")
            self._event = partial(
                DeltaEvent,
                workflow_id=info.workflow_id or "",
                run_id=info.workflow_run_id or "",
                key=key,
                attempt=info.attempt,
                sequence=0,
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outbox is None:
            return
        try:
            if isinstance(error, ApplicationError):
                await self.failed(error.type or "ApplicationError", not error.non_retryable)
            elif isinstance(error, Exception):
                await self.failed(type(error).__name__, True)
        finally:
            self._outbox.stop()

    async def __call__(self, delta: Delta) -> None:
        """Tell a piece of the reply."""
        if self._outbox is None:
            return
        kind, text = _TYPES[delta.kind], encodable(delta.text)
        if kind == "tool_call_building":
            event = self._event(type=kind, text=text, call=delta.call, tool=encodable(delta.name))
            await self._tell(self._outbox, event)
        elif text:
            self._told_text = self._told_text or kind == "model_content_delta"
            await self._tell(self._outbox, self._event(type=kind, text=text))

    async def completed(self, reply: ModelReply) -> None:
        """Tell the reply as it was parsed, and return when the sink has taken it. The text comes in one piece first
        where the provider published none of it."""
        if self._outbox is None or self._ended:
            return
        if reply.text and not self._told_text:
            await self._tell(self._outbox, self._event(type="model_content_delta", text=reply.text))
        for position, call in enumerate(reply.calls):
            if isinstance(call, ToolCall) and not reply.truncated:
                event = self._event(type="tool_call_ready", call=position, call_id=call.call_id, tool=call.tool)
                await self._tell(self._outbox, event)
        end = self._event(type="model_completed", text=reply.text, finish_reason=reply.finish_reason, usage=reply.usage)
        await self._end(self._outbox, end)

    async def failed(self, error_type: str, retryable: bool) -> None:
        """Tell that the attempt failed and whether there will be another one, and return when the sink has taken it."""
        if self._outbox is None or self._ended:
            return
        info = activity.info()
        most = info.retry_policy.maximum_attempts if info.retry_policy else 0
        last = 0 < most <= info.attempt
        await self._end(
            self._outbox, self._event(type="model_failed", error=error_type, retried=retryable and not last)
        )

    async def _end(self, outbox: Outbox, event: DeltaEvent) -> None:
        self._ended = True
        await self._tell(outbox, event)
        await outbox.end()

    async def _tell(self, outbox: Outbox, event: DeltaEvent) -> None:
        if event.type != "model_failed":
            if self._last is None:
                await outbox.put(self._event(type="model_first_event"))
            elif self._last == "model_reasoning_delta" and event.type != self._last:
                await outbox.put(self._event(type="model_reasoning_completed"))
        self._last = event.type
        await outbox.put(event)
