"""Anthropic's Messages API, as Anthropic and the servers that speak its dialect answer it."""

import re
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from activities.providers.dialect import Dialect, ReplyStream
from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, CompletionRequest, ModelFailure
from activities.providers.messages_replies import completion
from activities.providers.messages_schema import native_schema
from activities.providers.messages_stream import MessagesStream
from activities.providers.messages_turns import Turn, open_exchange, turns_of
from activities.providers.structured import instructed
from contracts.models import ModelSettings
from contracts.tools import ToolContract

# The later version, 2026-10-21, refuses temperature and top_p ("Versions"), which agents may set.
API_VERSION = "2023-06-01"

# `max_tokens` is no option here. What an agent without `max_output_tokens` gets, in tokens: thinking counts in it.
MAX_TOKENS = 8_192
MAX_TOKENS_THINKING = 32_000

# At most so many tokens to think with, by the word for the effort, where the API wants a number; the least it takes.
THINKING_BUDGETS = {"low": 2_048, "medium": 8_192, "high": 16_000, "xhigh": 24_000, "max": 32_000}
THINKING_MIN = 1_024

_GONE = "This tool cannot be called any more."
_CACHED: JsonValue = {"type": "ephemeral"}
_CLAUDE = re.compile(r"(^|[./])claude-")
# "Extended thinking: Supported models". No later model has it, so this list does not grow.
_CLAUDE_WITH_BUDGET = re.compile(r"claude-(3|(opus|sonnet|haiku)-4([-.][0-5])?($|[-@:](\d{8}|latest|v\d)))")


class Messages(Dialect):
    """The dialect of `POST /messages`.

    A seed does not exist here and is left out. `reasoning_effort` is `output_config.effort` with adaptive thinking
    ("Effort") for Claude 4.6 and later; for older Claudes and all other models it is a budget: see THINKING_BUDGETS.
    "none" switches thinking off, and without the setting the model's default holds.

    A budget of thinking is left out of a request with a forced tool choice, which is refused next to it; of one that
    goes on with an exchange that another model, or this one without thinking, began: its first turn would have to begin
    with thinking ("Extended thinking with tool use"); and of one with less than twice the least budget to say anything
    at all. Adaptive thinking has none of these rules.

    Two cache breakpoints are set, after the system text and at the end of the user's last turn, so that each round
    reads what the one before it wrote ("Prompt caching").
    """

    path = "/messages"

    def headers(self, key: str) -> Mapping[str, str]:
        return {"anthropic-version": API_VERSION, **({"x-api-key": key} if key else {})}

    def body(self, request: CompletionRequest, stream: bool) -> dict[str, JsonValue]:
        """The request. Raises `ModelFailure` for settings that this API is known to refuse."""
        settings = request.settings
        _check_sampling(settings)
        turns = turns_of(request.messages)
        max_tokens = settings.max_output_tokens or (MAX_TOKENS_THINKING if _thinks(settings) else MAX_TOKENS)
        body: dict[str, JsonValue] = {"model": request.model, "max_tokens": max_tokens}
        if (instructions := instructed(request)).strip():
            body["system"] = [{"type": "text", "text": instructions, "cache_control": _CACHED}]
        if tools := _tools(request):
            body["tools"] = tools
            body.update(_tool_choice(settings))
        elif gone := _called_before(turns):
            body["tools"], body["tool_choice"] = gone, {"type": "none"}
        body["messages"] = _with_breakpoint(turns)
        body.update(_reasoning(request.model, settings, max_tokens, turns))
        if output := _output(request):
            body["output_config"] = output
        for name, value in (("temperature", settings.temperature), ("top_p", settings.top_p)):
            if value is not None:
                body[name] = value
        if settings.stop:
            body["stop_sequences"] = list(settings.stop)
        body["stream"] = stream
        return body

    def reply_stream(self, endpoint: Endpoint) -> ReplyStream:
        return MessagesStream(endpoint)

    def completion(self, reply: dict[str, JsonValue], endpoint: Endpoint) -> Completion:
        return completion(reply, endpoint)


