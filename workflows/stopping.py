"""Stop conditions: what ends a run after a model's reply and before its calls."""

from contracts.activities import ModelReply
from contracts.agents import AgentSpec
from contracts.messages import ToolCall
from contracts.runs import RunOptions, Stop
from contracts.text import json_size

# The calls are told with the run's result where they take no more than this as JSON, in bytes.
CALLS_MAX_BYTES = 65_536


def stop_before(reply: ModelReply, agent: AgentSpec, options: RunOptions) -> Stop | None:
    """Why the run ends before the calls of this reply, if it calls a tool to stop on. A call that could not run is
    none: the model may still mend it."""
    asked = [call.tool for call in reply.calls if isinstance(call, ToolCall)]
    for tool in (*agent.stop_on_tools, *options.stop_on_tools):
        if tool in asked:
            return stop(f"stop_on_tools: {tool}", reply)
    return None


def stop(reason: str, reply: ModelReply) -> Stop:
    """The stop for this reason, with the calls that did not run."""
    calls = tuple(call for call in reply.calls if isinstance(call, ToolCall))
    size = sum(json_size(call.model_dump(mode="json")) for call in calls)
    return Stop(reason=reason, calls=calls if size <= CALLS_MAX_BYTES else ())
