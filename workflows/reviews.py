"""The calls of a reply, as the agent's hooks want them, before anybody is asked to approve them."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from contracts.activities import ModelReply, ReviewActivities, ReviewRequest
from contracts.hooks import HookName
from contracts.messages import ToolCall
from contracts.runs import Stop
from workflows import options as activity_options
from workflows.failures import RunFailed, run_failure
from workflows.run_state import RunState
from workflows.stopping import stop

# Those that look at a reply's calls, in the order in which they are asked.
REVIEWS: tuple[HookName, ...] = ("should_stop", "prepare_tool_call")


async def reviewed(reply: ModelReply, state: RunState) -> ModelReply | Stop:
    """The reply with the calls that the hook `prepare_tool_call` made of those that may run, or why the hook
    `should_stop` ends the run before them; as it is where the agent has no such hooks. Raises `RunFailed` where a hook
    gave no usable answer: then no call runs."""
    asked = tuple(call for call in reply.calls if isinstance(call, ToolCall))
    hooks = tuple(hook for hook in REVIEWS if hook in state.hooks)
    if not hooks or not (asked or "should_stop" in hooks):
        return reply
    request = ReviewRequest(
        agent_digest=state.agent_digest,
        calls=asked,
        context=state.context,
        text=reply.text if "should_stop" in hooks else "",
        hooks=hooks,
    )
    try:
        answer = await workflow.execute_activity_method(
            ReviewActivities.review_calls, request, **activity_options.REVIEW
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        raise run_failure(error, otherwise="InternalError") from None
    if answer.stop is not None:
        return stop(f"should_stop: {answer.stop}".rstrip(": "), reply)
    if [call.call_id for call in answer.calls] != [call.call_id for call in asked]:
        raise RunFailed("InternalError", "review_calls answered for other calls than it was asked about")
    by_id = {call.call_id: call for call in answer.calls}
    return reply.model_copy(update={"calls": tuple(by_id.get(call.call_id, call) for call in reply.calls)})
