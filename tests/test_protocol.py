"""Names that are in histories and in other people's code. A change here breaks somebody: it needs a version, a replay
fixture and a line in docs/protocol.md."""

from pathlib import Path
from typing import get_args

import pytest
from temporalio import activity, workflow

from contracts import (
    activities,
    agents,
    approvals,
    context,
    deltas,
    effects,
    events,
    messages,
    models,
    outcomes,
    policies,
    runs,
    tools,
    transcripts,
)
from contracts.records import Record
from workflows.agent_run import AgentRun
from workflows.compensate_run import CompensateRun

DOCUMENT = (Path(__file__).resolve().parents[1] / "docs" / "protocol.md").read_text()

FIELDS: dict[type[Record], str] = {
    runs.AgentRunInput: "agent prompt messages context options carried",
    runs.RunOptions: "max_rounds max_tool_calls max_total_tokens max_cost_usd deadline_seconds "
    "approval_expires_seconds approve on_tool_error tool_concurrency tool_output output_schema "
    "stop_on_tools compensate_on",
    runs.AgentRunResult: "workflow_id run_id status text output finish_reason rounds tool_results "
    "tool_results_omitted usage cost effects last_sequence error stop",
    runs.Stop: "reason calls",
    runs.CancelRequest: "reason expected_revision",
    runs.CancelAccepted: "revision reason",
    runs.UserMessage: "id text",
    runs.AgentRunState: "status revision round agent pending_approvals usage cost model limits effects last_sequence "
    "error previous_run_id",
    runs.ToolResultRecord: "call_id tool ok text error duration_ms attempts idempotency_key truncated",
    effects.EffectRecord: "call_id tool state compensation",
    effects.Compensation: "state text attempts category",
    effects.LedgerEntry: "effect invocation outcome",
    effects.LedgerQuery: "before max_bytes",
    effects.LedgerPage: "entries next total context",
    effects.CompensateRunInput: "workflow_id run_id call_ids carried",
    effects.UndoneSoFar: "before effects effects_omitted effects_left",
    effects.CompensateRunResult: "workflow_id run_id effects effects_omitted",
    effects.ReadLedgerRequest: "workflow_id run_id before",
    effects.ClosedLedger: "run_id entries contracts context next",
    runs.LimitUse: "used max",
    runs.RunError: "type message",
    messages.Message: "role text tool_calls call_id ok opaque",
    messages.ToolCall: "call_id tool arguments provider_call_id",
    messages.InvalidToolCall: "call_id tool issues reason raw arguments provider_call_id",
    messages.Usage: "input_tokens output_tokens cached_input_tokens cache_write_tokens reasoning_tokens",
    context.ExecutionContext: "run_id trace_id request_id tenant_id user_id application_id workspace_id "
    "conversation_id agent_id locale deadline metadata",
    approvals.ApprovalRequest: "approval_id call_id tool tool_version arguments action_digest side_effect reason "
    "requested_at expires_at capabilities approvals_required approvals groups subject_id context",
    approvals.ApprovalDecision: "approval_id resolution by reason action_digest arguments scope signature",
    approvals.RecordedDecision: "approval_id call_id tool action_digest resolution by reason at",
    outcomes.ToolOutcome: "ok text data error resource_version compensation_required compensation_token artifacts "
    "metadata projection",
    outcomes.ToolErrorInfo: "category code message retryable",
    tools.ToolInvocation: "call_id tool version arguments idempotency_key action_digest attempt deadline "
    "expected_resource_version output_limits after_unknown context",
    tools.ToolContract: "schema_version name version description input_schema output_schema output_validation "
    "side_effect idempotency approval timeout lost_after heartbeat retry compensation reconciles resource_version "
    "capabilities model_output settings task_queue taken_within completes_later metadata",
    tools.UndoRequest: "invocation outcome compensation_token",
    tools.UndoOutcome: "state text attempts",
    tools.ReconcileRequest: "invocation",
    tools.Reconciliation: "state outcome",
    tools.SettleRequest: "agent_digest invocation raw",
    policies.HeartbeatRule: "timeout minimum_interval",
    policies.CompensationRule: "timeout max_attempts",
    policies.ResourceVersionRule: "require_expected argument outcome",
    policies.OutputLimits: "max_bytes max_tokens",
    policies.Capability: "name risk summary resources metadata",
    runs.ToolResultsQuery: "start max_bytes",
    runs.ToolResultsPage: "records next total first_available",
    runs.CompleteResult: "call_id tool outcome",
    outcomes.Artifact: "name uri media_type bytes sha256",
    outcomes.Projection: "report text",
    outcomes.ProjectionReport: "truncated original_bytes original_tokens projected_bytes projected_tokens max_bytes "
    "max_tokens limiting",
    policies.RetryRule: "max_attempts initial_interval max_interval multiplier jitter retryable",
    agents.AgentSpec: "name instructions model tools max_rounds max_tool_calls approval_expires_seconds tool_output "
    "on_approval_denied on_approval_expired fallback_models settings context output_schema web_search prices "
    "max_total_tokens max_cost_usd deadline_seconds max_failures_per_tool stop_on_tools compensate_on",
    models.ModelSettings: "temperature top_p max_output_tokens stop seed tool_choice parallel_tool_calls "
    "reasoning_effort native_output",
    models.ContextBudget: "window reserved_output recent_messages recent_exchanges",
    models.Price: "input output cached_input cache_write reasoning",
    models.Cost: "currency input cached output reasoning total unpriced_tokens",
    deltas.DeltaEvent: "workflow_id run_id key attempt sequence type text call call_id tool finish_reason usage error "
    "retried",
    deltas.DeltaBatch: "events",
    events.Event: "sequence type at data",
    events.EventsQuery: "after_sequence limit",
    events.EventsPage: "events first_available attributes",
    events.EventEnvelope: "module name ids subject_id sequence at attributes data",
    transcripts.TranscriptQuery: "start max_bytes",
    transcripts.TranscriptPage: "messages next total first_available",
    transcripts.TranscriptRef: "count digest tail first",
    activities.ModelRequest: "agent_digest transcript next_call model key round tokens_left cost_left_usd context",
    activities.ModelReply: "text calls finish_reason truncated paused opaque output output_issues usage "
    "usage_estimated attempts failed_usage replaced_characters",
    activities.ModelCallFailure: "usage wait_seconds",
    activities.LoadAgentRequest: "agent output_schema",
    activities.ReviewRequest: "agent_digest calls context text hooks",
    activities.ReviewedCalls: "calls stop",
}


