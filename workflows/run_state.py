"""All that one run knows, what it shows of it, and what it takes along when it continues as new."""

from temporalio import workflow

from contracts.agents import AgentSpec
from contracts.context import ExecutionContext
from contracts.messages import Usage
from contracts.runs import AgentRunInput, AgentRunResult, AgentRunState, RunError, RunOptions, RunStatus
from contracts.text import cut
from workflows.approval_gate import ApprovalGate
from workflows.carry import Carry
from workflows.effects import EffectLedger
from workflows.failures import RunFailed
from workflows.journal import Journal
from workflows.limits import Limits
from workflows.tool_results import ToolResults
from workflows.transcript import Transcript

RESULT_TEXT_MAX_BYTES = 262_144
# The latest effects that state and result show.
SHOWN_EFFECTS = 1_000


class RunState:
    """The state of one run. `agent` and `limits` are there once the agent is loaded."""

    def __init__(self) -> None:
        self.status: RunStatus = "created"
        self.context = ExecutionContext()
        self.options = RunOptions()
        self.journal = Journal()
        self.transcript = Transcript()
        self.approvals = ApprovalGate(self.journal)
        self.effects = EffectLedger(self.journal)
        self.results = ToolResults()
        self.usage = Usage()
        self.next_call = 1
        self.unknown_tools = 0
        self.text = ""
        self.finish_reason: str | None = None
        self.error: RunError | None = None
        self.previous_run_id: str | None = None
        self._loaded: tuple[AgentSpec, Limits] | None = None

    @property
    def agent(self) -> AgentSpec:
        """The frozen agent."""
        return self._require_loaded()[0]

    @property
    def limits(self) -> Limits:
        """What is spent of the agent's limits."""
        return self._require_loaded()[1]

    @property
    def is_loaded(self) -> bool:
        """Whether the agent is known yet."""
        return self._loaded is not None

    def load(self, agent: AgentSpec, options: RunOptions, rounds: int = 0, tool_calls: int = 0) -> None:
        """Fix what this run may do, for good."""
        self.options = options
        self._loaded = (agent, Limits(agent, options, rounds, tool_calls))

    def view(self) -> AgentRunState:
        """Answer of the query `state`."""
        return AgentRunState(
            status=self.status,
            revision=self.journal.sequence,
            round=self.limits.rounds if self.is_loaded else 0,
            agent=self.agent.name if self.is_loaded else None,
            pending_approvals=self.approvals.pending,
            usage=self.usage,
            limits=self.limits.uses() if self.is_loaded else {},
            effects=self.effects.records[-SHOWN_EFFECTS:],
            last_sequence=self.journal.sequence,
            error=self.error,
            previous_run_id=self.previous_run_id,
        )

    def result(self) -> AgentRunResult:
        """What the run ends with, bounded in total."""
        info = workflow.info()
        return AgentRunResult(
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            status=self.status,
            text=cut(self.text, RESULT_TEXT_MAX_BYTES),
            finish_reason=self.finish_reason,
            rounds=self.limits.rounds if self.is_loaded else 0,
            tool_results=self.results.records,
            tool_results_omitted=self.results.omitted,
            usage=self.usage,
            effects=self.effects.records[-SHOWN_EFFECTS:],
            last_sequence=self.journal.sequence,
            error=self.error,
        )

    def carry(self) -> Carry:
        """The state to continue with."""
        return Carry(
            agent=self.agent,
            context=self.context,
            options=self.options,
            transcript=self.transcript.messages,
            events=self.journal.latest(),
            sequence=self.journal.sequence,
            rounds=self.limits.rounds,
            tool_calls=self.limits.tool_calls,
            next_call=self.next_call,
            unknown_tools=self.unknown_tools,
            usage=self.usage,
            effects=self.effects.records,
            tool_results=self.results.records,
            tool_results_omitted=self.results.omitted,
            previous_run_id=workflow.info().run_id,
        )

    def resume(self, run_input: AgentRunInput) -> None:
        """Become what the previous execution of this chain carried here."""
        if run_input.carried is None or workflow.info().continued_run_id is None:
            raise RunFailed("InvalidInput", "carried is written by a run for its own continuation: leave it out")
        carry = Carry.unpack(run_input.carried)
        self.context = carry.context
        self.journal.resume(carry.events, carry.sequence)
        self.transcript = Transcript(carry.transcript)
        self.effects = EffectLedger(self.journal, carry.effects)
        self.results = ToolResults(carry.tool_results, carry.tool_results_omitted)
        self.usage = carry.usage
        self.next_call = carry.next_call
        self.unknown_tools = carry.unknown_tools
        self.previous_run_id = carry.previous_run_id
        self.load(carry.agent, carry.options, carry.rounds, carry.tool_calls)
        self.journal.record("continued_as_new", previous_run_id=carry.previous_run_id)

    def _require_loaded(self) -> tuple[AgentSpec, Limits]:
        if self._loaded is None:
            raise RunFailed("InternalError", "the agent is not loaded yet")
        return self._loaded
