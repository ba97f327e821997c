"""`AgentRun`: one agent at work, from a prompt to a result, as a durable workflow."""

import asyncio
from collections.abc import Sequence
from typing import NoReturn

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

from contracts.activities import AgentActivities, LoadAgentRequest, LoadedAgent, ModelReply
from contracts.agents import AgentSpec
from contracts.approvals import RecordedDecision
from contracts.events import EventsPage, EventsQuery
from contracts.messages import InvalidToolCall, Message
from contracts.outcomes import failure
from contracts.runs import AgentRunInput, AgentRunResult, AgentRunState, RunError, ToolResultsPage, ToolResultsQuery
from contracts.transcripts import TranscriptPage, TranscriptQuery
from workflows import options as activity_options
from workflows.approval_gate import DecisionRefused
from workflows.carry import CARRY_MAX_BYTES
from workflows.failures import BUGS, RunFailed, run_failure
from workflows.history import check_room
from workflows.model_calls import ModelCalls
from workflows.opening import check_options, first_call, opening_messages, read_input, refuse_cron
from workflows.reviews import reviewed
from workflows.run_state import RunState
from workflows.tool_round import ToolRound
from workflows.visibility import Visibility

# What `run` and the handlers receive when the caller sent nothing. Arguments are taken raw and decoded inside: one that
# the converter cannot decode would fail the workflow task again and again.
NO_PAYLOAD = RawValue(Payload())

UNKNOWN_TOOLS_IN_A_RUN = 3


