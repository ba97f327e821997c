"""What a worker holds of the runs it serves: transcripts and agents by digest, and for whom they work, asked from the
run on a miss."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import activity
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from contracts.agents import AgentSpec
from contracts.events import EventsPage, EventsQuery
from contracts.messages import Message
from contracts.records import Record
from contracts.transcripts import (
    EMPTY_DIGEST,
    TranscriptPage,
    TranscriptQuery,
    TranscriptRef,
    extend_digest,
    message_text,
)

R = TypeVar("R", bound=Record)
T = TypeVar("T")

CACHE_MAX_BYTES = 256 * 1_048_576
AGENTS_HELD = 256
CONTEXTS_HELD = 256

# A query waits for the sticky queue of a dead worker: ask again soon rather than wait long.
QUERY_TIMEOUT = timedelta(seconds=3)
QUERY_PAUSE_SECONDS = 0.2
# A client-side timeout reads CANCELLED; no workflow worker at the moment reads FAILED_PRECONDITION.
_TRANSIENT = frozenset(
    {
        RPCStatusCode.CANCELLED,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.FAILED_PRECONDITION,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.UNAVAILABLE,
    }
)


@dataclass(frozen=True)
class _Held:
    """A verified part of a run's transcript, from the message with number `start` on: `digests[i]` names its first i +
    1 messages. Counts are those of the whole transcript."""

    start: int = 0
    messages: tuple[Message, ...] = ()
    digests: tuple[str, ...] = ()
    size: int = 0

    @property
    def count(self) -> int:
        return self.start + len(self.messages)

    def digest_at(self, count: int) -> str | None:
        if count == self.start:
            return EMPTY_DIGEST
        return self.digests[count - self.start - 1] if self.start < count <= self.count else None

    def first(self, count: int) -> "_Held":
        if count == self.count:
            return self
        held = max(0, count - self.start)
        messages = self.messages[:held]
        size = sum(len(message_text(message)) for message in messages)
        return _Held(self.start, messages, self.digests[:held], size)

    def extended(self, messages: tuple[Message, ...]) -> "_Held":
        digests, size = [*self.digests], self.size
        digest = digests[-1] if digests else EMPTY_DIGEST
        for message in messages:
            text = message_text(message)
            digest = extend_digest(digest, text)
            digests.append(digest)
            size += len(text)
        return _Held(self.start, (*self.messages, *messages), tuple(digests), size)


class HeldRuns:
    """An LRU cache, bounded in bytes. Use it inside an activity of the run it is asked about."""

    def __init__(self, max_bytes: int = CACHE_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._transcripts: OrderedDict[str, _Held] = OrderedDict()
        self._agents: OrderedDict[str, AgentSpec] = OrderedDict()
        self._attributes: OrderedDict[str, Mapping[str, str]] = OrderedDict()

    async def transcript(self, ref: TranscriptRef) -> tuple[Message, ...]:
        """The messages a reference names.

        Raises ApplicationError `TranscriptMismatch` where the run's own transcript has another digest. It is retried,
        as `AgentMismatch` is: this worker may be too old to know all of a message, and another may not.
        """
        key = activity.info().workflow_id or ""
        nothing = _Held(ref.first)
        held = self._transcripts.get(key, nothing)
        if held.start != ref.first:
            # The run has left its oldest messages behind since.
            held = nothing
        found = self._known(held, ref) or await self._fetched(held, ref) or await self._fetched(nothing, ref)
        if found is None:
            raise ApplicationError(
                f"the run's transcript does not have the digest {ref.digest} at {ref.count} messages",
                type="TranscriptMismatch",
            )
        self._hold(key, found)
        return found.first(ref.count).messages

    async def agent(self, digest: str) -> AgentSpec:
        """The frozen agent with this digest."""
        agent = self._agents.get(digest)
        if agent is None:
            agent = await _ask("agent", None, AgentSpec)
            if agent.digest != digest:
                raise ApplicationError(f"the run's agent does not have the digest {digest}", type="AgentMismatch")
        _keep(self._agents, digest, agent, AGENTS_HELD)
        return agent

    async def attributes(self) -> Mapping[str, str]:
        """The attributes of the run's context: for tracing, so that no model call has to carry them in history."""
        key = activity.info().workflow_run_id or ""
        attributes = self._attributes.get(key)
        if attributes is None:
            attributes = (await _ask("events", EventsQuery(limit=1), EventsPage)).attributes
        _keep(self._attributes, key, attributes, CONTEXTS_HELD)
        return attributes

    @staticmethod
    def _known(held: _Held, ref: TranscriptRef) -> _Held | None:
        """What is held, if it reaches the reference by itself or with the reference's tail."""
        if held.digest_at(ref.count) == ref.digest:
            return held
        prefix = ref.count - len(ref.tail)
        if not ref.tail or held.digest_at(prefix) is None:
            return None
        extended = held.first(prefix).extended(ref.tail)
        return extended if extended.digest_at(ref.count) == ref.digest else None

    @staticmethod
    async def _fetched(held: _Held, ref: TranscriptRef) -> _Held | None:
        """What is held plus what the run says comes after it, if that leads to the reference's digest."""
        held = held.first(ref.count)
        while held.count < ref.count:
            page = await _ask("transcript", TranscriptQuery(start=held.count), TranscriptPage)
            if not page.messages:
                return None
            held = held.extended(page.messages)
        return held if held.digest_at(ref.count) == ref.digest else None

    def _hold(self, key: str, held: _Held) -> None:
        self._transcripts[key] = held
        self._transcripts.move_to_end(key)
        total = sum(each.size for each in self._transcripts.values())
        while total > self._max_bytes and len(self._transcripts) > 1:
            total -= self._transcripts.popitem(last=False)[1].size


def _keep(held: OrderedDict[str, T], key: str, value: T, most: int) -> None:
    """Hold this as the last one used; the ones that were not used for longest go."""
    held[key] = value
    held.move_to_end(key)
    while len(held) > most:
        held.popitem(last=False)


async def _ask(query: str, argument: Record | None, answer: type[R]) -> R:
    """Ask the activity's own run."""
    info = activity.info()
    handle = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    return await ask(handle, query, argument, answer)


async def ask(handle: WorkflowHandle[Any, Any], query: str, argument: Record | None, answer: type[R]) -> R:
    """Ask a run. Waits through a missing or restarting workflow worker: the activity's own timeout bounds the wait, and
    the caller's heartbeat shows that it lives."""
    arguments = [] if argument is None else [argument]
    while True:
        try:
            found: R = await handle.query(query, args=arguments, result_type=answer, rpc_timeout=QUERY_TIMEOUT)
            return found
        except RPCError as error:
            if error.status not in _TRANSIENT:
                raise
        except WorkflowQueryFailedError as error:
            raise ApplicationError(f"the run refused the query {query!r}: {error}", type="QueryRefused") from None
        await asyncio.sleep(QUERY_PAUSE_SECONDS)
