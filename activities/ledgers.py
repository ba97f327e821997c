"""`read_ledger`: what a closed run has done that can still be undone."""

from temporalio import activity
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.heartbeats import beating
from activities.runs import ask
from contracts.activities import LedgerActivities
from contracts.agents import AgentSpec
from contracts.effects import ClosedLedger, LedgerPage, LedgerQuery, ReadLedgerRequest

_STILL_THERE = (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)


class Ledgers(LedgerActivities):
    """Reads the ledgers of closed runs, by query."""

    @activity.defn(name="read_ledger")
    async def read_ledger(self, request: ReadLedgerRequest) -> ClosedLedger:
        """One page of them. It takes a worker that serves `AgentRun` to answer."""
        async with beating():
            handle = activity.client().get_workflow_handle(request.workflow_id, run_id=request.run_id)
            closed = await _closed(handle, request)
            run = activity.client().get_workflow_handle(closed.id, run_id=closed.run_id)
            page = await ask(run, "ledger", LedgerQuery(before=request.before), LedgerPage)
            entries = tuple(entry for entry in page.entries if entry.is_undoable)
            agent = await ask(run, "agent", None, AgentSpec) if entries else None
        tools = {entry.effect.tool for entry in entries}
        contracts = tuple(contract for contract in agent.tools if contract.name in tools) if agent else ()
        return ClosedLedger(
            run_id=closed.run_id or "", entries=entries, contracts=contracts, context=page.context, next=page.next
        )


async def _closed(handle: WorkflowHandle[object, object], request: ReadLedgerRequest) -> WorkflowExecutionDescription:
    """The run, if it is closed: a running one undoes its effects itself, and may be making new ones."""
    try:
        found = await handle.describe()
    except RPCError as error:
        if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise
        raise _refused(f"there is no run {request.workflow_id!r} {request.run_id or ''}".rstrip()) from None
    if found.workflow_type != "AgentRun":
        raise _refused(f"{request.workflow_id!r} is a {found.workflow_type}, and no AgentRun")
    if found.status in _STILL_THERE:
        again = "cancel it first" if found.status == WorkflowExecutionStatus.RUNNING else "name its last execution"
        raise _refused(f"the run {request.workflow_id!r} goes on: {again}")
    return found


def _refused(reason: str) -> ApplicationError:
    return ApplicationError(reason, type="InvalidInput", non_retryable=True)
