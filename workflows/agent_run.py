"""`AgentRun`: one agent at work, from a prompt to a result, as a durable workflow."""

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

from contracts.activities import (
    AgentActivities,
    LoadAgentRequest,
    LoadedAgent,
    ModelReply,
)
from contracts.agents import AgentSpec
from contracts.approvals import RecordedDecision
from contracts.effects import LedgerPage, LedgerQuery
from contracts.events import EventsPage, EventsQuery
from contracts.messages import InvalidToolCall
from contracts.outcomes import failure
from contracts.runs import (
    AgentRunInput,
    AgentRunResult,
    AgentRunState,
    CancelAccepted,
    Stop,
    ToolResultsPage,
    ToolResultsQuery,
)
from contracts.transcripts import TranscriptPage, TranscriptQuery
from workflows import options as activity_options
from workflows.compensation import compensate
from workflows.continuation import Continuation
from workflows.doors import NO_PAYLOAD, Doors
from workflows.endings import Ending, bug, ending_of
from workflows.failures import BUGS, RunFailed, run_failure
from workflows.history import check_room
from workflows.identity import of_this_run
from workflows.interruption import Interruption
from workflows.model_calls import ModelCalls
from workflows.opening import check_options, first_call, opening_messages, read_input, refuse_cron
from workflows.reviews import reviewed
from workflows.run_state import RunState
from workflows.showing import result_of, view_of
from workflows.stopping import stop_before
from workflows.tool_round import Answer, ToolRound
from workflows.visibility import Visibility

UNKNOWN_TOOLS_IN_A_RUN = 3


