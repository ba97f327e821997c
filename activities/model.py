"""`call_model`: one request to the agent's model, and its reply parsed at the door."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from pydantic import JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.answers import check_answer
from activities.arguments import propose
from activities.delta_sinks import DeltaSink, Dropped
from activities.deltas import DeltaPublisher
from activities.heartbeats import beating
from activities.in_flight import is_cancellation
from activities.keywords import Budget
from activities.model_attempt import ModelAttempt, final
from activities.providers.interface import Completion, ModelFailure, ModelProvider, Publish
from activities.providers.legal import compact_json
from activities.reply_size import check_calls, check_reply_size, raw_size
from activities.requests import PreparedRequest, Requests
from activities.runs import HeldRuns
from activities.spans import describe_span, is_traced
from contracts.activities import ModelActivities, ModelReply, ModelRequest
from contracts.agents import AgentSpec
from contracts.messages import Usage
from contracts.text import encodable, legal_json
from contracts.tools import ToolContract

log = logging.getLogger("steadyhand.model")


class ModelCalls(ModelActivities):
    """Calls the models that the runs' frozen agents name, through the worker's providers."""

    def __init__(
        self,
        providers: Mapping[str, ModelProvider],
        runs: HeldRuns,
        requests: Requests,
        sink: DeltaSink | None = None,
    ) -> None:
        self._providers = providers
        self._runs = runs
        self._requests = requests
        self._sink = sink or Dropped()

    @activity.defn(name="call_model")
    async def call_model(self, request: ModelRequest) -> ModelReply:
        """One request; failures leave classified, and with the delay that the provider asked for."""
        attempt = ModelAttempt(request)
        async with DeltaPublisher(self._sink, request.key) as publisher:
            try:
                # Each beat says what the attempts so far were billed: the next attempt goes on counting from there.
                async with beating(attempt.details):
                    reply = await self._call(attempt, publisher)
                    await publisher.completed(reply)
                    return reply
            except ModelFailure as failure:
                attempt.bill(failure.usage)
                raise attempt.failed(failure) from None
            except ApplicationError as error:
                raise attempt.with_bill(error) from None
            except Exception as error:
                # The server or the run could not be asked: nothing is paid by this attempt, and another may go well.
                log.exception("a model call that was not made")
                reason = f"{type(error).__name__} before the model was called; the worker's log has the details"
                raise attempt.with_bill(ApplicationError(reason, type="InternalError")) from None

    async def _call(self, attempt: ModelAttempt, publish: Publish) -> ModelReply:
        request = attempt.request
        if is_traced():
            describe_span(await self._runs.attributes(), attempt.number)
        agent = await self._runs.agent(request.agent_digest)
        messages = await self._runs.transcript(request.transcript)
        model = request.model or agent.model
        provider = self._providers.get(model.partition(":")[0])
        if provider is None:
            reason = f"this worker has no model provider {model.partition(':')[0]!r}, which agent {agent.name} needs"
            raise ApplicationError(reason, type="ModelUnavailable")
        try:
            prepared = await self._requests.prepare(request, agent, messages, attempt.billed)
            return await self._reply(attempt, agent, model, provider, prepared, publish)
        except (ModelFailure, ApplicationError):
            raise
        except BaseException as bug:
            if is_cancellation(bug):
                raise
            # The reply may be paid for: a retry would pay for the same bug again.
            log.exception("a bug while calling the model")
            reason = f"{type(bug).__name__} while calling the model; the worker's log has the details"
            raise final("InternalError", reason) from None

    async def _reply(
        self,
        attempt: ModelAttempt,
        agent: AgentSpec,
        model: str,
        provider: ModelProvider,
        prepared: PreparedRequest,
        publish: Publish,
    ) -> ModelReply:
        completion = await provider.complete(prepared.request, publish)
        used = completion.usage or await asyncio.to_thread(_estimated, completion, prepared)
        attempt.bill(used)
        check_calls(len(completion.calls))
        check_reply_size(raw_size(completion))
        # Up to a second's work where a model goes to the limits: this worker's other runs must not wait for it.
        reply = await asyncio.to_thread(
            _parsed, completion, agent, prepared.request.tools, model, attempt.request.next_call
        )
        spent = {
            "usage": attempt.billed,
            "usage_estimated": completion.usage is None,
            "attempts": attempt.number,
            "failed_usage": attempt.billed_before,
        }
        reply = reply.model_copy(update=spent)
        check_reply_size(len(reply.model_dump_json().encode()))
        return reply


def _parsed(
    completion: Completion, agent: AgentSpec, offered: Sequence[ToolContract], model: str, next_call: int
) -> ModelReply:
    # Only what the request offered: a hook may have taken a tool away that the model remembers.
    tools = {tool.name: tool for tool in offered}
    budget = Budget()
    output: JsonValue = None
    issues: tuple[str, ...] = ()
    if agent.output_schema is not None and not completion.calls and completion.text.strip():
        output, issues = check_answer(completion.text, agent.output_schema)
    reply = ModelReply(
        text=encodable(completion.text),
        calls=tuple(
            propose(raw, f"call_{number}", tools, truncated=completion.truncated, budget=budget)
            for number, raw in enumerate(completion.calls, start=next_call)
        ),
        finish_reason=None if completion.finish_reason is None else encodable(completion.finish_reason),
        truncated=completion.truncated,
        paused=completion.paused,
        opaque=tuple(_stamped(part, model) for part in completion.opaque),
        output=output,
        output_issues=issues,
    )
    return reply.model_copy(update={"replaced_characters": _replaced(reply)})


def _replaced(reply: ModelReply) -> int:
    """How many characters of a reply stand for something that could not be encoded."""
    said = (reply.text, *(compact_json(call.arguments) for call in reply.calls))
    return sum(text.count("\ufffd") for text in said)


def _stamped(part: JsonValue, model: str) -> JsonValue:
    """The part, with the model that alone can read it."""
    legal = legal_json(part)
    return {"from": model, **legal} if isinstance(legal, dict) and "block" in legal else legal


def _estimated(completion: Completion, prepared: PreparedRequest) -> Usage:
    """What a reply has probably used whose provider does not count."""
    said = completion.text + "".join(call.name + call.arguments for call in completion.calls)
    return Usage(input_tokens=prepared.input_tokens, output_tokens=prepared.count(encodable(said)))