def _thinks(settings: ModelSettings) -> bool:
    return settings.reasoning_effort not in (None, "none")


def _by_budget(model: str) -> bool:
    return not _CLAUDE.search(model) or bool(_CLAUDE_WITH_BUDGET.search(model))


def _refused(reason: str) -> ModelFailure:
    return ModelFailure("ModelBadRequest", f"settings: {reason}")


def _check_sampling(settings: ModelSettings) -> None:
    """A value that this API does not have is not bent into one that it has."""
    if settings.temperature is not None and settings.temperature > 1:
        raise _refused("temperature goes from 0 to 1 on this API")
    if _thinks(settings) and settings.temperature not in (None, 1):
        raise _refused("temperature cannot be set together with reasoning_effort on this API")
    if _thinks(settings) and settings.top_p is not None and settings.top_p < 0.95:
        raise _refused("top_p must be at least 0.95 together with reasoning_effort on this API")


def _tools(request: CompletionRequest) -> list[JsonValue]:
    tools: list[JsonValue] = [_wire_tool(tool) for tool in request.tools]
    if request.web_search:
        tools.append({"type": "web_search_20250305", "name": "web_search"})
    return tools


def _called_before(turns: Sequence[Turn]) -> list[JsonValue]:
    """Tools in place of those that a conversation called and this request does not have: the API refuses calls and
    results where no tool is defined."""
    calls = (block for turn in turns for block in turn.blocks if block.get("type") == "tool_use")
    names = dict.fromkeys(str(call["name"]) for call in calls)
    return [{"name": name, "description": _GONE, "input_schema": {"type": "object"}} for name in names]


def _wire_tool(tool: ToolContract) -> JsonValue:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}


def _tool_choice(settings: ModelSettings) -> dict[str, JsonValue]:
    chosen = settings.tool_choice
    choice: dict[str, JsonValue] = {"type": {"required": "any"}.get(chosen, chosen)}
    if chosen not in ("auto", "none", "required"):
        choice = {"type": "tool", "name": chosen}
    if settings.parallel_tool_calls is not None and chosen != "none":
        choice["disable_parallel_tool_use"] = not settings.parallel_tool_calls
    return {} if choice == {"type": "auto"} else {"tool_choice": choice}


def _reasoning(model: str, settings: ModelSettings, max_tokens: int, turns: Sequence[Turn]) -> dict[str, JsonValue]:
    """The part of the request that says how to think. The effort itself goes into `output_config`."""
    effort = settings.reasoning_effort
    if effort is None:
        return {}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if not _by_budget(model):
        return {"thinking": {"type": "adaptive"}}
    if effort not in THINKING_BUDGETS:
        raise _refused(f"reasoning_effort of {model} must be one of: none, {', '.join(THINKING_BUDGETS)}")
    # The budget is a part of `max_tokens`: half of them is kept for the answer.
    budget = min(THINKING_BUDGETS[effort], max_tokens // 2)
    begun = open_exchange(turns)
    forced = settings.tool_choice not in ("auto", "none")
    if forced or budget < THINKING_MIN or (begun is not None and not begun.begins_with_thinking):
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _output(request: CompletionRequest) -> dict[str, JsonValue]:
    output: dict[str, JsonValue] = {}
    if _thinks(request.settings) and not _by_budget(request.model):
        output["effort"] = request.settings.reasoning_effort
    if request.output_schema is not None and request.settings.native_output:
        output["format"] = {"type": "json_schema", "schema": native_schema(request.output_schema)}
    return output


def _with_breakpoint(turns: Sequence[Turn]) -> list[JsonValue]:
    """The turns, with a cache breakpoint at the end of the user's last one, whose blocks are all our own."""
    last = max(index for index, turn in enumerate(turns) if turn.role == "user")
    *blocks, ending = turns[last].blocks
    marked = Turn("user", [*blocks, {**ending, "cache_control": _CACHED}])
    return [(marked if index == last else turn).as_json() for index, turn in enumerate(turns)]