@workflow.defn(name="AgentRun", failure_exception_types=BUGS)
class AgentRun:
    """Starts with one `AgentRunInput` as JSON, ends with an `AgentRunResult`, or fails with an `ApplicationError` of a
    public error type whose first detail is the partial result. Names and shapes: docs/protocol.md."""

    def __init__(self) -> None:
        self._state = RunState()
        self._visibility = Visibility(self._state)
        self._interruption = Interruption()
        self._continuation = Continuation(self._state, self._interruption)
        self._doors = Doors(self._state, self._interruption, self._visibility)

    @workflow.run
    async def run(self, raw_input: RawValue = NO_PAYLOAD) -> AgentRunResult:
        """A run is its story, whatever the story comes to, and then what has to be done before it may end."""
        try:
            ending = await ending_of(self._story(raw_input.payload.data), self._interruption)
            await compensate(self._state, ending, self._interruption, self._visibility)
        except Exception as error:  # noqa: BLE001 - any bug must end the run by name, or its task is retried for ever
            ending = bug(error)
        # Of a run that failed before it had a state, somebody may be waiting outside.
        self._doors.open()
        try:
            return await self._end(ending)
        except FailureError:
            raise
        except Exception as error:  # noqa: BLE001 - see above; a result that cannot be made is no detail
            message = f"{type(error).__name__} at the end of the run"
            raise ApplicationError(message, type="InternalError", non_retryable=True) from None

    # -- the story -------------------------------------------------------------------------------------------------

    async def _story(self, payload: bytes) -> None:
        """Open, then rounds of reply, consent and execution, until the model answers in words."""
        await self._open(payload)
        while True:
            reply = await self._next_reply()
            match reply:
                case Stop():
                    return
                case ModelReply(calls=()):
                    if self._is_answered(reply):
                        return
                case ModelReply():
                    await self._run_tools(reply)

    async def _open(self, payload: bytes) -> None:
        """Become the run the caller asked for, or the continuation of the previous execution."""
        state = self._state
        refuse_cron(workflow.info().cron_schedule)
        run_input = read_input(payload)
        if run_input.carried is not None:
            state.resume(run_input)
            self._doors.open()
        else:
            self._doors.open()
            messages = opening_messages(run_input)
            state.context = of_this_run(run_input.context)
            state.journal.record("run_started", agent=run_input.agent, tenant_id=run_input.context.tenant_id)
            loaded = await self._load_agent(run_input)
            check_options(run_input, loaded)
            state.load(loaded, run_input.options)
            state.next_call = first_call(messages)
            state.transcript.open(messages)
        self._interruption.deadline = state.deadline
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

    async def _next_reply(self) -> ModelReply | Stop:
        """What to act on next: the reply whose round the previous execution left open, or a new one."""
        state = self._state
        if state.open_reply is not None:
            return state.open_reply
        self._interruption.check()
        if workflow.info().is_continue_as_new_suggested():
            await self._continuation.leave()
        check_room()
        reply = await ModelCalls(state, self._interruption).next_reply()
        self._interruption.check()
        if not reply.calls:
            return reply
        stop = stop_before(reply, state.agent, state.options)
        prepared = stop or await reviewed(reply, state)
        self._interruption.check()
        if isinstance(prepared, Stop):
            self._stop(prepared, reply)
        return prepared

    async def _run_tools(self, reply: ModelReply) -> None:
        """One round. Whatever ends it, every call of the reply has exactly one answer in the transcript afterwards."""
        state = self._state
        begun = state.open_reply is not None
        tool_round = ToolRound(reply.calls, state, on_waiting=self._waiting_for_approval)
        try:
            if not begun:
                self._open_round(reply)
            tool_round.admit(begun, state.carried_answers)
            self._interruption.check()
            while not (
                await tool_round.consent(state.can_carry) and await tool_round.execute(self._continuation.may_leave)
            ):
                state.carried_answers = tool_round.carried()
                await self._continuation.leave()
                self._interruption.check()
        except (Exception, asyncio.CancelledError):
            # Not for what else ends a coroutine: the round goes on in the next execution, or in another worker.
            self._close_round(tool_round)
            raise
        self._close_round(tool_round)
        self._count_unknown_tools(reply)
        state.limits.check_failures()

    def _open_round(self, reply: ModelReply) -> None:
        self._state.say(reply)
        self._state.open_reply = reply
        self._state.limits.open_round(len(reply.calls))

    def _close_round(self, tool_round: ToolRound) -> None:
        state = self._state
        not_run = failure("cancelled", "not run: the run ended before", code="not_started")
        for answer in tool_round.answers(not_run):
            state.answer(answer)
        state.open_reply = None
        state.carried_answers = ()
        self._visibility.show()

    def _stop(self, stop: Stop, reply: ModelReply) -> None:
        """End before the calls of this reply. They are answered all the same: a transcript is always legal."""
        state = self._state
        state.say(reply)
        not_run = failure("cancelled", f"not run: {stop.reason}", code="stopped")
        for call in reply.calls:
            state.answer(Answer(call, not_run))
        state.stop, state.finish_reason = stop, reply.finish_reason

    def _is_answered(self, reply: ModelReply) -> bool:
        """Take the model's answer. It is the last one unless a user has said something meanwhile."""
        state = self._state
        state.say(reply)
        if state.inbox.waiting:
            return False
        state.text, state.output, state.finish_reason = reply.text, reply.output, reply.finish_reason
        return True

    def _waiting_for_approval(self, waiting: bool) -> None:
        if not waiting:
            # A request that ends with the run's deadline must not end the run as expired.
            self._interruption.check()
        self._state.status = "waiting_for_approval" if waiting else "running"
        self._visibility.show()

    def _count_unknown_tools(self, reply: ModelReply) -> None:
        for call in reply.calls:
            self._state.unknown_tools += isinstance(call, InvalidToolCall) and call.reason == "unknown_tool"
        if self._state.unknown_tools > UNKNOWN_TOOLS_IN_A_RUN:
            raise RunFailed("ModelBehaviour", "the model keeps asking for tools that do not exist")

    # -- the end ---------------------------------------------------------------------------------------------------

    async def _end(self, ending: Ending) -> AgentRunResult:
        """Say how the run ended, in its state, events and search attributes, and then end it so."""
        state = self._state
        state.end(ending)
        self._visibility.show()
        if ending.status == "cancelled":
            if await self._interruption.confirmed():
                raise asyncio.CancelledError
            reason = "the run was stopped by cancel_run, but the server could not be asked to cancel it"
            raise ApplicationError(reason, result_of(state), type="InternalError", non_retryable=True)
        await self._interruption.handlers_finished()
        if ending.error is None:
            return result_of(state)
        raise ApplicationError(ending.error.message, result_of(state), type=ending.error.type, non_retryable=True)

    # -- signals and updates ---------------------------------------------------------------------------------------

    @workflow.signal(dynamic=True)
    def receive(self, name: str, payloads: Sequence[RawValue]) -> None:
        """Every signal comes through here, since only a dynamic handler is given what does not decode, has no argument
        or too many, or an unknown name. None of these changes anything, and each is recorded."""
        self._doors.signal(name, payloads)

    @workflow.update
    async def decide(self, raw_decision: RawValue = NO_PAYLOAD) -> RecordedDecision:
        """Take one ApprovalDecision and return it as recorded. Fails with `DecisionRefused`, which says why."""
        return await self._doors.decide(raw_decision.payload.data)

    @workflow.update
    async def cancel_run(self, raw_request: RawValue = NO_PAYLOAD) -> CancelAccepted:
        """Take one CancelRequest and have the run cancelled, by the server as well. Fails with `CancelRefused`, which
        says why."""
        return await self._doors.cancel(raw_request.payload.data)

    # -- queries ---------------------------------------------------------------------------------------------------

    @workflow.query
    def state(self) -> AgentRunState:
        """Where the run is."""
        return view_of(self._state)

    @workflow.query
    def agent(self) -> AgentSpec:
        """The frozen agent. Fails until it is loaded."""
        return self._state.agent

    @workflow.query
    def result(self) -> AgentRunResult:
        """The result so far; of a run that has ended, what it ended with."""
        return result_of(self._state)

    @workflow.query
    def ledger(self, raw_query: RawValue = NO_PAYLOAD) -> LedgerPage:
        """A page of the effect ledger, from a `LedgerQuery`."""
        query = LedgerQuery.from_wire(raw_query.payload.data or b"{}")
        return self._state.effects.page(query, self._state.context)

    @workflow.query
    def events(self, raw_query: RawValue = NO_PAYLOAD) -> EventsPage:
        """A page of the event log, from an `EventsQuery`."""
        page = self._state.journal.page(EventsQuery.from_wire(raw_query.payload.data or b"{}"))
        return page.model_copy(update={"attributes": self._state.context.attributes})

    @workflow.query
    def transcript(self, raw_query: RawValue = NO_PAYLOAD) -> TranscriptPage:
        """A page of the transcript, from a `TranscriptQuery`."""
        return self._state.transcript.page(TranscriptQuery.from_wire(raw_query.payload.data or b"{}"))

    @workflow.query
    def tool_results(self, raw_query: RawValue = NO_PAYLOAD) -> ToolResultsPage:
        """A page of complete outcomes, from a `ToolResultsQuery`."""
        return self._state.results.page(ToolResultsQuery.from_wire(raw_query.payload.data or b"{}"))
