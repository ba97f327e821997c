"""One round: the calls of one model reply. Consent comes first, then execution; every call gets one answer."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Protocol

from temporalio import workflow

from contracts.agents import AgentSpec
from contracts.approvals import ApprovalRequest, RecordedDecision
from contracts.context import ExecutionContext, subject_id
from contracts.idempotency import approval_id, idempotency_key
from contracts.messages import InvalidToolCall, ProposedCall
from contracts.outcomes import ErrorCategory, ToolErrorInfo, ToolOutcome, failure
from contracts.runs import RunOptions
from contracts.tools import ToolInvocation
from workflows.approval_gate import ApprovalGate
from workflows.attempts import Attempts
from workflows.carry import CarriedAnswer
from workflows.effects import EffectLedger
from workflows.failures import RunFailed
from workflows.history import check_room
from workflows.journal import Journal
from workflows.planned_calls import PlannedCall, expected_version

# Calls that run side by side: the server allows 2,000 pending activities, and their results share one history.
MOST_IN_FLIGHT = 32

# What the model reads of a call that was turned away before it could run; all others were not understood.
_CATEGORY: Mapping[str, ErrorCategory] = MappingProxyType({"unknown_tool": "not_found", "denied": "permission_denied"})


@dataclass(frozen=True)
class Answer:
    """What one call came to. `idempotency_key` is None for a call that was never offered to a tool."""

    call: ProposedCall
    outcome: ToolOutcome
    duration: timedelta = timedelta(0)
    idempotency_key: str | None = None


class RoundContext(Protocol):
    """What a round needs of the run it belongs to."""

    @property
    def agent(self) -> AgentSpec: ...

    agent_digest: str
    options: RunOptions
    context: ExecutionContext
    deadline: datetime | None
    journal: Journal
    approvals: ApprovalGate
    effects: EffectLedger


class ToolRound:
    """Runs the calls of one reply under the run's agent, options and gate: admit, consent, execute, in this order."""

    def __init__(self, calls: Sequence[ProposedCall], state: RoundContext, on_waiting: Callable[[bool], None]) -> None:
        self._calls = calls
        self._agent = state.agent
        self._agent_digest = state.agent_digest
        self._options = state.options
        self._context = state.context
        self._deadline = state.deadline
        self._journal = state.journal
        self._approvals = state.approvals
        self._effects = state.effects
        self._on_waiting = on_waiting
        self._planned: list[PlannedCall] = []
        self._answers: dict[str, Answer] = {}
        self._cancelled = False
        info = workflow.info()
        self._chain = (info.workflow_id, info.first_execution_run_id)

    def admit(self, begun: bool, carried_answers: Sequence[CarriedAnswer] = ()) -> None:
        """Answer the calls that cannot run, plan the others. `begun` says that an earlier execution recorded this, and
        `carried_answers` are those that it had. Raises `RunFailed` where the options say that a failure ends the run:
        then no call of the batch runs."""
        for call in self._calls:
            if (plan := self._admit(call, begun)) is not None:
                self._planned.append(plan)
        for carried in carried_answers:
            answered = next((call for call in self._calls if call.call_id == carried.call_id), None)
            if answered is not None:
                duration = timedelta(seconds=carried.duration_seconds)
                self._answers[carried.call_id] = Answer(answered, carried.outcome, duration, carried.idempotency_key)
        self._fail_on_error(self._answers.values())

    async def consent(self, can_leave: Callable[[], bool]) -> bool:
        """Wait for every decision that the batch needs, before any call of it runs. False when the run should continue
        as new instead; ask again where it cannot. Raises `RunFailed` where the agent says that a refusal ends the run.
        """
        for plan in self._planned:
            answered = plan.call.call_id in self._answers
            if not answered and (plan.contract.approval != "never" or self._options.approve == "all"):
                self._approvals.ask(self._request(plan))
        self._on_waiting(bool(self._approvals.pending))
        if not await self._approvals.settled(can_leave):
            return False
        self._on_waiting(False)
        decisions = {decision.call_id: decision for decision in self._approvals.decided}
        for plan in self._planned:
            decision = decisions.get(plan.call.call_id)
            answered = plan.call.call_id in self._answers
            if decision is not None and decision.resolution != "approved" and not answered:
                self._refuse(plan, decision)
        return True

    async def execute(self, may_leave: Callable[[], bool]) -> bool:
        """Run what may run. False when the run should continue as new before more of it does: nothing is in flight
        then, and `carried` says what is done. Raises `RunFailed` where the options say that a failure ends the run."""
        consented = [plan for plan in self._planned if plan.call.call_id not in self._answers]
        for group in self._groups(consented):
            if may_leave():
                return False
            check_room()
            await asyncio.gather(*(self._execute(plan) for plan in group))
            self._check_after(group)
        return True

    def carried(self) -> tuple[CarriedAnswer, ...]:
        """The answers so far."""
        return tuple(
            CarriedAnswer(
                call_id=answer.call.call_id,
                outcome=answer.outcome,
                duration_seconds=answer.duration.total_seconds(),
                idempotency_key=answer.idempotency_key,
            )
            for answer in self._answers.values()
        )

    def answers(self, unanswered: ToolOutcome) -> list[Answer]:
        """One answer a call, in call order, with `unanswered` for those that were not run."""
        return [self._answers.get(call.call_id, Answer(call, unanswered)) for call in self._calls]

    def _admit(self, call: ProposedCall, begun: bool) -> PlannedCall | None:
        if isinstance(call, InvalidToolCall):
            issues = "; ".join(map(str, call.issues))
            if not begun:
                self._journal.record(
                    "tool_invalid",
                    call_id=call.call_id,
                    tool=call.tool,
                    reason=call.reason,
                    issues=issues,
                    raw=call.raw,
                )
            told = failure(_CATEGORY.get(call.reason, "invalid_input"), issues, code=call.reason)
            told = told.model_copy(update={"metadata": {"schema_issues": [issue.as_json() for issue in call.issues]}})
            self._answers[call.call_id] = Answer(call, told)
            return None
        contract = self._agent.tool(call.tool)
        if contract is None:
            raise RunFailed("InternalError", f"the reply holds a valid call of {call.tool!r}, which is no tool here")
        if not begun:
            self._journal.record("tool_proposed", call_id=call.call_id, tool=call.tool)
        try:
            return PlannedCall(call, contract, expected_version(contract, call.arguments))
        except ValueError as missing:
            self._answers[call.call_id] = Answer(call, failure("invalid_input", str(missing)))
            return None

    def _request(self, plan: PlannedCall) -> ApprovalRequest:
        now = workflow.now()
        seconds = self._options.approval_expires_seconds or self._agent.approval_expires_seconds
        expires_at = now + timedelta(seconds=seconds)
        if self._deadline is not None:
            # Nobody is asked for an answer that would come too late.
            expires_at = min(expires_at, self._deadline)
        required = plan.contract.approval != "never"
        shown = self._context.shown
        return ApprovalRequest(
            approval_id=approval_id(self._chain, plan.call.call_id),
            call_id=plan.call.call_id,
            tool=plan.contract.name,
            tool_version=plan.contract.version,
            arguments=plan.call.arguments,
            action_digest=plan.action_digest,
            side_effect=plan.contract.side_effect,
            capabilities=plan.contract.capabilities,
            reason="the tool's contract requires it" if required else "this run asks for every call",
            requested_at=now,
            expires_at=expires_at,
            subject_id=subject_id(shown),
            context=shown,
        )

    def _refuse(self, plan: PlannedCall, decision: RecordedDecision) -> None:
        expired = decision.resolution == "expired"
        what = "expired, not run" if expired else f"denied by {decision.by}, not run"
        told = failure("permission_denied", f"{what}: {decision.reason}".rstrip(": "), code=decision.resolution)
        self._answers[plan.call.call_id] = Answer(plan.call, told)
        self._journal.record("tool_refused", call_id=plan.call.call_id, tool=plan.call.tool, reason=what)
        on_refusal = self._agent.on_approval_expired if expired else self._agent.on_approval_denied
        if on_refusal == "fail_run":
            raise RunFailed("ApprovalExpired" if expired else "ApprovalDenied", f"{plan.call.tool}: {what}")

    def _groups(self, plans: Sequence[PlannedCall]) -> Iterable[Sequence[PlannedCall]]:
        """What runs side by side. `auto`: neighbours without effect together, each call with an effect by itself, in
        the model's order, so that a read after a write sees what was written."""
        group: list[PlannedCall] = []
        for plan in plans:
            alone = self._options.tool_concurrency == "sequential" or (
                self._options.tool_concurrency == "auto" and plan.contract.has_effect
            )
            if alone and group:
                yield group
                group = []
            group.append(plan)
            if alone or len(group) == MOST_IN_FLIGHT:
                yield group
                group = []
        if group:
            yield group

    async def _execute(self, plan: PlannedCall) -> None:
        call, contract = plan.call, plan.contract
        key = idempotency_key(self._chain, call.call_id, contract.name, contract.version, call.arguments)
        invocation = ToolInvocation(
            call_id=call.call_id,
            tool=contract.name,
            version=contract.version,
            arguments=call.arguments,
            idempotency_key=key,
            action_digest=plan.action_digest,
            expected_resource_version=plan.expected_resource_version,
            output_limits=(self._options.tool_output or self._agent.tool_output).tightened(contract.model_output),
            context=self._context,
        )
        if contract.has_effect:
            self._effects.intend(call, contract, invocation)
        self._journal.record("tool_started", call_id=call.call_id, tool=call.tool)
        started = workflow.now()
        attempts = Attempts(contract, invocation, self._agent_digest, self._journal)
        outcome = await attempts.outcome()
        self._cancelled |= attempts.cancelled
        if contract.has_effect:
            self._effects.settle(call, outcome, attempts.compensation)
        self._record(plan, Answer(call, outcome, workflow.now() - started, key))

    def _record(self, plan: PlannedCall, answer: Answer) -> None:
        call, outcome = plan.call, answer.outcome
        self._answers[call.call_id] = answer
        milliseconds = round(answer.duration.total_seconds() * 1000)
        if outcome.ok:
            self._journal.record("tool_completed", call_id=call.call_id, tool=call.tool, duration_ms=milliseconds)
        else:
            error = outcome.error
            self._journal.record(
                "tool_failed",
                call_id=call.call_id,
                tool=call.tool,
                duration_ms=milliseconds,
                category=error.category if error else "internal",
                message=error.message if error else "",
            )

    def _check_after(self, group: Sequence[PlannedCall]) -> None:
        if self._cancelled:
            raise asyncio.CancelledError("the run was cancelled")
        self._fail_on_error(self._answers[plan.call.call_id] for plan in group)

    def _fail_on_error(self, answers: Iterable[Answer]) -> None:
        if self._options.on_tool_error == "fail_run":
            for answer in answers:
                if not answer.outcome.ok:
                    error = answer.outcome.error or ToolErrorInfo(category="internal")
                    raise RunFailed("ToolFailed", f"{answer.call.tool}: {error.category}: {error.message}")
