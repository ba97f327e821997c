"""From what a run asks for to the request that its model is sent: the agent's, within its window and its budgets."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from temporalio.exceptions import ApplicationError

from activities.hooks import Hooks, called
from activities.model_attempt import final
from activities.model_table import ModelTable
from activities.providers.interface import CompletionRequest
from activities.providers.legal import legal
from activities.token_counts import Count, CountFailed, TokenCounter, counter_for
from activities.window import Fitted, WindowExceeded, fit
from contracts.activities import ModelRequest
from contracts.agents import AgentSpec
from contracts.messages import Message, Usage
from contracts.models import TOKENS_PER_PRICE, ContextBudget, ModelSettings

# How long a reply may be, in tokens, where a budget has to hold and the agent says nothing. More than some models can
# write at all would be refused by their APIs.
BOUNDED_REPLY = 8_192

log = logging.getLogger("steadyhand.hooks")


@dataclass(frozen=True)
class PreparedRequest:
    """What to send, and about how many tokens it has."""

    request: CompletionRequest
    input_tokens: int
    count: Count


class Requests:
    """Prepares model calls with the hooks and the token counters of the served applications, and what is known of
    models."""

    def __init__(self, hooks: Mapping[str, Hooks], counters: tuple[TokenCounter, ...], models: ModelTable) -> None:
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
        request = await self._hooked(request, asked, agent)
        count = counter_for(model, self._counters)
        # A long conversation, or an app's own counter, takes its time: this worker's other runs must not wait for it.
        fitted = await asyncio.to_thread(_fitted, request, self._window(agent, model), count)
        settings = _within_budgets(fitted, asked, agent, model, billed)
        return PreparedRequest(replace(fitted.request, settings=settings), fitted.input_tokens, count)

    def _window(self, agent: AgentSpec, model: str) -> ContextBudget:
        """The agent's window, which is its first model's; the smaller one of a model that takes its place."""
        own = None if model == agent.model else self._models.facts(model).context_window
        windows = [window for window in (agent.context.window, own) if window is not None]
        return agent.context.model_copy(update={"window": min(windows, default=None)})

    async def _hooked(self, request: CompletionRequest, asked: ModelRequest, agent: AgentSpec) -> CompletionRequest:
        hooks = self._hooks.get(agent.name)
        if hooks is None or hooks.prepare_model_request is None or asked.context is None:
            return request
        try:
            prepared = await called(hooks.prepare_model_request, request, asked.context)
        except Exception as error:
            # Nothing is paid yet, and what the hook asks may answer the next time.
            log.exception("prepare_model_request of agent %s raised", agent.name)
            reason = f"{type(error).__name__} in prepare_model_request of agent {agent.name}"
            raise ApplicationError(reason, type="InternalError") from None
        if prepared is None:
            raise final("ModelRefused", f"prepare_model_request of agent {agent.name} refused the request")
        allowed = all(tool in agent.tools for tool in prepared.tools)
        if not allowed or (prepared.model, prepared.output_schema) != (request.model, request.output_schema):
            reason = f"prepare_model_request of agent {agent.name} changed what it may not: it may take tools away"
            raise final("InternalError", reason)
        return replace(prepared, messages=legal(prepared.messages))


def _own_opaque(message: Message, model: str) -> Message:
    """The message with opaque blocks only if this very model gave them: no other could read them."""
    if all(not isinstance(part, dict) or part.get("from", model) == model for part in message.opaque):
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


def _within_budgets(fitted: Fitted, asked: ModelRequest, agent: AgentSpec, model: str, billed: Usage) -> ModelSettings:
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
        input_usd = price.cost(Usage(input_tokens=fitted.input_tokens)).total
        needed = input_usd + fitted.reserved_output * dearest / TOKENS_PER_PRICE
        if left_usd < needed:
            raise final(
                "CostBudgetExceeded",
                f"the next model call may cost {needed:.6f} USD, and max_cost_usd leaves {max(0.0, left_usd):.6f}",
            )
        if dearest:
            rooms.append(int((left_usd - input_usd) * TOKENS_PER_PRICE / dearest))
    settings = fitted.request.settings
    if not rooms:
        return settings
    bound = min(settings.max_output_tokens or BOUNDED_REPLY, *rooms)
    return settings.model_copy(update={"max_output_tokens": bound})
