"""Keys stay the same where a call is repeated, and differ where it is meant twice."""

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.common import WorkflowIDReusePolicy

from activities.tooling import tool
from contracts.idempotency import approval_id, idempotency_key
from contracts.tools import ToolInvocation
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, histories, says, script


class Till:
    """Collects the keys its tool was called with."""

    def __init__(self) -> None:
        keys: list[str] = []

        @tool(side_effect="write", idempotency="idempotent_with_key")
        def pay(amount: int, invocation: ToolInvocation) -> str:
            """Pay."""
            keys.append(invocation.idempotency_key)
            return "paid"

        self.keys = keys
        self.pay = pay


REPLIES = {"main": script(calls(("pay", {"amount": 1}), ("pay", {"amount": 1})), says("Paid twice."))}


async def test_two_intended_identical_calls_have_two_keys(harness: Harness) -> None:
    till = Till()
    async with harness.worker(scripted_agent(till.pay), scripts=REPLIES):
        result = await (await harness.start(PROMPT)).result()
    assert len(set(till.keys)) == 2
    assert till.keys == [record.idempotency_key for record in result.tool_results]


async def test_a_workflow_reset_repeats_the_keys(harness: Harness) -> None:
    till = Till()
    async with harness.worker(scripted_agent(till.pay), scripts=REPLIES):
        run = await harness.start(PROMPT)
        await run.result()
        (history,) = await histories(harness.client, run.id)
        first_task = next(
            event.event_id
            for event in history.events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        )
        await harness.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=harness.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=run.result_run_id or ""),
                reason="test",
                workflow_task_finish_event_id=first_task,
                request_id="reset-1",
            )
        )
        again = harness.track(run.id)
        await again.result()
    assert len(till.keys) == 4
    assert till.keys[:2] == till.keys[2:]


async def test_a_new_execution_of_a_used_id_has_new_keys(harness: Harness) -> None:
    till = Till()
    async with harness.worker(scripted_agent(till.pay), scripts=REPLIES):
        for _ in range(2):
            run = await harness.client.start_workflow(
                "AgentRun",
                PROMPT,
                id=f"{harness.task_queue}-again",
                task_queue=harness.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            )
            await run.result()
    assert len(set(till.keys)) == 4


def test_a_key_is_made_of_everything_that_makes_a_call_and_nothing_else() -> None:
    """Pinned: keys of runs in flight must not change with a deploy."""
    chain = ("refund-1042", "01a22df5-20f0-71a0-bb5c-1b63b75023e3")
    key = idempotency_key(chain, "call_3", "refund_order", "1", {"b": 1.0, "a": "ä"})
    assert key == idempotency_key(chain, "call_3", "refund_order", "1", {"a": "ä", "b": 1})
    assert key == "73fe5aa4fd0b942d9ab05a87c7bd7a7c5dd0e252923414644b139ae262d6021c"
    others = [
        idempotency_key(("refund-1043", chain[1]), "call_3", "refund_order", "1", {"a": "ä", "b": 1}),
        idempotency_key((chain[0], "other"), "call_3", "refund_order", "1", {"a": "ä", "b": 1}),
        idempotency_key(chain, "call_4", "refund_order", "1", {"a": "ä", "b": 1}),
        idempotency_key(chain, "call_3", "refund", "1", {"a": "ä", "b": 1}),
        idempotency_key(chain, "call_3", "refund_order", "2", {"a": "ä", "b": 1}),
        idempotency_key(chain, "call_3", "refund_order", "1", {"a": "ä", "b": 2}),
    ]
    assert len({key, *others}) == 7
    assert approval_id(chain, "call_3") == "approval-e17963f1afdb8e27a3908a20ea1593c8"
