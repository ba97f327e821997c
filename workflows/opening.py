"""The start of a run: what the caller asked for, refused by name where it cannot be done."""

from contracts.agents import AgentSpec
from contracts.context import secret_keys
from contracts.messages import Message, illegality
from contracts.models import no_price
from contracts.records import MalformedPayload, Record
from contracts.runs import AgentRunInput, widening
from workflows.failures import RunFailed

# The context travels with every call.
CONTEXT_MAX_BYTES = 16_384
# A message is read back by query, which takes 2 MiB.
MESSAGE_MAX_BYTES = 1_048_576
MOST_MESSAGES = 10_000


def read_input(payload: bytes) -> AgentRunInput:
    """The input of a run from its JSON. Raises `RunFailed` InvalidInput with what to change."""
    if not payload:
        raise _invalid("there is no input: start the run with one AgentRunInput, at least an agent and a prompt")
    try:
        run_input = AgentRunInput.from_wire(payload)
    except MalformedPayload as error:
        raise _invalid(f"the input is not an AgentRunInput: {error}") from None
    if size := over(CONTEXT_MAX_BYTES, run_input.context):
        raise _invalid(f"context has {size} bytes as JSON, at most {CONTEXT_MAX_BYTES} fit: it travels with every call")
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
    if len(messages) > MOST_MESSAGES:
        raise _invalid(f"there are {len(messages)} messages, at most {MOST_MESSAGES} fit")
    for index, message in enumerate(messages):
        if size := over(MESSAGE_MAX_BYTES, message):
            raise _invalid(f"messages[{index}] has {size} bytes as JSON, at most {MESSAGE_MAX_BYTES} fit")
    if problem := illegality(messages):
        raise _invalid(f"messages are not a legal conversation: {problem}")
    if messages[-1].role == "assistant":
        raise _invalid("messages end with the assistant's answer: add a prompt")
    return messages


def check_options(run_input: AgentRunInput, agent: AgentSpec) -> None:
    """Options may tighten what the agent allows, never widen it. Raises `RunFailed` InvalidInput, and InternalError for
    one that was not acted on."""
    options = run_input.options
    problems: tuple[str | None, ...] = (
        widening("max_rounds", options.max_rounds, agent.max_rounds),
        widening("max_tool_calls", options.max_tool_calls, agent.max_tool_calls),
        widening("max_total_tokens", options.max_total_tokens, agent.max_total_tokens),
        widening("max_cost_usd", options.max_cost_usd, agent.max_cost_usd),
        widening("deadline_seconds", options.deadline_seconds, agent.deadline_seconds),
        widening("approval_expires_seconds", options.approval_expires_seconds, agent.approval_expires_seconds),
    )
    if options.max_cost_usd is not None or agent.max_cost_usd is not None:
        problems += tuple(f"max_cost_usd cannot be kept: {no_price(model)}" for model in agent.unpriced)
    output = options.tool_output
    if output is not None:
        problems += (
            widening("tool_output.max_bytes", output.max_bytes, agent.tool_output.max_bytes),
            widening("tool_output.max_tokens", output.max_tokens, agent.tool_output.max_tokens),
        )
    for tool in options.stop_on_tools:
        if agent.tool(tool) is None:
            problems += (f"options.stop_on_tools names {tool!r}, which is no tool of agent {agent.name}",)
    for problem in problems:
        if problem is not None:
            raise _invalid(problem)
    if options.output_schema is not None and options.output_schema != agent.output_schema:
        raise RunFailed("InternalError", "the worker that loaded the agent is too old to know options.output_schema")


def first_call(messages: tuple[Message, ...]) -> int:
    """The number of the run's first own call: above every `call_<n>` that the caller's messages already use."""
    ids = [call.call_id.removeprefix("call_") for message in messages for call in message.tool_calls]
    return 1 + max((int(number) for number in ids if number.isdecimal() and len(number) < 10), default=0)


def refuse_cron(schedule: str | None) -> None:
    """A cron run's executions share one chain, and so their calls would share idempotency keys: the second refund would
    be taken for the first. Raises `RunFailed` InvalidInput."""
    if schedule:
        raise _invalid("a cron schedule would repeat idempotency keys: use a Temporal Schedule, which starts new runs")


def over(limit: int, record: Record) -> int:
    """The size of a record's JSON in bytes if it is above the limit, else 0."""
    size = len(record.model_dump_json().encode())
    return size if size > limit else 0


def _invalid(message: str) -> RunFailed:
    return RunFailed("InvalidInput", message)
