"""The calls of a reply, as the agent's hook wants them, before anybody is asked to approve them."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from contracts.activities import ModelReply, ReviewActivities, ReviewRequest
from contracts.messages import ToolCall
from workflows import options as activity_options
from workflows.failures import RunFailed, run_failure
from workflows.run_state import RunState


async def reviewed(reply: ModelReply, state: RunState) -> ModelReply:
    """The reply with the calls that the hook `prepare_tool_call` made of those that may run; as it is where the agent
    has no such hook. Raises `RunFailed` where the hook gave no usable answer: then no call runs."""
    asked = tuple(call for call in reply.calls if isinstance(call, ToolCall))
    if "prepare_tool_call" not in state.hooks or not asked:
        return reply
    request = ReviewRequest(agent_digest=state.agent_digest, calls=asked, context=state.context)
    try:
        answer = await workflow.execute_activity_method(
            ReviewActivities.review_calls, request, **activity_options.REVIEW
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        raise run_failure(error, otherwise="InternalError") from None
    if [call.call_id for call in answer.calls] != [call.call_id for call in asked]:
        raise RunFailed("InternalError", "review_calls answered for other calls than it was asked about")
    by_id = {call.call_id: call for call in answer.calls}
    return reply.model_copy(update={"calls": tuple(by_id.get(call.call_id, call) for call in reply.calls)})
