"""R-14: which layer repeats what. A failure for the model is told once, a passing fault is Temporal's to repeat."""

import httpx
from temporalio.client import WorkflowHistory

from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import ToolError, tool
from contracts.policies import RetryRule
from contracts.tools import ToolInvocation
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, attempts, histories

QUICK = RetryRule(max_attempts=3, initial_interval=0.01, max_interval=0.02)


class Counted:
    """A model that asks for each tool in turn and then says so; it keeps what it was told."""

    def __init__(self, *tools: str) -> None:
        self._tools = tools
        self.asked = 0
        self.told: list[str] = []

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        self.told = [message.text for message in request.messages if message.role == "tool"]
        self.asked += 1
        if len(self.told) == len(self._tools):
            return Completion("Done.")
        return Completion("", (RawToolCall(self._tools[len(self.told)], "{}"),))


def most_attempts(history: WorkflowHistory) -> list[int]:
    """The most attempts that each scheduled activity may have; 0 stands for no limit."""
    return [
        event.activity_task_scheduled_event_attributes.retry_policy.maximum_attempts
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]


async def test_r14_each_failure_is_repeated_by_its_own_layer_and_none_without_end(harness: Harness) -> None:
    @tool(side_effect="read", retry=QUICK)
    def fetch() -> str:
        """Fetch a page that is not there."""
        raise ToolError("not_found", "HTTP 404")

    @tool(side_effect="read", retry=QUICK)
    def flaky(invocation: ToolInvocation) -> str:
        """Reach the server at the third attempt."""
        if invocation.attempt < 3:
            raise httpx.ConnectError("connection refused")
        return "ok"

    @tool(side_effect="read", retry=QUICK)
    def broken() -> str:
        """Never work."""
        raise ValueError("no such column")

    model = Counted("fetch", "flaky", "broken")
    agent = scripted_agent(fetch, flaky, broken).model_copy(update={"model": "counted:main"})
    async with harness.worker(agent, providers={"counted": model}):
        run = await harness.start(PROMPT)
        result = await run.result()
    (history,) = await histories(harness.client, run.id)
    assert [attempts(history, name) for name in ("fetch", "flaky", "broken")] == [[1], [3], [3]]
    # One model call a round and one for the end: no failure cost another one.
    assert (result.text, model.asked) == ("Done.", 4)
    assert '"message": "HTTP 404"' in model.told[0]
    assert model.told[1] == "ok"
    assert "ValueError" in model.told[2]
    assert "ConnectError" not in "".join(model.told)
    policies = most_attempts(history)
    assert len(policies) == 8
    assert all(1 <= most <= 10 for most in policies)
