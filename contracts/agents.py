"""What an agent is: model, instructions, tools, limits."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from contracts.canonical import digest
from contracts.models import TOOL_CHOICES, ContextBudget, ModelName, ModelSettings, Price
from contracts.policies import OutputLimits
from contracts.records import AuthoredRecord
from contracts.tools import NAME_PATTERN, ToolContract

OnRefusal = Literal["tell_model", "fail_run"]
# How a run may end without having completed.
Unfinished = Literal["failed", "cancelled", "timed_out"]


# Left out of the JSON while they have their default.
_CAME_LATER = frozenset(
    {
        "fallback_models",
        "settings",
        "context",
        "output_schema",
        "web_search",
        "prices",
        "max_total_tokens",
        "max_cost_usd",
        "deadline_seconds",
        "max_failures_per_tool",
        "stop_on_tools",
        "compensate_on",
    }
)


class AgentSpec(AuthoredRecord):
    """An agent. Write one in a module, list `@tool` functions in `tools`, and serve it with `worker.py --app`.

    `model` is `<provider>:<name>`, for example `openai:gpt-4.1-mini`. The whole spec, tool contracts included, is
    frozen into a run's history at its start: a redeploy cannot change what a running agent may do.

    `max_rounds` bounds the replies that ask for tools, `max_tool_calls` the calls in them; a run that would pass one
    fails as MaxRoundsExceeded or MaxToolCallsExceeded. `approval_expires_seconds` is how long a call waits for a
    decision. `tool_output` is how much of each result the model reads.

    `fallback_models` are gone on with, in order and for the rest of the run, when a model is not available. `settings`
    and `context` say how models are asked. The final answer must match `output_schema`, if there is one. `web_search`
    allows the model its API's own search. A run stops, as TokenBudgetExceeded or CostBudgetExceeded, before the call
    that would pass `max_total_tokens` (input and output, over all calls) or `max_cost_usd`. `prices` are by model; what
    is missing comes from the worker's table of models.

    A run ends as timed_out `deadline_seconds` after its start, and fails as ToolFailed when one of its tools has failed
    more than `max_failures_per_tool` times (None: no such bound). It completes before the calls of a reply that calls
    one of `stop_on_tools`. When it ends as `compensate_on` says, its effects are undone, the latest first, as far as
    their tools' contracts have compensation.
    """

    name: str = Field(pattern=NAME_PATTERN)
    instructions: str = Field(min_length=1, max_length=262_144)
    model: ModelName
    tools: tuple[ToolContract, ...] = ()
    max_rounds: int = Field(default=20, ge=0, le=100_000)
    max_tool_calls: int = Field(default=50, ge=0, le=1_000_000)
    approval_expires_seconds: int = Field(default=604_800, ge=1, le=31_536_000)
    tool_output: OutputLimits = OutputLimits()
    on_approval_denied: OnRefusal = "tell_model"
    on_approval_expired: OnRefusal = "tell_model"
    fallback_models: tuple[ModelName, ...] = Field(default=(), max_length=10)
    settings: ModelSettings = ModelSettings()
    context: ContextBudget = ContextBudget()
    output_schema: dict[str, JsonValue] | None = None
    web_search: bool = False
    prices: dict[str, Price] = {}
    max_total_tokens: int | None = Field(default=None, ge=0)
    max_cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    deadline_seconds: int = Field(default=86_400, ge=1, le=31_536_000)
    max_failures_per_tool: int | None = Field(default=None, ge=0)
    stop_on_tools: tuple[str, ...] = ()
    compensate_on: tuple[Unfinished, ...] = ()

    @model_serializer(mode="wrap")
    def _without_what_came_later(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # The digest names the spec, also to workers that do not know these fields yet.
        fields = type(self).model_fields
        return {
            name: value
            for name, value in serialize(self).items()
            if name not in _CAME_LATER or getattr(self, name) != fields[name].default
        }

    @field_validator("tools", mode="before")
    @classmethod
    def _functions_are_decorated(cls, tools: object) -> object:
        for tool in tools if isinstance(tools, list | tuple) else ():
            if callable(tool) and not isinstance(tool, ToolContract):
                raise ValueError(f"{getattr(tool, '__name__', 'one')} is no tool: put @tool(side_effect=...) above it")
        return tools

    @model_validator(mode="after")
    def _tool_names_are_unique(self) -> Self:
        names = [tool.name for tool in self.tools]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two tools are named {name!r}")
        return self

    @model_validator(mode="after")
    def _the_chosen_tool_is_there(self) -> Self:
        chosen = self.settings.tool_choice
        if chosen not in TOOL_CHOICES and self.tool(chosen) is None:
            raise ValueError(f"settings.tool_choice is {chosen!r}, which is no tool of this agent")
        return self

    @model_validator(mode="after")
    def _the_tools_to_stop_on_are_there(self) -> Self:
        for name in self.stop_on_tools:
            if self.tool(name) is None:
                raise ValueError(f"stop_on_tools names {name!r}, which is no tool of this agent")
        return self

    def tool(self, name: str) -> ToolContract | None:
        """The contract of the tool with this name, or None."""
        return next((tool for tool in self.tools if tool.name == name), None)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The models, fallbacks included, whose price is not known."""
        return tuple(model for model in (self.model, *self.fallback_models) if model not in self.prices)

    @property
    def digest(self) -> str:
        """Names this spec, tool contracts included."""
        return digest(self.model_dump(mode="json"))
