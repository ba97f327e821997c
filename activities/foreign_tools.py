"""Outcomes from outside: of tools in another process or language, and of work that finished later."""

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.runs import HeldRuns
from activities.settling import from_outside, settle
from contracts.activities import ToolActivities
from contracts.outcomes import ToolOutcome
from contracts.tools import SettleRequest


class ForeignTools(ToolActivities):
    """Checks and projects what others answered, exactly as the worker's own outcomes are."""

    def __init__(self, runs: HeldRuns) -> None:
        self._runs = runs

    @activity.defn(name="settle_outcome")
    async def settle_outcome(self, request: SettleRequest) -> ToolOutcome:
        """By the contract that is frozen into the run, whatever this worker has."""
        agent = await self._runs.agent(request.agent_digest)
        contract = agent.tool(request.invocation.tool)
        if contract is None:
            reason = f"agent {agent.name} has no tool {request.invocation.tool}"
            raise ApplicationError(reason, type="InternalError", non_retryable=True)
        outcome = settle(contract, request.invocation, from_outside(contract, request.raw))
        # Theirs if they say so: which of Temporal's attempts it was, a run is not told.
        marks = {"tool_attempt": request.invocation.attempt, **outcome.metadata}
        return outcome.model_copy(update={"metadata": marks})
