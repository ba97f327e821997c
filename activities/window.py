"""The context budget: what of a conversation fits into the model's window, decided before anything is paid.

A pure function of the request: the same conversation is cut at the same places by any worker and at any attempt. And
nothing that was cut is lost: the run's transcript stays whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from activities.providers.interface import CompletionRequest
from activities.reduction import Unit, reduction
from activities.token_counts import Count, message_tokens, schema_tokens, text_tokens, tool_tokens
from contracts.hints import is_hint
from contracts.messages import Message, ToolCall
from contracts.models import RESERVED_OUTPUT, ContextBudget
from contracts.tools import ToolContract

# Stands where the first message was left out. No number in it: it must not change while the conversation grows.
LEFT_OUT = Message(role="user", text="[Messages of this conversation were left out here, as they are too old to fit.]")


@dataclass(frozen=True)
class TokenSplit:
    """Tokens of a request by where they come from. `reserved_output` is kept free for the reply."""

    system: int = 0
    conversation: int = 0
    tool_results: int = 0
    tool_schemas: int = 0
    output_schema: int = 0
    reserved_output: int = 0

    @property
    def input(self) -> int:
        """What is sent."""
        return self.system + self.conversation + self.tool_results + self.tool_schemas + self.output_schema

    @property
    def total(self) -> int:
        """What has to fit into the window."""
        return self.input + self.reserved_output


@dataclass(frozen=True)
class Fitted:
    """A request that fits, and its tokens as counted. `shortened` counts the tool results that a short text stands in
    for, `left_out` the messages that are not sent; with both 0, `request` is the one that was asked about."""

    request: CompletionRequest
    tokens: TokenSplit
    shortened: int = 0
    left_out: int = 0

    @property
    def input_tokens(self) -> int:
        """Tokens of what is sent, as counted here."""
        return self.tokens.input

    @property
    def reserved_output(self) -> int:
        """Tokens that are kept free for the reply."""
        return self.tokens.reserved_output


class WindowExceeded(Exception):
    """A request does not fit, whatever may be left out. The message has the tokens by source, and what to change.
    `tokens` is of what could not be left out."""

    def __init__(self, window: int, tokens: TokenSplit) -> None:
        super().__init__(
            f"the request needs {tokens.total} tokens and the model's window has {window}, although all that may be "
            f"left out of the conversation is left out: system {tokens.system}, conversation {tokens.conversation}, "
            f"tool results {tokens.tool_results}, tool schemas {tokens.tool_schemas}, "
            f"output schema {tokens.output_schema}, reserved output {tokens.reserved_output}; "
            f"{_advice(tokens)}, or take a model with a larger window"
        )
        self.window = window
        self.tokens = tokens


def fit(request: CompletionRequest, budget: ContextBudget, count: Count, window: int | None = None) -> Fitted:
    """The request as it fits into `budget.window`, else `window` (tokens; None for both: nothing is reduced, only
    counted). See `activities.reduction` for what gives way and when; system text and schemas never do.

    `request.messages` is a legal conversation, and so is what is left of it; it begins with a user message where the
    original did. The calls and blocks of a turn stay or go with it. Takes linear time, and counts each message once.
    Raises `WindowExceeded`, and `CountFailed` where `count` is an app's.
    """
    fixed = TokenSplit(
        system=text_tokens(request.instructions, count),
        tool_schemas=sum(tool_tokens(tool, count) for tool in request.tools),
        output_schema=0 if request.output_schema is None else schema_tokens(request.output_schema, count),
        reserved_output=budget.reserved_output or request.settings.max_output_tokens or RESERVED_OUTPUT,
    )
    messages = request.messages
    sizes = [message_tokens(message, count) for message in messages]
    window = window if budget.window is None else budget.window
    if window is None or fixed.total + sum(sizes) <= window:
        return Fitted(request, _with_messages(fixed, _Kept(list(messages), sizes)))
    kept = _reduced(request, sizes, budget, window - fixed.total, count)
    tokens = _with_messages(fixed, kept)
    if tokens.total > window:
        raise WindowExceeded(window, tokens)
    return Fitted(replace(request, messages=tuple(kept.messages)), tokens, kept.shortened, kept.left_out)


@dataclass
class _Kept:
    """Messages to send with the tokens of each, and how many results and messages gave way."""

    messages: list[Message] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    shortened: int = 0
    left_out: int = 0

    def insert(self, position: int, message: Message, size: int) -> None:
        self.messages.insert(position, message)
        self.sizes.insert(position, size)


def _reduced(request: CompletionRequest, sizes: Sequence[int], budget: ContextBudget, room: int, count: Count) -> _Kept:
    """The conversation within so many tokens, or as near to it as may be."""
    messages = request.messages
    shorter = _Shorter(messages, sizes, {tool.name: tool for tool in request.tools}, count)
    marker = message_tokens(LEFT_OUT, count)
    groups = _groups(messages)
    units = [shorter.unit(group) for group in groups]
    reduced = reduction(units, room, marker, budget.recent_messages, budget.recent_exchanges)
    kept = _Kept()
    first_gap = None
    for index, group in enumerate(groups):
        if index in reduced.left_out:
            first_gap = len(kept.messages) if first_gap is None else first_gap
            kept.left_out += len(group)
            continue
        for position in group:
            short = shorter.results.get(position) if index in reduced.shortened else None
            message, size = short or (messages[position], sizes[position])
            kept.shortened += short is not None
            kept.messages.append(message)
            kept.sizes.append(size)
    if first_gap is not None:
        # Not every API takes a conversation that begins with the assistant.
        kept.insert(first_gap if kept.messages[0].role == "user" else 0, LEFT_OUT, marker)
    return kept


class _Shorter:
    """What results would be with a short text in their place: `results` has those that would be smaller, with their
    tokens, by position."""

    def __init__(
        self, messages: Sequence[Message], sizes: Sequence[int], tools: Mapping[str, ToolContract], count: Count
    ) -> None:
        self._messages = messages
        self._sizes = sizes
        self.results: dict[int, tuple[Message, int]] = {}
        self._asked = False
        calls: dict[str, ToolCall] = {}
        for position, message in enumerate(messages):
            if message.role != "tool":
                calls = {call.call_id: call for call in message.tool_calls}
                continue
            call = calls.get(message.call_id or "")
            short = _short_result(message, call, tools.get(call.tool) if call else None)
            tokens = message_tokens(short, count)
            if tokens < sizes[position]:
                self.results[position] = short, tokens

    def unit(self, group: range) -> Unit:
        """The size of these messages, as one unit. Asked for one after the other."""
        first = self._messages[group.start]
        size = sum(self._sizes[position] for position in group)
        saved = sum(self._sizes[each] - self.results[each][1] for each in group if each in self.results)
        if any(self._messages[position].role == "tool" for position in group):
            return Unit("exchange", size, size - saved)
        if first.role == "assistant":
            return Unit("answer", size, size)
        # There is nothing to correct before something was asked: then it is the caller who speaks like that.
        hint, self._asked = self._asked and is_hint(first), True
        return Unit("hint" if hint else "request", size, size)


def _groups(messages: Sequence[Message]) -> list[range]:
    """The positions of what stays together: a user's message, or a turn of the assistant with all its results. A turn
    that its API paused is several messages."""
    roles = [message.role for message in messages]
    together = {("assistant", "assistant"), ("assistant", "tool"), ("tool", "tool")}
    starts = [index for index in range(len(roles)) if index == 0 or (roles[index - 1], roles[index]) not in together]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(messages)], strict=True)]


def _short_result(result: Message, call: ToolCall | None, contract: ToolContract | None) -> Message:
    """What stands in for an old result. A call that may have changed something must not be made again for its words."""
    size = len(result.text.encode(errors="replace"))
    name = "the tool" if call is None else call.tool
    if contract is not None and contract.repeatable and not contract.has_effect:
        again = f"Call {name} again if you need them."
    else:
        again = f"Do not call {name} again only to read them."
    state = "succeeded" if result.ok else "failed"
    text = f"[This call {state}. The {size} bytes that it returned were left out, as they are too old to fit. {again}]"
    return result.model_copy(update={"text": text})


def _with_messages(fixed: TokenSplit, kept: _Kept) -> TokenSplit:
    pairs = zip(kept.messages, kept.sizes, strict=True)
    results = sum(size for message, size in pairs if message.role == "tool")
    return replace(fixed, conversation=sum(kept.sizes) - results, tool_results=results)


def _advice(tokens: TokenSplit) -> str:
    """What to change about the source that needs most."""
    advice = {
        "shorten the agent's instructions": tokens.system,
        "send a shorter prompt or lower context.recent_messages": tokens.conversation,
        "lower tool_output.max_tokens or context.recent_exchanges": tokens.tool_results,
        "give the agent fewer tools or shorter schemas": tokens.tool_schemas,
        "make output_schema smaller": tokens.output_schema,
        "lower context.reserved_output or settings.max_output_tokens": tokens.reserved_output,
    }
    return max(advice, key=lambda change: advice[change])
