"""Small agents and tools that many tests use."""

from contracts.agents import AgentSpec
from contracts.tools import ToolContract


def scripted_agent(
    *tools: ToolContract, max_rounds: int = 20, max_tool_calls: int = 50, **settings: str | int
) -> AgentSpec:
    """An agent named `tester` that plays the script `main`."""
    return AgentSpec.model_validate(
        {
            "name": "tester",
            "instructions": "Test.",
            "model": "scripted:main",
            "tools": tools,
            "max_rounds": max_rounds,
            "max_tool_calls": max_tool_calls,
            **settings,
        }
    )


PROMPT = {"agent": "tester", "prompt": "Go."}
