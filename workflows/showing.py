"""What a run shows of itself: its state while it goes on, and its result, bounded in total."""

from temporalio import workflow

from contracts.messages import Usage
from contracts.models import Cost
from contracts.runs import AgentRunResult, AgentRunState, LimitUse
from contracts.text import cut, json_size
from workflows.run_state import RunState
from workflows.tool_results import MOST_RECORDS

RESULT_TEXT_MAX_BYTES = 262_144
RESULT_MAX_BYTES = 1_048_576


def view_of(state: RunState) -> AgentRunState:
    """Answer of the query `state`."""
    return AgentRunState(
        status=state.status,
        revision=state.journal.sequence,
        round=state.limits.rounds if state.is_loaded else 0,
        agent=state.agent.name if state.is_loaded else None,
        pending_approvals=state.approvals.pending,
        usage=state.spending.usage if state.is_loaded else Usage(),
        cost=state.spending.cost if state.is_loaded else Cost(),
        model=state.model if state.is_loaded else None,
        limits=_uses(state) if state.is_loaded else {},
        effects=state.effects.shown,
        last_sequence=state.journal.sequence,
        error=state.error,
        previous_run_id=state.previous_run_id,
    )


def result_of(state: RunState) -> AgentRunResult:
    """What the run ends with, bounded in total: one that does not fit would keep the run from ending at all."""
    for texts_max_bytes in (RESULT_TEXT_MAX_BYTES, 16_384, 1_024):
        for most_records in (MOST_RECORDS, 100, 10, 0):
            result = _result(state, texts_max_bytes, most_records)
            if len(result.model_dump_json().encode()) <= RESULT_MAX_BYTES:
                return result
    return result


def _result(state: RunState, texts_max_bytes: int, most_records: int) -> AgentRunResult:
    info = workflow.info()
    records = state.results.records[-most_records:] if most_records else ()
    return AgentRunResult(
        workflow_id=info.workflow_id,
        run_id=info.run_id,
        status=state.status,
        text=cut(state.text, texts_max_bytes),
        output=state.output if json_size(state.output) <= texts_max_bytes else None,
        finish_reason=state.finish_reason,
        rounds=state.limits.rounds if state.is_loaded else 0,
        tool_results=records,
        tool_results_omitted=state.results.omitted + len(state.results.records) - len(records),
        usage=state.spending.usage if state.is_loaded else Usage(),
        cost=state.spending.cost if state.is_loaded else Cost(),
        effects=state.effects.shown,
        last_sequence=state.journal.sequence,
        error=state.error,
        stop=state.stop,
    )


def _uses(state: RunState) -> dict[str, LimitUse]:
    uses = {**state.limits.uses(), **state.spending.uses()}
    if state.deadline is not None:
        used, most = workflow.now() - state.started_at, state.deadline - state.started_at
        uses["deadline_seconds"] = LimitUse(used=used.total_seconds(), max=most.total_seconds())
    return uses
