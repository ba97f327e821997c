"""The start of a run: what the caller asked for, refused by name where it cannot be done."""

import json

from pydantic import JsonValue

from contracts.agents import AgentSpec
from contracts.context import secret_keys
from contracts.messages import Message, illegality
from contracts.records import MalformedPayload
from contracts.runs import AgentRunInput, unsupported_options, widening
from workflows.failures import RunFailed


def read_input(payload: bytes) -> AgentRunInput:
    """The input of a run from its JSON. Raises `RunFailed` InvalidInput with what to change."""
    try:
        run_input = AgentRunInput.from_wire(payload)
        raw: JsonValue = json.loads(payload)
    except (MalformedPayload, ValueError) as error:
        raise _invalid(f"the input is not an AgentRunInput: {error}") from None
    if isinstance(raw, dict) and (names := unsupported_options(raw.get("options"))):
        raise _invalid(f"this version does not support {', '.join(f'options.{name}' for name in names)}: leave it out")
    if secrets := secret_keys(run_input.context.metadata):
        raise _invalid(
            f"context.metadata.{secrets[0]} looks like a secret, and a run's history is readable: keep secrets in the "
            "worker's settings"
        )
    return run_input


def opening_messages(run_input: AgentRunInput) -> tuple[Message, ...]:
    """The conversation a run starts with. Raises `RunFailed` InvalidInput where no model could continue it."""
    messages = run_input.messages
    if run_input.prompt is not None:
        if not run_input.prompt.strip():
            raise _invalid("prompt is empty: say what the agent should do")
        messages = (*messages, Message(role="user", text=run_input.prompt))
    if not messages:
        raise _invalid("there is no prompt and no messages: give one of the two")
    if problem := illegality(messages):
        raise _invalid(f"messages are not a legal conversation: {problem}")
    if messages[-1].role == "assistant":
        raise _invalid("messages end with the assistant's answer: add a prompt")
    return messages


def check_options(run_input: AgentRunInput, agent: AgentSpec) -> None:
    """Options may tighten what the agent allows, never widen it. Raises `RunFailed` InvalidInput."""
    options = run_input.options
    problems = (
        widening("max_rounds", options.max_rounds, agent.max_rounds),
        widening("max_tool_calls", options.max_tool_calls, agent.max_tool_calls),
        widening("approval_expires_seconds", options.approval_expires_seconds, agent.approval_expires_seconds),
    )
    for problem in problems:
        if problem is not None:
            raise _invalid(problem)


def first_call(messages: tuple[Message, ...]) -> int:
    """The number of the run's first own call: above every `call_<n>` that the caller's messages already use."""
    ids = [call.call_id.removeprefix("call_") for message in messages for call in message.tool_calls]
    return 1 + max((int(number) for number in ids if number.isdecimal() and len(number) < 10), default=0)


def _invalid(message: str) -> RunFailed:
    return RunFailed("InvalidInput", message)
