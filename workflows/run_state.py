"""All that one run knows, what it shows of it, and what it takes along when it continues as new."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType

from pydantic import JsonValue
from temporalio import workflow

from contracts.activities import BEHAVIOUR, HAS_A_DEADLINE, LoadedAgent, ModelReply
from contracts.agents import AgentSpec
from contracts.context import ExecutionContext
from contracts.events import EventType
from contracts.hooks import HookName
from contracts.messages import InvalidToolCall, Message, Usage
from contracts.models import Cost
from contracts.projection import audit, model_text
from contracts.runs import (
    AgentRunInput,
    RunError,
    RunOptions,
    RunStatus,
    Stop,
    ToolResultRecord,
)
from workflows.approval_gate import ApprovalGate
from workflows.carry import CARRY_RAW_MAX_BYTES, CarriedAnswer, Carry
from workflows.effects import EffectLedger
from workflows.endings import Ending
from workflows.failures import RunFailed
from workflows.identity import of_this_run
from workflows.inbox import Inbox
from workflows.journal import Journal
from workflows.limits import Limits
from workflows.spending import Spending
from workflows.tool_results import ToolResults
from workflows.tool_round import Answer
from workflows.transcript import Transcript

_FAILURES: Mapping[str, EventType] = MappingProxyType({"failed": "run_failed", "timed_out": "run_timed_out"})
# Calls that failed before their tool, or its schema, had a say.
_TURNED_AWAY = frozenset({"not_started", "stopped", "denied", "expired", "unknown_tool", "truncated_reply"})


class RunState:
    """The state of one run. `agent` and `limits` are there once the agent is loaded."""

    def __init__(self) -> None:
        self.status: RunStatus = "created"
        self.context = of_this_run(ExecutionContext())
        self.options = RunOptions()
        self.journal = Journal()
        self.transcript = Transcript()
        self.approvals = ApprovalGate(self.journal)
        self.effects = EffectLedger(self.journal)
        self.results = ToolResults()
        self.next_call = 1
        self.unknown_tools = 0
        # How many models have been asked to take another's place, and how often a model was asked.
        self.fallbacks = 0
        self.model_calls = 0
        self.hooks: tuple[HookName, ...] = ()
        self.search_attributes: tuple[str, ...] = ()
        self.agent_digest = ""
        self.text = ""
        self.output: JsonValue = None
        self.finish_reason: str | None = None
        self.error: RunError | None = None
        self.previous_run_id: str | None = None
        self.stop: Stop | None = None
        # What the update `cancel_run` said, once it was accepted.
        self.cancel_reason: str | None = None
        self.inbox = Inbox(self.journal)
        # What the code did that began this execution: see `BEHAVIOUR`.
        self.behaviour = 0
        self.started_at = workflow.info().workflow_start_time
        self.deadline: datetime | None = None
        # The reply whose round is not closed yet.
        self.open_reply: ModelReply | None = None
        # Those of its calls that an earlier execution has answered.
        self.carried_answers: tuple[CarriedAnswer, ...] = ()
        self.too_large_to_carry = False
        self._loaded: tuple[AgentSpec, Limits, Spending] | None = None

    @property
    def agent(self) -> AgentSpec:
        """The frozen agent."""
        return self._require_loaded()[0]

    @property
    def limits(self) -> Limits:
        """What is spent of the agent's limits."""
        return self._require_loaded()[1]

    @property
    def spending(self) -> Spending:
        """What the models have cost, and what is left of the budgets."""
        return self._require_loaded()[2]

    @property
    def models(self) -> tuple[str, ...]:
        """The agent's models, each once: the first is asked while it is there."""
        return tuple(dict.fromkeys((self.agent.model, *self.agent.fallback_models)))

    @property
    def model(self) -> str:
        """The model that is asked next."""
        return self.models[self.fallbacks]

    @property
    def is_loaded(self) -> bool:
        """Whether the agent is known yet."""
        return self._loaded is not None

    @property
    def compensate_on(self) -> frozenset[str]:
        """The ends after which effects are undone."""
        return frozenset((*self.agent.compensate_on, *self.options.compensate_on))

    def load(self, loaded: LoadedAgent, options: RunOptions) -> None:
        """Fix what this run may do, and until when, for good."""
        agent = loaded.spec
        self.hooks, self.search_attributes, self.behaviour = loaded.hooks, loaded.search_attributes, loaded.behaviour
        self._load(agent, Limits(agent, options), Spending(agent, options, Usage(), Cost()), options)
        if self.behaviour >= HAS_A_DEADLINE:
            own = self.started_at + timedelta(seconds=options.deadline_seconds or agent.deadline_seconds)
            callers = self.context.deadline_utc
            self.deadline = own if callers is None else min(own, callers)

    def _load(self, agent: AgentSpec, limits: Limits, spending: Spending, options: RunOptions) -> None:
        self.options = options
        self.agent_digest = agent.digest
        self._loaded = (agent, limits, spending)

    def say(self, reply: ModelReply) -> None:
        """Add a model's reply to the transcript, with its calls."""
        calls = tuple(call.as_call() if isinstance(call, InvalidToolCall) else call for call in reply.calls)
        self.text = reply.text or self.text
        self.transcript.append(Message(role="assistant", text=reply.text, tool_calls=calls, opaque=reply.opaque))

    def end(self, ending: Ending) -> None:
        """Nothing more happens in this run."""
        self.approvals.withdraw()
        self.status, self.error = ending.status, ending.error
        match ending:
            case Ending("completed"):
                stopped = self.stop.reason if self.stop else None
                self.journal.record("run_completed", rounds=self.limits.rounds, stop=stopped)
            case Ending("failed" | "timed_out", RunError() as error):
                self.journal.record(_FAILURES[ending.status], error=error.type, message=error.message)
            case _:
                self.journal.record("run_cancelled", reason=self.cancel_reason)

    def answer(self, answer: Answer) -> None:
        """Add an answer to the transcript, as the model reads it, and to the results."""
        call, outcome = answer.call, answer.outcome
        if not outcome.ok and _is_the_tools_own(answer):
            self.limits.count_failure(call.tool)
        text = model_text(outcome)
        truncated = outcome.projection is not None
        self.transcript.append(Message(role="tool", call_id=call.call_id, text=text, ok=outcome.ok))
        report = outcome.projection.report.model_dump(mode="json") if outcome.projection else None
        self.journal.record(
            "tool_output_projection_recorded", call_id=call.call_id, tool=call.tool, sha256=audit(text), report=report
        )
        if truncated:
            self.journal.record("tool_output_truncated", call_id=call.call_id, tool=call.tool)
        attempts = outcome.metadata.get("tool_attempt")
        record = ToolResultRecord(
            call_id=call.call_id,
            tool=call.tool,
            ok=outcome.ok,
            text=text,
            error=outcome.error,
            duration_ms=round(answer.duration.total_seconds() * 1000),
            attempts=attempts if isinstance(attempts, int) else 0,
            idempotency_key=answer.idempotency_key,
            truncated=truncated,
        )
        self.results.add(record, outcome)

    def can_carry(self) -> bool:
        """Whether packing the state is worth trying: it costs time in the workflow task, and may not fit."""
        return not self.too_large_to_carry and self.transcript.size <= CARRY_RAW_MAX_BYTES

    def carry(self, transcript: Transcript) -> Carry:
        """The state to continue with, and as much of the transcript."""
        pending, decided = self.approvals.pending, self.approvals.decided
        open_calls = {call.call_id for call in self.open_reply.calls} if self.open_reply else set()
        return Carry(
            agent=self.agent,
            context=self.context,
            options=self.options,
            transcript=transcript.messages,
            transcript_first=transcript.first,
            transcript_prompt=transcript.prompt,
            events=self.journal.latest(),
            sequence=self.journal.sequence,
            rounds=self.limits.rounds,
            tool_calls=self.limits.tool_calls,
            next_call=self.next_call,
            unknown_tools=self.unknown_tools,
            usage=self.spending.usage,
            cost=self.spending.cost,
            fallbacks=self.fallbacks,
            model_calls=self.model_calls,
            hooks=self.hooks,
            search_attributes=self.search_attributes,
            effects=self.effects.records,
            tool_results=self.results.records,
            tool_results_omitted=self.results.omitted,
            previous_run_id=workflow.info().run_id,
            open_reply=self.open_reply,
            pending_approvals=pending,
            decisions=tuple(decision for decision in decided if decision.call_id in open_calls),
            answers=self.carried_answers,
            undoable=self.effects.undoable,
            failures_by_tool=self.limits.failures,
            waiting_messages=self.inbox.waiting,
            seen_messages=self.inbox.seen,
            started_at=self.started_at,
            deadline=self.deadline,
            behaviour=BEHAVIOUR,
        )

    def resume(self, run_input: AgentRunInput) -> None:
        """Become what the previous execution of this chain carried here."""
        if run_input.carried is None or workflow.info().continued_run_id is None:
            raise RunFailed("InvalidInput", "carried is written by a run for its own continuation: leave it out")
        carry = Carry.unpack(run_input.carried)
        self.context = of_this_run(carry.context)
        self.journal.resume(carry.events, carry.sequence)
        self.transcript = Transcript(carry.transcript, carry.transcript_first, carry.transcript_prompt)
        self.effects = EffectLedger(self.journal, carry.effects, carry.undoable)
        self.inbox.resume(carry.waiting_messages, carry.seen_messages)
        self.carried_answers = carry.answers
        self.started_at = carry.started_at or self.started_at
        self.deadline = carry.deadline
        self.behaviour = carry.behaviour
        self.results = ToolResults(carry.tool_results, carry.tool_results_omitted)
        self.fallbacks = carry.fallbacks
        self.model_calls = carry.model_calls
        self.hooks = carry.hooks
        self.search_attributes = carry.search_attributes
        self.next_call = carry.next_call
        self.unknown_tools = carry.unknown_tools
        self.previous_run_id = carry.previous_run_id
        self.open_reply = carry.open_reply
        self.approvals.resume(carry.pending_approvals, carry.decisions)
        limits = Limits(carry.agent, carry.options, carry.rounds, carry.tool_calls, carry.failures_by_tool)
        self._load(carry.agent, limits, Spending(carry.agent, carry.options, carry.usage, carry.cost), carry.options)
        self.journal.record("continued_as_new", previous_run_id=carry.previous_run_id)

    def _require_loaded(self) -> tuple[AgentSpec, Limits, Spending]:
        if self._loaded is None:
            raise LookupError("this run has no agent: it is not loaded yet, or the run ended before")
        return self._loaded


def _is_the_tools_own(answer: Answer) -> bool:
    """Whether a failed call counts against its tool."""
    error = answer.outcome.error
    return error is None or error.code not in _TURNED_AWAY
