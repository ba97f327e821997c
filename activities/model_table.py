"""What is known of models: their windows and prices, from a file that an operator may replace."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from contracts.agents import AgentSpec
from contracts.models import ContextBudget, ModelFacts, ModelName, Price
from contracts.records import describe

# Beside this file, to the best of our knowledge. Prices change: check them, or replace the file, where a budget counts.
BUILT_IN = Path(__file__).with_name("models.json")

# A dated release of a model, which costs what the model does: gpt-4.1-2025-04-14, claude-haiku-4-5-20251001.
_DATE = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8})$")


class ModelTableError(ValueError):
    """Why a table of models, or an agent with it, cannot be used, in one line."""


class _Price(Price):
    # A misspelt field would be a price of nothing.
    model_config = ConfigDict(extra="forbid")


class _Facts(ModelFacts):
    model_config = ConfigDict(extra="forbid")

    price: _Price | None = None


_FILE = TypeAdapter(dict[ModelName, _Facts])


class ModelTable:
    """Facts by model, the model as an agent names it: `<provider>:<name>`."""

    def __init__(self, facts: Mapping[str, ModelFacts]) -> None:
        self._facts = dict(facts)

    @classmethod
    def load(cls, path: Path = BUILT_IN) -> Self:
        """The table in a JSON file: by model, `context_window` in tokens and `price` in US dollars for a million
        tokens, as `ModelFacts` and `Price` have them. Raises `ModelTableError` with the path and the field."""
        try:
            read = _FILE.validate_json(path.read_bytes(), strict=True)
        except OSError as error:
            raise ModelTableError(f"table of models {path}: {error.strerror}") from None
        except ValidationError as error:
            raise ModelTableError(f"table of models {path}: {describe(error)}") from None
        return cls({model: ModelFacts.model_validate(facts.model_dump()) for model, facts in read.items()})

    def facts(self, model: str) -> ModelFacts:
        """What is known of a model: of this very name, else of the name without the date at its end, else nothing."""
        return self._facts.get(model) or self._facts.get(_DATE.sub("", model)) or ModelFacts()

    def completed(self, agent: AgentSpec) -> AgentSpec:
        """The agent with a price for each of its models and a window, where it says none itself and the table does.

        The window is the first model's: a fallback with a smaller one is not to cost every run a part of its
        conversation, but only those that go on with it. Raises
        `ModelTableError` where the agent reserves more output than that window holds.
        """
        known = {model: self.facts(model).price for model in (agent.model, *agent.fallback_models)}
        prices = {model: price for model, price in known.items() if price is not None} | agent.prices
        context, window = agent.context, self.facts(agent.model).context_window
        if context.window is None and window is not None:
            try:
                # Checked anew: what is reserved has to fit.
                context = ContextBudget.model_validate({**context.model_dump(), "window": window})
            except ValidationError as error:
                said = f"{describe(error)}; {agent.model} has {window} tokens"
                raise ModelTableError(f"agent {agent.name!r}: {said}") from None
        return agent.model_copy(update={"prices": prices, "context": context})
