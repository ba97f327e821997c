"""`call_model`: one request to the agent's model, and its reply parsed at the door."""

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.arguments import propose
from activities.heartbeats import beating
from activities.keywords import Budget
from activities.providers.interface import Completion, CompletionRequest, ModelFailure, ModelProvider
from activities.runs import HeldRuns
from contracts.activities import ModelActivities, ModelReply, ModelRequest
from contracts.agents import AgentSpec
from contracts.messages import Usage
from contracts.text import encodable

# A reply enters history once: well below the 2 MiB that Temporal takes in one payload.
REPLY_MAX_BYTES = 1_048_576
# A call without a name, an id and arguments takes about this much there.
_CALL_MIN_BYTES = 40

log = logging.getLogger("steadyhand.model")


class ModelCalls(ModelActivities):
    """Calls the model that the run's frozen agent names, through the worker's providers."""

    def __init__(self, providers: Mapping[str, ModelProvider], runs: HeldRuns) -> None:
        self._providers = providers
        self._runs = runs

    @activity.defn(name="call_model")
    async def call_model(self, request: ModelRequest) -> ModelReply:
        """One request; failures leave classified, and with the delay that the provider asked for."""
        try:
            async with beating():
                return await self._call(request)
        except Exception as error:
            _log(error)
            raise

    async def _call(self, request: ModelRequest) -> ModelReply:
        agent = await self._runs.agent(request.agent_digest)
        messages = await self._runs.transcript(request.transcript)
        provider_name, _, model = agent.model.partition(":")
        provider = self._providers.get(provider_name)
        if provider is None:
            reason = f"this worker has no model provider {provider_name!r}, which agent {agent.name} needs"
            raise ApplicationError(reason, type="ModelUnavailable")
        try:
            completion = await provider.complete(
                CompletionRequest(model, agent.instructions, messages, agent.tools, agent.settings)
            )
            _check_size(_raw_size(completion))
            # Up to a second's work where a model goes to the limits: this worker's other runs must not wait for it.
            return await asyncio.to_thread(_reply, completion, agent, request.next_call)
        except ModelFailure as failure:
            delay = None if failure.retry_after is None else timedelta(seconds=failure.retry_after)
            raise ApplicationError(
                str(failure), type=failure.type, non_retryable=not failure.retryable, next_retry_delay=delay
            ) from None
        except ApplicationError:
            raise
        except Exception as bug:
            # The reply may be paid for: a retry would pay for the same bug again.
            log.exception("a bug while calling the model")
            reason = f"{type(bug).__name__} while calling the model; the worker's log has the details"
            raise ApplicationError(reason, type="InternalError", non_retryable=True) from None


def _reply(completion: Completion, agent: AgentSpec, next_call: int) -> ModelReply:
    tools = {tool.name: tool for tool in agent.tools}
    budget = Budget()
    reply = ModelReply(
        text=encodable(completion.text),
        calls=tuple(
            propose(raw, f"call_{number}", tools, truncated=completion.truncated, budget=budget)
            for number, raw in enumerate(completion.calls, start=next_call)
        ),
        finish_reason=completion.finish_reason,
        truncated=completion.truncated,
        usage=completion.usage or Usage(),
    )
    _check_size(len(reply.model_dump_json().encode()))
    return reply


def _raw_size(completion: Completion) -> int:
    """About how many bytes the reply will take, before anything is spent on parsing and judging it."""
    calls = completion.calls
    texts = (text for call in calls for text in (call.name, call.arguments, call.provider_call_id or ""))
    said = (completion.text, completion.finish_reason or "", *texts)
    return sum(len(text.encode(errors="surrogatepass")) for text in said) + len(calls) * _CALL_MIN_BYTES


def _check_size(size: int) -> None:
    if size > REPLY_MAX_BYTES:
        reason = f"the model's reply has {size} bytes; at most {REPLY_MAX_BYTES} fit into a run's history"
        raise ApplicationError(reason, type="PayloadTooLarge", non_retryable=True)


def _log(error: Exception) -> None:
    """One line a failed call: failures are a part of the work, and Temporal has all of them."""
    known = error if isinstance(error, ApplicationError) else ApplicationError(str(error), type=type(error).__name__)
    delay = "" if known.next_retry_delay is None else f", delay {known.next_retry_delay.total_seconds():g} s"
    retried = "not retryable" if known.non_retryable else "retryable"
    info = activity.info()
    log.warning(
        "call_model of %s, attempt %d, failed: %s (%s%s): %s",
        *(info.workflow_id, info.attempt, known.type, retried, delay, known.message),
    )
