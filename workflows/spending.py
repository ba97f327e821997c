"""What the models of a run have cost so far, and what is left of its budgets. Carried: nothing resets it."""

from contracts.agents import AgentSpec
from contracts.messages import Usage
from contracts.models import Cost
from contracts.runs import LimitUse, RunOptions


class Spending:
    """Tokens and dollars of one run, over every attempt that was billed. What an option does not bound the agent does,
    or nothing."""

    def __init__(self, agent: AgentSpec, options: RunOptions, usage: Usage, cost: Cost) -> None:
        self.usage = usage
        self.cost = cost
        self._prices = agent.prices
        self._max_tokens = agent.max_total_tokens if options.max_total_tokens is None else options.max_total_tokens
        self._max_cost = agent.max_cost_usd if options.max_cost_usd is None else options.max_cost_usd

    def add(self, model: str, usage: Usage) -> None:
        """Count what one model call billed."""
        self.usage += usage
        price = self._prices.get(model)
        self.cost += price.cost(usage) if price else Cost(unpriced_tokens=usage.total_tokens)

    @property
    def tokens_left(self) -> int | None:
        """What may still be used, None where there is no budget."""
        return None if self._max_tokens is None else max(0, self._max_tokens - self.usage.total_tokens)

    @property
    def cost_left(self) -> float | None:
        """US dollars that may still be spent, None where there is no budget."""
        return None if self._max_cost is None else max(0.0, self._max_cost - self.cost.total)

    def uses(self) -> dict[str, LimitUse]:
        """For the query `state`."""
        uses = {}
        if self._max_tokens is not None:
            uses["total_tokens"] = LimitUse(used=self.usage.total_tokens, max=self._max_tokens)
        if self._max_cost is not None:
            uses["cost_usd"] = LimitUse(used=self.cost.total, max=self._max_cost)
        return uses
