"""`call_model`: one request to the agent's model, and its reply parsed at the door."""

from collections.abc import Mapping
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.arguments import propose
from activities.heartbeats import beating
from activities.providers.interface import Completion, CompletionRequest, ModelFailure, ModelProvider
from activities.runs import HeldRuns
from contracts.activities import ModelActivities, ModelReply, ModelRequest
from contracts.agents import AgentSpec
from contracts.text import encodable

# A reply enters history once: well below the 2 MiB that Temporal takes in one payload.
REPLY_MAX_BYTES = 1_048_576


class ModelCalls(ModelActivities):
    """Calls the model that the run's frozen agent names, through the worker's providers."""

    def __init__(self, providers: Mapping[str, ModelProvider], runs: HeldRuns) -> None:
        self._providers = providers
        self._runs = runs

    @activity.defn(name="call_model")
    async def call_model(self, request: ModelRequest) -> ModelReply:
        """One request; failures leave classified, and with the delay that the provider asked for."""
        async with beating():
            agent = await self._runs.agent(request.agent_digest)
            messages = await self._runs.transcript(request.transcript)
            provider_name, _, model = agent.model.partition(":")
            provider = self._providers.get(provider_name)
            if provider is None:
                reason = f"this worker has no model provider {provider_name!r}, which agent {agent.name} needs"
                raise ApplicationError(reason, type="ModelUnavailable")
            try:
                completion = await provider.complete(
                    CompletionRequest(model, agent.instructions, messages, agent.tools)
                )
                return _reply(completion, agent, request.next_call)
            except ModelFailure as failure:
                delay = None if failure.retry_after is None else timedelta(seconds=failure.retry_after)
                raise ApplicationError(
                    str(failure), type=failure.type, non_retryable=not failure.retryable, next_retry_delay=delay
                ) from None
            except ApplicationError:
                raise
            except Exception as bug:  # noqa: BLE001 - the reply may be paid for: a retry would pay for the same bug again
                activity.logger.exception("a bug while calling the model")
                reason = f"{type(bug).__name__} while calling the model; the worker's log has the details"
                raise ApplicationError(reason, type="InternalError", non_retryable=True) from None


def _reply(completion: Completion, agent: AgentSpec, next_call: int) -> ModelReply:
    tools = {tool.name: tool for tool in agent.tools}
    reply = ModelReply(
        text=encodable(completion.text),
        calls=tuple(
            propose(raw, f"call_{number}", tools, truncated=completion.truncated)
            for number, raw in enumerate(completion.calls, start=next_call)
        ),
        finish_reason=completion.finish_reason,
        truncated=completion.truncated,
        usage=completion.usage,
    )
    size = len(reply.model_dump_json().encode())
    if size > REPLY_MAX_BYTES:
        reason = f"the model's reply has {size} bytes as JSON; at most {REPLY_MAX_BYTES} fit into a run's history"
        raise ApplicationError(reason, type="PayloadTooLarge", non_retryable=True)
    return reply