@workflow.defn(name="AgentRun", failure_exception_types=BUGS)
class AgentRun:
    """Starts with one `AgentRunInput` as JSON, ends with an `AgentRunResult`, or fails with an `ApplicationError` of a
    public error type whose first detail is the partial result. Names and shapes: docs/protocol.md."""

    def __init__(self) -> None:
        self._state = RunState()
        self._visibility = Visibility(self._state)

    @workflow.run
    async def run(self, raw_input: RawValue = NO_PAYLOAD) -> AgentRunResult:
        """The story of a run: open, then rounds of reply, consent and execution, until the model answers in words."""
        try:
            await self._open(raw_input.payload.data)
            while True:
                reply = await self._next_reply()
                if not reply.calls:
                    return await self._complete(reply)
                await self._run_tools(reply)
        except RunFailed as failure:
            await self._fail(failure)
        except (asyncio.CancelledError, FailureError) as error:
            if is_cancelled_exception(error):
                await self._cancel()
                raise
            await self._fail(RunFailed("InternalError", f"{type(error).__name__}: {error}"))
        except Exception as bug:  # noqa: BLE001 - any bug must end the run by name, or its task is retried for ever
            workflow.logger.exception("a bug ends this run")
            await self._fail(RunFailed("InternalError", f"{type(bug).__name__}: {bug}"))

    # -- the chapters of the story ---------------------------------------------------------------------------------

    async def _open(self, payload: bytes) -> None:
        """Become the run the caller asked for, or the continuation of the previous execution."""
        state = self._state
        refuse_cron(workflow.info().cron_schedule)
        run_input = read_input(payload)
        if run_input.carried is not None:
            state.resume(run_input)
        else:
            messages = opening_messages(run_input)
            state.context = run_input.context
            state.journal.record("run_started", agent=run_input.agent, tenant_id=run_input.context.tenant_id)
            loaded = await self._load_agent(run_input)
            check_options(run_input, loaded)
            state.hooks, state.search_attributes = loaded.hooks, loaded.search_attributes
            state.load(loaded.spec, run_input.options)
            state.next_call = first_call(messages)
            for message in messages:
                state.transcript.append(message)
        state.status = "running"
        self._visibility.show()

    async def _load_agent(self, run_input: AgentRunInput) -> LoadedAgent:
        request = LoadAgentRequest(agent=run_input.agent, output_schema=run_input.options.output_schema)
        try:
            return await workflow.execute_activity_method(
                AgentActivities.load_agent, request, **activity_options.LOAD_AGENT
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise run_failure(error, otherwise="InternalError") from None

    async def _next_reply(self) -> ModelReply:
        """What to act on next: the reply whose round the previous execution left open, or a new one."""
        if self._state.open_reply is not None:
            return self._state.open_reply
        if workflow.info().is_continue_as_new_suggested():
            # Between rounds nothing is in flight, and nobody is waited for.
            await workflow.wait_condition(workflow.all_handlers_finished)
            self._continue_as_new()
        check_room()
        return await reviewed(await ModelCalls(self._state).next_reply(), self._state)

    async def _run_tools(self, reply: ModelReply) -> None:
        """One round. Whatever ends it, every call of the reply has exactly one answer in the transcript afterwards."""
        state = self._state
        begun = state.open_reply is not None
        tool_round = ToolRound(reply.calls, state, on_waiting=self._waiting_for_approval)
        try:
            if not begun:
                self._open_round(reply)
            tool_round.admit(begun)
            while not await tool_round.consent(state.can_carry):
                self._continue_as_new()
            await tool_round.execute()
        except (Exception, asyncio.CancelledError):
            # Not for what else ends a coroutine: the round goes on in the next execution, or in another worker.
            self._close_round(tool_round)
            raise
        self._close_round(tool_round)
        self._count_unknown_tools(reply)

    def _open_round(self, reply: ModelReply) -> None:
        state = self._state
        calls = tuple(call.as_call() if isinstance(call, InvalidToolCall) else call for call in reply.calls)
        state.open_reply = reply
        state.text = reply.text or state.text
        state.transcript.append(Message(role="assistant", text=reply.text, tool_calls=calls, opaque=reply.opaque))
        state.limits.open_round(len(reply.calls))

    def _close_round(self, tool_round: ToolRound) -> None:
        not_run = failure("cancelled", "not run: the run ended before", code="not_started")
        for answer in tool_round.answers(not_run):
            self._state.answer(answer)
        self._state.open_reply = None
        self._visibility.show()

    def _waiting_for_approval(self, waiting: bool) -> None:
        self._state.status = "waiting_for_approval" if waiting else "running"
        self._visibility.show()

    def _count_unknown_tools(self, reply: ModelReply) -> None:
        for call in reply.calls:
            self._state.unknown_tools += isinstance(call, InvalidToolCall) and call.reason == "unknown_tool"
        if self._state.unknown_tools > UNKNOWN_TOOLS_IN_A_RUN:
            raise RunFailed("ModelBehaviour", "the model keeps asking for tools that do not exist")

    def _continue_as_new(self) -> None:
        """Go on in a new execution, if the state fits into its input. A transcript only grows: one that did not fit is
        not packed again, and the run goes on in this execution while it can."""
        state = self._state
        if not state.can_carry():
            return
        carried = state.carry().pack()
        if len(carried) <= CARRY_MAX_BYTES:
            workflow.continue_as_new(
                AgentRunInput(agent=state.agent.name, carried=carried),
                # A run stays with its worker's version. Here nothing will be replayed: it moves to the current one.
                initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
            )
        state.too_large_to_carry = True

    # -- the ends --------------------------------------------------------------------------------------------------

    async def _complete(self, reply: ModelReply) -> AgentRunResult:
        state = self._state
        state.transcript.append(Message(role="assistant", text=reply.text, opaque=reply.opaque))
        state.text, state.output, state.finish_reason = reply.text, reply.output, reply.finish_reason
        state.status = "completed"
        state.journal.record("run_completed", rounds=state.limits.rounds)
        self._visibility.show()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return state.result()

    async def _fail(self, failed: RunFailed) -> NoReturn:
        state = self._state
        state.approvals.withdraw()
        state.status = "failed"
        state.error = RunError(type=failed.type, message=failed.message)
        state.journal.record("run_failed", error=failed.type, message=failed.message)
        self._visibility.show()
        await workflow.wait_condition(workflow.all_handlers_finished)
        raise ApplicationError(failed.message, state.result(), type=failed.type, non_retryable=True) from None

    async def _cancel(self) -> None:
        state = self._state
        state.approvals.withdraw()
        state.status = "cancelled"
        state.journal.record("run_cancelled")
        self._visibility.show()
        await workflow.wait_condition(workflow.all_handlers_finished)

    # -- signals and updates ---------------------------------------------------------------------------------------

    @workflow.signal(dynamic=True)
    def receive(self, name: str, payloads: Sequence[RawValue]) -> None:
        """Every signal comes through here, since only a dynamic handler is given what does not decode, has no argument
        or too many, or an unknown name. None of these changes anything, and each is recorded."""
        try:
            if name != "resolve_approval":
                self._state.journal.record("signal_refused", name=name, reason="there is no signal of this name")
            elif len(payloads) != 1:
                reason = f"it takes one ApprovalDecision, not {len(payloads)} arguments"
                self._state.journal.record("signal_refused", name=name, reason=reason)
            else:
                self._state.approvals.decide(payloads[0].payload.data)
                self._visibility.show()
        except DecisionRefused:
            pass  # The gate has recorded it; a signal has nobody to tell.
        except Exception as bug:  # noqa: BLE001 - one signal must not end a run, nor retry its task for ever
            workflow.logger.exception("a bug in a signal handler")
            self._state.journal.record("signal_refused", name=name, reason=f"InternalError: {type(bug).__name__}")

    @workflow.update
    def decide(self, raw_decision: RawValue = NO_PAYLOAD) -> RecordedDecision:
        """Take one ApprovalDecision and return it as recorded. Fails with `DecisionRefused`, which says why."""
        try:
            recorded = self._state.approvals.decide(raw_decision.payload.data)
            self._visibility.show()
            return recorded
        except DecisionRefused as refusal:
            raise ApplicationError(str(refusal), type="DecisionRefused", non_retryable=True) from None

    # -- queries ---------------------------------------------------------------------------------------------------

    @workflow.query
    def state(self) -> AgentRunState:
        """Where the run is."""
        return self._state.view()

    @workflow.query
    def agent(self) -> AgentSpec:
        """The frozen agent. Fails until it is loaded."""
        return self._state.agent

    @workflow.query
    def events(self, raw_query: RawValue = NO_PAYLOAD) -> EventsPage:
        """A page of the event log, from an `EventsQuery`."""
        return self._state.journal.page(EventsQuery.from_wire(raw_query.payload.data or b"{}"))

    @workflow.query
    def transcript(self, raw_query: RawValue = NO_PAYLOAD) -> TranscriptPage:
        """A page of the transcript, from a `TranscriptQuery`."""
        return self._state.transcript.page(TranscriptQuery.from_wire(raw_query.payload.data or b"{}"))

    @workflow.query
    def tool_results(self, raw_query: RawValue = NO_PAYLOAD) -> ToolResultsPage:
        """A page of complete outcomes, from a `ToolResultsQuery`."""
        return self._state.results.page(ToolResultsQuery.from_wire(raw_query.payload.data or b"{}"))
