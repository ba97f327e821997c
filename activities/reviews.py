"""`review_calls`: what an agent's hook says of the calls of one reply, before anybody is asked to approve them."""

from pydantic import JsonValue
from temporalio import activity

from activities.arguments import propose
from activities.heartbeats import beating
from activities.hook_calls import HookCalls
from activities.hooks import Denied, Proposed
from activities.model_attempt import final
from activities.providers.interface import RawToolCall
from activities.providers.legal import compact_json
from activities.reply_size import check_reply_size
from activities.runs import HeldRuns
from activities.spans import describe_span
from contracts.activities import ReviewActivities, ReviewedCalls, ReviewRequest
from contracts.agents import AgentSpec
from contracts.messages import ArgumentIssue, InvalidToolCall, ProposedCall, ToolCall
from contracts.text import cut, encodable

REASON_MAX_BYTES = 2_000


class CallReviews(ReviewActivities):
    """Asks the `should_stop` and the `prepare_tool_call` of the agents' hooks, as far as there are such."""

    def __init__(self, hooks: HookCalls, runs: HeldRuns) -> None:
        self._hooks = hooks
        self._runs = runs

    @activity.defn(name="review_calls")
    async def review_calls(self, request: ReviewRequest) -> ReviewedCalls:
        """The calls as they are to run, in order. A hook that raises is asked again; one that returned what it may not,
        or more than fits into history, would do so again."""
        describe_span(request.context.attributes, activity.info().attempt)
        agent = await self._runs.agent(request.agent_digest)
        async with beating():
            if "should_stop" in request.hooks:
                proposed = Proposed(request.text, request.calls)
                answer = await self._hooks.answer(agent.name, "should_stop", proposed, request.context)
                if (reason := _reason_to_stop(answer, agent)) is not None:
                    return ReviewedCalls(calls=request.calls, stop=reason)
            if "prepare_tool_call" not in request.hooks:
                return ReviewedCalls(calls=request.calls)
            said = [
                await self._hooks.answer(agent.name, "prepare_tool_call", call, request.context)
                for call in request.calls
            ]
        reviewed = ReviewedCalls(
            calls=tuple(_reviewed(call, answer, agent) for call, answer in zip(request.calls, said, strict=True))
        )
        check_reply_size(len(reviewed.model_dump_json().encode()))
        return reviewed


def _reason_to_stop(said: object, agent: AgentSpec) -> str | None:
    match said:
        case bool():
            return "" if said else None
        case str():
            if not said.strip():
                return None
            return cut(encodable(said), REASON_MAX_BYTES)
    raise final("InternalError", f"should_stop of agent {agent.name} returned neither a bool nor a text")


def _reviewed(call: ToolCall, said: object, agent: AgentSpec) -> ProposedCall:
    match said:
        case Denied(str(reason)):
            issues = (ArgumentIssue(message=cut(encodable(reason), REASON_MAX_BYTES)),)
            return InvalidToolCall(
                **call.model_dump(), issues=issues, reason="denied", raw=compact_json(call.arguments)
            )
        case ToolCall(call_id=call.call_id, tool=call.tool, arguments=dict(arguments)):
            return call if arguments == call.arguments else _changed(call, arguments, agent)
    raise final("InternalError", f"prepare_tool_call of agent {agent.name} returned neither this call nor a Denied")


def _changed(call: ToolCall, arguments: dict[str, JsonValue], agent: AgentSpec) -> ProposedCall:
    try:
        raw = RawToolCall(call.tool, compact_json(arguments), call.provider_call_id)
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"prepare_tool_call of agent {agent.name} returned arguments that are no JSON: {type(error).__name__}"
        raise final("InternalError", reason) from None
    return propose(raw, call.call_id, {tool.name: tool for tool in agent.tools}, truncated=False)
