"""What runs are found by: the custom search attributes of docs/protocol.md."""

from temporalio.common import SearchAttributeKey

AGENT_NAME = SearchAttributeKey.for_keyword("AgentName")
AGENT_STATUS = SearchAttributeKey.for_keyword("AgentStatus")
AGENT_TENANT = SearchAttributeKey.for_keyword("AgentTenant")
AGENT_TOOL = SearchAttributeKey.for_keyword_list("AgentTool")
AGENT_PENDING_APPROVALS = SearchAttributeKey.for_int("AgentPendingApprovals")
AGENT_ROUNDS = SearchAttributeKey.for_int("AgentRounds")
AGENT_COST_USD = SearchAttributeKey.for_float("AgentCostUsd")
AGENT_NEEDS_OPERATOR = SearchAttributeKey.for_bool("AgentNeedsOperator")

SEARCH_ATTRIBUTES = (
    AGENT_NAME,
    AGENT_STATUS,
    AGENT_TENANT,
    AGENT_TOOL,
    AGENT_PENDING_APPROVALS,
    AGENT_ROUNDS,
    AGENT_COST_USD,
    AGENT_NEEDS_OPERATOR,
)
