"""A workflow that sets every search attribute of a run."""

from temporalio import workflow

from contracts import search_attributes as found


@workflow.defn(name="Found")
class Found:
    """Sets them and ends."""

    @workflow.run
    async def run(self) -> None:
        """Set each attribute once."""
        workflow.upsert_search_attributes(
            [
                found.AGENT_NAME.value_set("refund_desk"),
                found.AGENT_STATUS.value_set("waiting_for_approval"),
                found.AGENT_TENANT.value_set("acme"),
                found.AGENT_TOOL.value_set(["refund_order", "find_order"]),
                found.AGENT_PENDING_APPROVALS.value_set(2),
                found.AGENT_ROUNDS.value_set(3),
                found.AGENT_COST_USD.value_set(0.25),
                found.AGENT_NEEDS_OPERATOR.value_set(True),
            ]
        )
