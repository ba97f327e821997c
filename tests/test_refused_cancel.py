"""A server that does not let workers cancel runs: `cancel_run` stops the run all the same, and says how it ended."""

from typing import Any

import pytest
from temporalio.client import CancelWorkflowInput, Client, Interceptor, OutboundInterceptor, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.tooling import tool
from contracts.runs import AgentRunResult, CancelAccepted
from runtime.dev_server import DevServer
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Harness,
    calls,
    event_types,
    pending_approval,
    script,
    state_of,
    transcript_of,
)


class NotAllowed(Interceptor):
    """What a server with an authorizer does whose policy lets this client do everything but cancel."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _CannotCancel(next)


class _CannotCancel(OutboundInterceptor):
    async def cancel_workflow(self, input: CancelWorkflowInput) -> None:
        raise RPCError("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, b"")


def restricted(client: Client) -> Client:
    config: Any = client.config()
    return Client(**{**config, "interceptors": [NotAllowed()]})


@tool(side_effect="write", approval="always")
def pay() -> str:
    """Pay."""
    raise AssertionError("paid without an approval")


async def test_a_run_that_the_server_will_not_cancel_stops_and_ends_by_name(server: DevServer) -> None:
    harness = Harness(restricted(server.client))
    async with harness.worker(scripted_agent(pay), scripts={"main": script(calls(("pay", {})))}):
        run = await harness.start(PROMPT)
        await pending_approval(run)
        accepted: CancelAccepted = await run.execute_update(
            "cancel_run", {"reason": "a mistake"}, result_type=CancelAccepted
        )
        with pytest.raises(WorkflowFailureError) as ended:
            await run.result()
        state = await state_of(run)
        types = await event_types(run)
        messages = (await transcript_of(run)).messages
    assert accepted.reason == "a mistake"
    cause = ended.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "InternalError"
    assert "the server could not be asked to cancel it" in cause.message
    # What Temporal shows is another matter: the run itself was cancelled, and says so.
    partial = AgentRunResult.model_validate(cause.details[0])
    assert (state.status, partial.status, state.pending_approvals) == ("cancelled", "cancelled", ())
    assert types[-1] == "run_cancelled"
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    await harness.check_histories()
