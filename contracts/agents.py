"""What an agent is: model, instructions, tools, limits."""

from typing import Literal, Self

from pydantic import Field, model_validator

from contracts.canonical import digest
from contracts.policies import OutputLimits
from contracts.records import Record
from contracts.tools import NAME_PATTERN, ToolContract

OnRefusal = Literal["tell_model", "fail_run"]


class AgentSpec(Record):
    """An agent. Write one in a module, list `@tool` functions in `tools`, and serve it with `worker.py --app`.

    `model` is `<provider>:<name>`, for example `openai:gpt-4.1-mini`. The whole spec, tool contracts included, is
    frozen into a run's history at its start: a redeploy cannot change what a running agent may do.

    `max_rounds` bounds the replies that ask for tools, `max_tool_calls` the calls in them; a run that would pass one
    fails as MaxRoundsExceeded or MaxToolCallsExceeded. `approval_expires_seconds` is how long a call waits for a
    decision. `tool_output` is how much of each result the model reads.
    """

    name: str = Field(pattern=NAME_PATTERN)
    instructions: str = Field(min_length=1, max_length=262_144)
    model: str = Field(pattern=r"^[a-z0-9_]+:\S.*$", max_length=500)
    tools: tuple[ToolContract, ...] = ()
    max_rounds: int = Field(default=20, ge=0, le=100_000)
    max_tool_calls: int = Field(default=50, ge=0, le=1_000_000)
    approval_expires_seconds: int = Field(default=604_800, ge=1, le=31_536_000)
    tool_output: OutputLimits = OutputLimits()
    on_approval_denied: OnRefusal = "tell_model"
    on_approval_expired: OnRefusal = "tell_model"

    @model_validator(mode="after")
    def _tool_names_are_unique(self) -> Self:
        names = [tool.name for tool in self.tools]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two tools are named {name!r}")
        return self

    def tool(self, name: str) -> ToolContract | None:
        """The contract of the tool with this name, or None."""
        return next((tool for tool in self.tools if tool.name == name), None)

    @property
    def digest(self) -> str:
        """Names this spec, tool contracts included."""
        return digest(self.model_dump(mode="json"))
