"""From what a run asks for to the request that its model is sent: the agent's, within its window and its budgets."""

import asyncio
from dataclasses import dataclass, replace
from typing import TypeGuard

from pydantic import ValidationError

from activities.hook_calls import HookCalls
from activities.model_attempt import final
from activities.model_table import ModelTable
from activities.providers.interface import CompletionRequest
from activities.providers.legal import legal
from activities.token_counts import Count, CountFailed, TokenCounter, counter_for
from activities.window import Fitted, WindowExceeded, fit
from contracts.activities import ModelRequest
from contracts.agents import AgentSpec
from contracts.hooks import WANTS_CONTEXT
from contracts.messages import Message, Usage
from contracts.models import OUTPUT_TOKENS_MAX, TOKENS_PER_PRICE, TOOL_CHOICES, ContextBudget, ModelSettings
from contracts.records import describe
from contracts.tools import ToolContract

# How long a reply may be, in tokens, where a budget has to hold and the agent says nothing. More than some models can
# write at all would be refused by their APIs.
BOUNDED_REPLY = 8_192


@dataclass(frozen=True)
class PreparedRequest:
    """What to send, and about how many tokens it has."""

    request: CompletionRequest
    input_tokens: int
    count: Count


class Requests:
    """Prepares model calls with the hooks and the token counters of the served applications, and what is known of
    models."""

    def __init__(self, hooks: HookCalls, counters: tuple[TokenCounter, ...], models: ModelTable) -> None:
        self._hooks = hooks
        self._counters = counters
        self._models = models

    async def prepare(
        self, asked: ModelRequest, agent: AgentSpec, messages: tuple[Message, ...], billed: Usage
    ) -> PreparedRequest:
        """The request, legal and bounded. `billed` is what earlier attempts of this call have used already.

        Raises `ApplicationError`, none of them retryable but for a hook that raised: ModelRefused by a hook,
        ContextWindowExceeded, TokenBudgetExceeded, CostBudgetExceeded.
        """
        model = asked.model or agent.model
        request = CompletionRequest(
            model=model.partition(":")[2],
            instructions=agent.instructions,
            messages=legal(_own_opaque(message, model) for message in messages),
            tools=agent.tools,
            settings=_settings_of_round(agent.settings, asked.round),
            output_schema=agent.output_schema,
            web_search=agent.web_search,
        )
        if asked.context is not None:
            answer = await self._hooks.answer(agent.name, WANTS_CONTEXT, request, asked.context)
            request = _prepared(answer, request, agent, model)
        count = counter_for(model, self._counters)
        # A long conversation, or an app's own counter, takes its time: this worker's other runs must not wait for it.
        fitted = await asyncio.to_thread(_fitted, request, self._window(agent, model), count)
        settings = within_budgets(fitted, asked, agent, model, billed)
        return PreparedRequest(replace(fitted.request, settings=settings), fitted.input_tokens, count)

    def _window(self, agent: AgentSpec, model: str) -> ContextBudget:
        """The agent's window, which is its first model's; the smaller one of a model that takes its place."""
        own = None if model == agent.model else self._models.facts(model).context_window
        windows = [window for window in (agent.context.window, own) if window is not None]
        return agent.context.model_copy(update={"window": min(windows, default=None)})


def _prepared(answer: object, request: CompletionRequest, agent: AgentSpec, model: str) -> CompletionRequest:
    """The request that a hook made of this one. Raises `ApplicationError`, not retryable: ModelRefused where the hook
    refuses, InternalError where it returned no request, or one that it may not make."""
    hook = f"prepare_model_request of agent {agent.name}"
    if answer is None:
        raise final("ModelRefused", f"{hook} refused the request")
    if not _is_request(answer):
        raise final("InternalError", f"{hook} returned no CompletionRequest, or one with parts of other types")
    changed = (answer.model, answer.output_schema) != (request.model, request.output_schema)
    if changed or (answer.web_search and not request.web_search) or any(t not in request.tools for t in answer.tools):
        raise final("InternalError", f"{hook} changed what it may not: it may take tools and the web search away")
    messages = legal(_own_opaque(message, model) for message in answer.messages)
    if not messages:
        raise final("InternalError", f"{hook} left no message in the request")
    try:
        settings = ModelSettings.model_validate(dict(answer.settings))
    except ValidationError as error:
        raise final("InternalError", f"{hook} returned settings that no request may have: {describe(error)}") from None
    if settings.tool_choice not in (*TOOL_CHOICES, *(tool.name for tool in answer.tools)):
        # The hook took away what the agent wants called first: no API takes the name of a tool that is not there.
        settings = settings.model_copy(update={"tool_choice": "auto"})
    return replace(answer, messages=messages, settings=settings)


