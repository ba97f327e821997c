"""What an agent may say of its models: settings of a request, prices, and how much of a window a request may fill."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from contracts.messages import Usage
from contracts.records import AuthoredRecord, Record, SparseRecord

MODEL_FORM = "write <provider>:<name>, the provider in small letters, for example openai:gpt-4.1-mini"
_MODEL = re.compile(r"[a-z0-9_]+:\S.*")


def _well_formed(model: str) -> str:
    if not _MODEL.fullmatch(model):
        raise PydanticCustomError("model_name", MODEL_FORM)
    return model


ModelName = Annotated[str, Field(max_length=500), AfterValidator(_well_formed)]

TOKENS_PER_PRICE = 1_000_000
# More than any reply has.
OUTPUT_TOKENS_MAX = 10_000_000
# A thousand dollars for a token. There is a bound because costs must stay finite numbers.
PRICE_MAX = 1e9
# What `tool_choice` may be besides the name of a tool.
TOOL_CHOICES = ("auto", "none", "required")
# Output that is kept free in a window, in tokens, where the agent does not bound its replies.
RESERVED_OUTPUT = 1_024


class ModelSettings(AuthoredRecord, SparseRecord):
    """Plain settings of every request. None means that the request does not name it, so that the API's default holds.

    `tool_choice` is `auto`, `none`, `required` or the name of a tool; the last two hold until the first round is over,
    since a model that must call a tool never answers. `max_output_tokens` bounds one reply. `reasoning_effort` is the
    API's own word. `native_output` off asks for an answer by `output_schema` in words, for servers that do not take a
    schema. What an API does not have is left out of its requests: see docs/models.md.
    """

    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    max_output_tokens: int | None = Field(default=None, ge=1, le=OUTPUT_TOKENS_MAX)
    stop: tuple[Annotated[str, Field(min_length=1, max_length=1_000)], ...] = Field(default=(), max_length=16)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    tool_choice: str = Field(default="auto", pattern=r"^[a-z0-9_-]{1,64}$")
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = Field(default=None, min_length=1, max_length=32, pattern=r"^[a-z0-9_-]+$")
    native_output: bool = True


_Dollars = Annotated[float, Field(ge=0, le=PRICE_MAX, allow_inf_nan=False)]


class Price(AuthoredRecord, SparseRecord):
    """US dollars for a million tokens. Cached input, cache writes and reasoning cost what input and output cost where
    they have no price of their own."""

    input: _Dollars
    output: _Dollars
    cached_input: _Dollars | None = None
    cache_write: _Dollars | None = None
    reasoning: _Dollars | None = None

    def cost(self, usage: Usage) -> "Cost":
        """What these tokens cost. Cached and written tokens are a part of the input, reasoning is one of the output."""
        fresh = max(0, usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens)
        spoken = max(0, usage.output_tokens - usage.reasoning_tokens)
        read = usage.cached_input_tokens * _or(self.cached_input, self.input)
        written = usage.cache_write_tokens * _or(self.cache_write, self.input)
        return Cost(
            input=(fresh * self.input + written) / TOKENS_PER_PRICE,
            cached=read / TOKENS_PER_PRICE,
            output=spoken * self.output / TOKENS_PER_PRICE,
            reasoning=usage.reasoning_tokens * _or(self.reasoning, self.output) / TOKENS_PER_PRICE,
        )


class Cost(Record):
    """US dollars spent. `input` counts what was not cached, `output` what was no reasoning, and the four add up to
    `total`. `unpriced_tokens` counts tokens of models without a known price: the cost does not cover them."""

    currency: Literal["USD"] = "USD"
    input: float = 0.0
    cached: float = 0.0
    output: float = 0.0
    reasoning: float = 0.0
    total: float = 0.0
    unpriced_tokens: int = 0

    @model_validator(mode="before")
    @classmethod
    def _add_up(cls, value: object) -> object:
        if isinstance(value, dict) and "total" not in value:
            return {**value, "total": sum(value.get(part, 0.0) for part in ("input", "cached", "output", "reasoning"))}
        return value

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            input=self.input + other.input,
            cached=self.cached + other.cached,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            unpriced_tokens=self.unpriced_tokens + other.unpriced_tokens,
        )


class ContextBudget(AuthoredRecord):
    """How a request may fill the model's window, all in tokens. `window` None is what the worker's table of models says
    of the model; without either a request is not bounded.

    `reserved_output` is kept free for the reply (None: `max_output_tokens` of the settings, else 1,024). Of a
    conversation that does not fit, old tool results are shortened first and then the oldest exchanges are left out;
    the latest `recent_messages` and `recent_exchanges` (a reply that called tools, with its answers) always stay.
    """

    window: int | None = Field(default=None, ge=64, le=100_000_000)
    reserved_output: int | None = Field(default=None, ge=1, le=OUTPUT_TOKENS_MAX)
    recent_messages: int = Field(default=2, ge=1, le=1_000)
    recent_exchanges: int = Field(default=1, ge=0, le=1_000)

    @model_validator(mode="after")
    def _there_is_room(self) -> Self:
        if self.window is not None and self.reserved_output is not None and self.reserved_output >= self.window:
            raise ValueError("context.reserved_output leaves no room in context.window")
        return self


class ModelFacts(Record):
    """What is known of a model: its window in tokens, and its price."""

    context_window: int | None = Field(default=None, ge=64, le=100_000_000)
    price: Price | None = None


def no_price(model: str) -> str:
    """Says that this model has none, and where to put one."""
    return f"no price is known of {model}; add it to the agent's prices or to the worker's STEADYHAND_MODELS"


def _or(price: float | None, otherwise: float) -> float:
    return otherwise if price is None else price
