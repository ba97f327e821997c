"""What is spent and what is left. Counted in carried state: nothing resets it."""

from collections.abc import Mapping
from types import MappingProxyType

from contracts.agents import AgentSpec
from contracts.runs import LimitUse, RunOptions
from workflows.failures import RunFailed


class Limits:
    """Rounds, tool calls, and failures by tool of one run. A round is one model reply that asked for tools."""

    def __init__(
        self,
        agent: AgentSpec,
        options: RunOptions,
        rounds: int = 0,
        tool_calls: int = 0,
        failures: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.rounds = rounds
        self.tool_calls = tool_calls
        self.failures = dict(failures)
        self._max_failures = agent.max_failures_per_tool
        self._max_rounds = agent.max_rounds if options.max_rounds is None else options.max_rounds
        self._max_tool_calls = agent.max_tool_calls if options.max_tool_calls is None else options.max_tool_calls
        self._rounds_source = f"max_rounds of {_source(agent, options.max_rounds)}"
        self._calls_source = f"max_tool_calls of {_source(agent, options.max_tool_calls)}"

    def open_round(self, calls: int) -> None:
        """Spend one round and its calls, or none of them. Invalid and denied calls count too."""
        if self.rounds >= self._max_rounds:
            raise RunFailed(
                "MaxRoundsExceeded",
                f"the model asked for tools again after {self.rounds} of {self._max_rounds} rounds; raise "
                f"{self._rounds_source} if the work needs more",
            )
        if self.tool_calls + calls > self._max_tool_calls:
            raise RunFailed(
                "MaxToolCallsExceeded",
                f"{self.tool_calls} of {self._max_tool_calls} tool calls are used, and the model asked for {calls}; "
                f"none of them ran; raise {self._calls_source} if the work needs more",
            )
        self.rounds += 1
        self.tool_calls += calls

    def count_failure(self, tool: str) -> None:
        """Count a call of this tool that failed."""
        self.failures[tool] = self.failures.get(tool, 0) + 1

    def check_failures(self) -> None:
        """Raises `RunFailed` where a tool has failed more often than the agent allows."""
        for tool, failures in self.failures.items():
            if self._max_failures is not None and failures > self._max_failures:
                raise RunFailed(
                    "ToolFailed",
                    f"{tool} has failed {failures} times, and agent's max_failures_per_tool is {self._max_failures}",
                )

    def uses(self) -> dict[str, LimitUse]:
        """For the query `state`."""
        return {
            "rounds": LimitUse(used=self.rounds, max=self._max_rounds),
            "tool_calls": LimitUse(used=self.tool_calls, max=self._max_tool_calls),
        }


def _source(agent: AgentSpec, chosen: int | None) -> str:
    """Where a limit comes from, the agent named either way."""
    return f"agent {agent.name}" if chosen is None else f"the options of this run of agent {agent.name}"
