"""One round: the calls of one model reply. Consent comes first, then execution; every call gets one answer."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

from contracts.agents import AgentSpec
from contracts.approvals import ApprovalRequest, RecordedDecision, action_digest
from contracts.context import ExecutionContext
from contracts.idempotency import approval_id, idempotency_key
from contracts.messages import InvalidToolCall, ProposedCall, ToolCall
from contracts.outcomes import ToolOutcome, failure
from contracts.runs import RunOptions
from contracts.tools import ToolContract, ToolInvocation
from workflows import options as activity_options
from workflows.approval_gate import ApprovalGate
from workflows.effects import EffectLedger
from workflows.failures import RunFailed, never_ran, tool_outcome
from workflows.journal import Journal


@dataclass(frozen=True)
class Answer:
    """What one call came to. `idempotency_key` is None for a call that was never offered to a tool."""

    call: ProposedCall
    outcome: ToolOutcome
    duration: timedelta = timedelta(0)
    idempotency_key: str | None = None


@dataclass(frozen=True)
class _PlannedCall:
    """A call with the contract it runs under."""

    call: ToolCall
    contract: ToolContract

    @property
    def action_digest(self) -> str:
        return action_digest(self.contract.name, self.contract.version, self.call.arguments)


class ToolRound:
    """Runs the calls of one reply under the run's agent, options and gate."""

    def __init__(
        self,
        calls: Sequence[ProposedCall],
        *,
        agent: AgentSpec,
        options: RunOptions,
        context: ExecutionContext,
        journal: Journal,
        approvals: ApprovalGate,
        effects: EffectLedger,
        on_waiting: Callable[[bool], None],
    ) -> None:
        self._calls = calls
        self._agent = agent
        self._options = options
        self._context = context
        self._journal = journal
        self._approvals = approvals
        self._effects = effects
        self._on_waiting = on_waiting
        self._answers: dict[str, Answer] = {}
        self._cancelled = False
        info = workflow.info()
        self._chain = (info.workflow_id, info.first_execution_run_id)

    async def run(self) -> None:
        """Answer every call. Raises `RunFailed` where agent or options say that a refusal or a failure ends the run;
        what is not answered then did not run."""
        planned = [plan for call in self._calls if (plan := self._admit(call)) is not None]
        consented = await self._consent(planned)
        for group in self._groups(consented):
            await asyncio.gather(*(self._execute(plan) for plan in group))
            self._check_after(group)

    def answers(self, unanswered: ToolOutcome) -> list[Answer]:
        """One answer a call, in call order, with `unanswered` for those that were not run."""
        return [self._answers.get(call.call_id, Answer(call, unanswered)) for call in self._calls]

    def _admit(self, call: ProposedCall) -> _PlannedCall | None:
        if isinstance(call, InvalidToolCall):
            issues = "; ".join(f"{issue.pointer}: {issue.message}" for issue in call.issues)
            self._journal.record(
                "tool_invalid", call_id=call.call_id, tool=call.tool, reason=call.reason, issues=issues, raw=call.raw
            )
            told = failure("not_found" if call.reason == "unknown_tool" else "invalid_input", issues, code=call.reason)
            self._answers[call.call_id] = Answer(call, told)
            return None
        contract = self._agent.tool(call.tool)
        if contract is None:
            raise RunFailed("InternalError", f"the reply holds a valid call of {call.tool!r}, which is no tool here")
        self._journal.record("tool_proposed", call_id=call.call_id, tool=call.tool)
        return _PlannedCall(call, contract)

    async def _consent(self, planned: Sequence[_PlannedCall]) -> list[_PlannedCall]:
        """The calls that may run, once every decision that the batch needs is in."""
        for plan in planned:
            if plan.contract.approval == "always" or self._options.approve == "all":
                self._approvals.ask(self._request(plan))
        self._on_waiting(bool(self._approvals.pending))
        decisions = await self._approvals.decisions()
        self._on_waiting(False)
        consented = []
        for plan in planned:
            decision = decisions.get(plan.call.call_id)
            if decision is None or decision.resolution == "approved":
                consented.append(plan)
            else:
                self._refuse(plan, decision)
        return consented

    def _request(self, plan: _PlannedCall) -> ApprovalRequest:
        now = workflow.now()
        seconds = self._options.approval_expires_seconds or self._agent.approval_expires_seconds
        required = plan.contract.approval == "always"
        return ApprovalRequest(
            approval_id=approval_id(self._chain, plan.call.call_id),
            call_id=plan.call.call_id,
            tool=plan.contract.name,
            tool_version=plan.contract.version,
            arguments=plan.call.arguments,
            action_digest=plan.action_digest,
            side_effect=plan.contract.side_effect,
            reason="the tool's contract requires it" if required else "this run asks for every call",
            requested_at=now,
            expires_at=now + timedelta(seconds=seconds),
        )

    def _refuse(self, plan: _PlannedCall, decision: RecordedDecision) -> None:
        expired = decision.resolution == "expired"
        what = "expired, not run" if expired else f"denied by {decision.by}, not run"
        told = failure("permission_denied", f"{what}: {decision.reason}".rstrip(": "), code=decision.resolution)
        self._answers[plan.call.call_id] = Answer(plan.call, told)
        self._journal.record("tool_refused", call_id=plan.call.call_id, tool=plan.call.tool, reason=what)
        on_refusal = self._agent.on_approval_expired if expired else self._agent.on_approval_denied
        if on_refusal == "fail_run":
            raise RunFailed("ApprovalExpired" if expired else "ApprovalDenied", f"{plan.call.tool}: {what}")

    def _groups(self, plans: Sequence[_PlannedCall]) -> Iterable[Sequence[_PlannedCall]]:
        """What runs side by side. `auto`: neighbours without effect together, each call with an effect by itself, in
        the model's order, so that a read after a write sees what was written."""
        group: list[_PlannedCall] = []
        for plan in plans:
            alone = self._options.tool_concurrency == "sequential" or (
                self._options.tool_concurrency == "auto" and plan.contract.has_effect
            )
            if alone and group:
                yield group
                group = []
            group.append(plan)
            if alone:
                yield group
                group = []
        if group:
            yield group

    async def _execute(self, plan: _PlannedCall) -> None:
        call, contract = plan.call, plan.contract
        key = idempotency_key(self._chain, call.call_id, contract.name, contract.version, call.arguments)
        invocation = ToolInvocation(
            call_id=call.call_id,
            tool=contract.name,
            version=contract.version,
            arguments=call.arguments,
            idempotency_key=key,
            action_digest=plan.action_digest,
            context=self._context,
        )
        if contract.has_effect:
            self._effects.intend(call)
        self._journal.record("tool_started", call_id=call.call_id, tool=call.tool)
        started = workflow.now()
        outcome = await self._offer(contract, invocation)
        self._record(plan, Answer(call, outcome, workflow.now() - started, key))

    async def _offer(self, contract: ToolContract, invocation: ToolInvocation) -> ToolOutcome:
        """Run the tool's activity. A worker that holds another version refuses it before anything happens; the call
        is then offered again, a bounded number of times."""
        for offer in range(activity_options.OFFERS):
            activity = workflow.start_activity(
                contract.name,
                invocation,
                result_type=ToolOutcome,
                **activity_options.tool(contract, f"{invocation.call_id}.{offer}" if offer else invocation.call_id),
            )
            try:
                return await self._end_of(activity)
            except ActivityError as error:
                outcome = tool_outcome(error, contract)
                if not never_ran(error) or self._cancelled:
                    return outcome
            try:
                await workflow.sleep(activity_options.offer_delay(offer))
            except asyncio.CancelledError:
                self._cancelled = True
                return failure("cancelled", "the run was cancelled; the call did not run")
        return outcome

    async def _end_of(self, activity: workflow.ActivityHandle[ToolOutcome]) -> ToolOutcome:
        """The activity's result, also when the run is cancelled meanwhile: the tool is asked to stop and what it came
        to is still recorded. (A cancelled `await` of an activity that then completes would swallow the cancellation.)
        """
        try:
            return await asyncio.shield(activity)
        except asyncio.CancelledError:
            self._cancelled = True
            activity.cancel()
            return await activity

    def _record(self, plan: _PlannedCall, answer: Answer) -> None:
        call, outcome = plan.call, answer.outcome
        self._answers[call.call_id] = answer
        if plan.contract.has_effect:
            self._effects.settle(call, outcome)
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

    def _check_after(self, group: Sequence[_PlannedCall]) -> None:
        if self._cancelled:
            raise asyncio.CancelledError("the run was cancelled")
        if self._options.on_tool_error == "fail_run":
            for plan in group:
                error = self._answers[plan.call.call_id].outcome.error
                if error is not None:
                    raise RunFailed("ToolFailed", f"{plan.call.tool}: {error.category}: {error.message}")
