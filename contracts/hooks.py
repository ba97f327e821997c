"""What an agent's hooks are called in a run's history."""

from typing import Literal

HookName = Literal["prepare_model_request", "prepare_tool_call", "should_stop"]

# The hook that is given the run's context with each model call.
WANTS_CONTEXT: HookName = "prepare_model_request"
