"""`review_calls`: what an agent's hook says of the calls of one reply, before anybody is asked to approve them."""

import logging
from collections.abc import Mapping

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.arguments import propose
from activities.hooks import Denied, Hooks, PrepareToolCall, called
from activities.providers.interface import RawToolCall
from activities.providers.legal import compact_json
from activities.runs import HeldRuns
from contracts.activities import ReviewActivities, ReviewedCalls, ReviewRequest
from contracts.agents import AgentSpec
from contracts.context import ExecutionContext
from contracts.messages import ArgumentIssue, InvalidToolCall, ProposedCall, ToolCall
from contracts.text import cut, encodable

REASON_MAX_BYTES = 2_000

log = logging.getLogger("steadyhand.hooks")


class CallReviews(ReviewActivities):
    """Asks the `prepare_tool_call` of the agents' hooks."""

    def __init__(self, hooks: Mapping[str, Hooks], runs: HeldRuns) -> None:
        self._hooks = hooks
        self._runs = runs

    @activity.defn(name="review_calls")
    async def review_calls(self, request: ReviewRequest) -> ReviewedCalls:
        """The calls as they are to run, in order. A hook that raises is asked again."""
        agent = await self._runs.agent(request.agent_digest)
        hooks = self._hooks.get(agent.name)
        if hooks is None or hooks.prepare_tool_call is None:
            # Not "allowed": the run was started by a worker that had the hook, and another may still have it.
            raise ApplicationError(f"this worker has no prepare_tool_call for agent {agent.name}", type="InternalError")
        reviewed = [await _reviewed(hooks.prepare_tool_call, call, agent, request.context) for call in request.calls]
        return ReviewedCalls(calls=tuple(reviewed))


async def _reviewed(hook: PrepareToolCall, call: ToolCall, agent: AgentSpec, context: ExecutionContext) -> ProposedCall:
    try:
        said = await called(hook, call, context)
    except Exception as error:
        log.exception("prepare_tool_call of agent %s raised", agent.name)
        reason = f"{type(error).__name__} in prepare_tool_call of agent {agent.name}"
        raise ApplicationError(reason, type="InternalError") from None
    if isinstance(said, Denied):
        reason = cut(encodable(said.reason), REASON_MAX_BYTES)
        issues, raw = (ArgumentIssue(message=reason),), compact_json(call.arguments)
        return InvalidToolCall(**call.model_dump(), issues=issues, reason="denied", raw=raw)
    if not isinstance(said, ToolCall) or (said.call_id, said.tool) != (call.call_id, call.tool):
        reason = f"prepare_tool_call of agent {agent.name} returned neither this call nor a Denied"
        raise ApplicationError(reason, type="InternalError", non_retryable=True)
    if said.arguments == call.arguments:
        return call
    changed = RawToolCall(said.tool, compact_json(said.arguments), call.provider_call_id)
    return propose(changed, call.call_id, {tool.name: tool for tool in agent.tools}, truncated=False)