def _is_request(answer: object) -> TypeGuard[CompletionRequest]:
    """Whether a hook returned what it says that it returns: nobody has checked its types."""
    return (
        isinstance(answer, CompletionRequest)
        and isinstance(answer.instructions, str)
        and isinstance(answer.settings, ModelSettings)
        and _all_are(answer.messages, Message)
        and _all_are(answer.tools, ToolContract)
    )


def _all_are(items: object, kind: type) -> bool:
    return isinstance(items, list | tuple) and all(isinstance(item, kind) for item in items)


def _own_opaque(message: Message, model: str) -> Message:
    """The message with opaque blocks only if this very model gave them: no other could read them."""
    blocks = (part for part in message.opaque if isinstance(part, dict) and "block" in part)
    if all(block.get("from") == model for block in blocks):
        return message
    return message.model_copy(update={"opaque": ()})


def _settings_of_round(settings: ModelSettings, round: int) -> ModelSettings:
    """A choice of tools that forces a call holds once: a model that must call a tool never answers."""
    if round == 0 or settings.tool_choice in ("auto", "none"):
        return settings
    return settings.model_copy(update={"tool_choice": "auto"})


def _fitted(request: CompletionRequest, budget: ContextBudget, count: Count) -> Fitted:
    try:
        return fit(request, budget, count)
    except WindowExceeded as error:
        raise final("ContextWindowExceeded", str(error)) from None
    except CountFailed as error:
        raise final("InternalError", str(error)) from None


def within_budgets(fitted: Fitted, asked: ModelRequest, agent: AgentSpec, model: str, billed: Usage) -> ModelSettings:
    """The settings with an output that cannot pass what is left of the budgets. Raises `ApplicationError` where what is
    left does not cover the request and the output that is kept free for its reply: a call that would pass a budget is
    not made."""
    rooms = []
    if asked.tokens_left is not None:
        left = asked.tokens_left - billed.total_tokens
        rooms.append(left - fitted.input_tokens)
        if rooms[-1] < fitted.reserved_output:
            raise final(
                "TokenBudgetExceeded",
                f"the next model call needs about {fitted.input_tokens} tokens of input and {fitted.reserved_output} "
                f"kept free for its reply, and max_total_tokens leaves {max(0, left)}",
            )
    price = agent.prices.get(model)
    if asked.cost_left_usd is not None and price is not None:
        left_usd = asked.cost_left_usd - price.cost(billed).total
        dearest = max(price.output, price.reasoning or 0.0)
        # All of the input may be written to the API's cache, which costs more than reading it.
        dearest_input = max(price.input, price.cache_write or 0.0)
        input_usd = fitted.input_tokens * dearest_input / TOKENS_PER_PRICE
        needed = input_usd + fitted.reserved_output * dearest / TOKENS_PER_PRICE
        if left_usd < needed:
            raise final(
                "CostBudgetExceeded",
                f"the next model call may cost {needed:.6f} USD, and max_cost_usd leaves {max(0.0, left_usd):.6f}",
            )
        if dearest:
            room = (left_usd - input_usd) * TOKENS_PER_PRICE / dearest
            # Rounding must not take away what was just found to fit; and a low price gives room without end.
            rooms.append(max(fitted.reserved_output, int(min(room, OUTPUT_TOKENS_MAX))))
    settings = fitted.request.settings
    if not rooms:
        return settings
    bound = min(settings.max_output_tokens or BOUNDED_REPLY, *rooms)
    return settings.model_copy(update={"max_output_tokens": bound})