@pytest.mark.parametrize("record", FIELDS, ids=lambda record: record.__name__)
def test_the_fields_of_a_payload(record: type[Record]) -> None:
    assert list(record.model_fields) == FIELDS[record].split()


def test_the_names_of_workflow_queries_and_updates() -> None:
    definition = workflow._Definition.must_from_class(AgentRun)
    assert definition.name == "AgentRun"
    assert set(definition.queries) == {
        "state",
        "agent",
        "events",
        "transcript",
        "tool_results",
        "ledger",
        "result",
    }
    assert set(definition.updates) == {"decide", "cancel_run"}
    assert set(definition.signals) == {None}
    assert workflow._Definition.must_from_class(CompensateRun).name == "CompensateRun"


def test_the_names_of_activities() -> None:
    for method, name in (
        (activities.AgentActivities.load_agent, "load_agent"),
        (activities.ModelActivities.call_model, "call_model"),
        (activities.ToolActivities.settle_outcome, "settle_outcome"),
        (activities.ReviewActivities.review_calls, "review_calls"),
        (activities.CancelActivities.request_cancel, "request_cancel"),
        (activities.LedgerActivities.read_ledger, "read_ledger"),
    ):
        definition = activity._Definition.from_callable(method)
        assert definition is not None
        assert definition.name == name


@pytest.mark.parametrize(
    "name",
    [*get_args(runs.ErrorType), *get_args(events.EventType), *get_args(runs.RunStatus), *get_args(deltas.DeltaType)],
)
def test_every_error_event_and_status_is_documented(name: str) -> None:
    assert f"`{name}`" in DOCUMENT


def test_the_errors_events_and_statuses() -> None:
    assert " ".join(get_args(runs.RunStatus)) == (
        "created running waiting_for_approval completed failed cancelled timed_out"
    )
    assert " ".join(get_args(runs.ErrorType)) == (
        "InvalidInput UnknownAgent MaxRoundsExceeded MaxToolCallsExceeded TokenBudgetExceeded CostBudgetExceeded "
        "DeadlineExceeded ContextWindowExceeded ModelRefused ModelUnavailable ModelAuthentication ModelBadRequest "
        "ModelBehaviour ToolFailed ApprovalDenied ApprovalExpired CompensationFailed PayloadTooLarge InternalError"
    )
    assert " ".join(get_args(outcomes.ErrorCategory)) == (
        "invalid_input not_found permission_denied conflict rate_limited timeout cancelled unavailable internal "
        "unknown_outcome"
    )
