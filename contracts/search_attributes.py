"""What runs can be found by in Temporal, beside what Temporal itself knows of them.

A workflow may only set those that its namespace has: setting another one fails its task until somebody registers it.
"""

from collections.abc import Sequence

from temporalio.common import SearchAttributeKey

AnyKey = (
    SearchAttributeKey[str]
    | SearchAttributeKey[int]
    | SearchAttributeKey[float]
    | SearchAttributeKey[bool]
    | SearchAttributeKey[Sequence[str]]
)

AGENT_NAME = SearchAttributeKey.for_keyword("AgentName")
AGENT_STATUS = SearchAttributeKey.for_keyword("AgentStatus")
AGENT_TENANT = SearchAttributeKey.for_keyword("AgentTenant")
# Who acts: the user, else the agent, else the application, else the run. Temporal keeps it as it is, so ids, not names.
AGENT_SUBJECT = SearchAttributeKey.for_keyword("AgentSubject")
# The tools with a pending approval.
AGENT_TOOL = SearchAttributeKey.for_keyword_list("AgentTool")
AGENT_PENDING_APPROVALS = SearchAttributeKey.for_int("AgentPendingApprovals")
AGENT_ROUNDS = SearchAttributeKey.for_int("AgentRounds")
AGENT_COST_USD = SearchAttributeKey.for_float("AgentCostUsd")
# An effect that nobody saw the end of, or an undo that failed for good.
AGENT_NEEDS_OPERATOR = SearchAttributeKey.for_bool("AgentNeedsOperator")

ALL: tuple[AnyKey, ...] = (
    AGENT_NAME,
    AGENT_STATUS,
    AGENT_TENANT,
    AGENT_SUBJECT,
    AGENT_TOOL,
    AGENT_PENDING_APPROVALS,
    AGENT_ROUNDS,
    AGENT_COST_USD,
    AGENT_NEEDS_OPERATOR,
)
