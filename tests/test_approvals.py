"""Consent: nothing that needs a yes runs without one, and a yes covers what was shown."""

import asyncio

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from activities.tooling import tool
from contracts.approvals import RecordedDecision, action_digest
from contracts.runs import AgentRunState
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Handle,
    Harness,
    calls,
    event_of,
    event_types,
    events_of,
    failure_of,
    pending_approval,
    says,
    script,
    state_of,
    transcript_of,
)
from tests.support.waiting import eventually

REPLIES = {"main": script(calls(("transfer", {"amount": 50})), says("Done."))}


class Ledger:
    """What the gated tool did."""

    def __init__(self) -> None:
        rows: list[int] = []

        @tool(side_effect="write", approval="always")
        def transfer(amount: int) -> str:
            """Move money."""
            rows.append(amount)
            return f"moved {amount}"

        self.rows = rows
        self.transfer = transfer


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


async def approve(run: Handle, approval_id: str, **more: object) -> None:
    await run.signal("resolve_approval", {"approval_id": approval_id, "resolution": "approved", "by": "ann", **more})


async def test_a_call_waits_for_the_signal_and_then_runs_as_it_was_shown(harness: Harness, ledger: Ledger) -> None:
    agent = scripted_agent(ledger.transfer, deadline_seconds=2_592_000)
    async with harness.worker(agent, scripts=REPLIES):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
        assert (await state_of(run)).status == "waiting_for_approval"
        assert (request.tool, request.arguments, request.side_effect) == ("transfer", {"amount": 50}, "write")
        assert request.action_digest == action_digest("transfer", "1", {"amount": 50})
        assert (request.expires_at - request.requested_at).days == 7
        assert ledger.rows == []
        await approve(run, request.approval_id, action_digest=request.action_digest, reason="looks right")
        result = await run.result()
        recorded = await event_of(run, "approval_recorded")
    assert ledger.rows == [50]
    assert result.text == "Done."
    assert (recorded.data["by"], recorded.data["resolution"], recorded.data["reason"]) == (
        "ann",
        "approved",
        "looks right",
    )


async def test_a_denied_call_is_told_to_the_model(harness: Harness, ledger: Ledger) -> None:
    async with harness.worker(scripted_agent(ledger.transfer), scripts=REPLIES):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
        await run.signal(
            "resolve_approval",
            {"approval_id": request.approval_id, "resolution": "denied", "by": "ann", "reason": "too much"},
        )
        result = await run.result()
    assert ledger.rows == []
    assert result.status == "completed"
    error = result.tool_results[0].error
    assert error is not None
    assert (error.category, error.code) == ("permission_denied", "denied")
    assert "denied by ann, not run: too much" in result.tool_results[0].text
    assert result.effects == ()


async def test_an_agent_may_fail_on_denial(harness: Harness, ledger: Ledger) -> None:
    async with harness.worker(scripted_agent(ledger.transfer, on_approval_denied="fail_run"), scripts=REPLIES):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
        await run.signal("resolve_approval", {"approval_id": request.approval_id, "resolution": "denied", "by": "ann"})
        error, partial = await failure_of(run)
    assert error.type == "ApprovalDenied"
    assert ledger.rows == []
    assert partial.status == "failed"


async def test_the_update_answers_with_the_decision_as_recorded(harness: Harness, ledger: Ledger) -> None:
    async with harness.worker(scripted_agent(ledger.transfer), scripts=REPLIES):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
        decision = {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"}
        recorded = await run.execute_update("decide", decision, result_type=RecordedDecision)
        await run.result()
    assert (recorded.approval_id, recorded.resolution, recorded.by) == (request.approval_id, "approved", "ann")
    assert ledger.rows == [50]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"approval_id": "approval-of-another-call"}, "no approval approval-of-another-call is open"),
        ({"action_digest": "0" * 64}, "action_digest does not match"),
        ({"arguments": {"amount": 5_000}}, "does not support arguments"),
        ({"scope": "tool"}, "does not support scope"),
        ({"signature": "c2ln"}, "does not support signature"),
        ({"resolution": "maybe"}, "resolution: Input should be 'approved' or 'denied'"),
        ({"by": ""}, "by: String should have at least 1 character"),
        ({"by": 7}, "by: Input should be a valid string"),
    ],
)
async def test_a_decision_that_is_not_exactly_right_changes_nothing(
    harness: Harness, ledger: Ledger, change: dict[str, object], why: str
) -> None:
    async with harness.worker(scripted_agent(ledger.transfer), scripts=REPLIES):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
        decision = {"approval_id": request.approval_id, "resolution": "approved", "by": "ann", **change}
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.execute_update("decide", decision)
        cause = refused.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == "DecisionRefused"
        assert why in cause.message
        assert why in str((await event_of(run, "approval_refused")).data["reason"])
        assert (await state_of(run)).status == "waiting_for_approval"
        assert ledger.rows == []
        await approve(run, request.approval_id)
        await run.result()
    assert ledger.rows == [50]


async def test_only_the_first_decision_counts(harness: Harness, ledger: Ledger) -> None:
    async with harness.worker(scripted_agent(ledger.transfer), scripts=REPLIES):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
        decisions = [
            run.signal("resolve_approval", {"approval_id": request.approval_id, "resolution": resolution, "by": "ann"})
            for resolution in ("denied", "approved", "approved", "denied")
        ]
        for decision in decisions:
            await decision
        await run.result()
        types = await event_types(run)
    assert ledger.rows == []
    assert types.count("approval_recorded") == 1


async def test_an_early_decision_is_refused_and_the_gate_stays_shut(harness: Harness, ledger: Ledger) -> None:
    run = await harness.start(PROMPT)
    await approve(run, "approval-guessed")
    async with harness.worker(scripted_agent(ledger.transfer), scripts=REPLIES):
        request = await pending_approval(run)
        assert request.approval_id != "approval-guessed"
        assert "approval_refused" in await event_types(run)
        assert ledger.rows == []
        await approve(run, request.approval_id)
        await run.result()
    assert ledger.rows == [50]


async def test_an_old_yes_does_not_open_the_next_gate(harness: Harness, ledger: Ledger) -> None:
    replies = {"main": script(calls(("transfer", {"amount": 1})), calls(("transfer", {"amount": 1})), says("Done."))}
    async with harness.worker(scripted_agent(ledger.transfer), scripts=replies):
        run = await harness.start(PROMPT)
        first = await pending_approval(run)
        await approve(run, first.approval_id)

        async def second_request() -> AgentRunState | None:
            state = await state_of(run)
            return state if state.pending_approvals and state.pending_approvals[0].call_id == "call_2" else None

        second = (await eventually(second_request)).pending_approvals[0]
        assert second.approval_id != first.approval_id
        assert second.action_digest == first.action_digest
        await approve(run, first.approval_id)
        await event_of(run, "approval_refused")
        assert ledger.rows == [1]
        await approve(run, second.approval_id)
        await run.result()
    assert ledger.rows == [1, 1]


async def test_no_call_of_a_batch_runs_before_every_decision_of_the_batch_is_in(
    harness: Harness, ledger: Ledger
) -> None:
    looked: list[str] = []

    @tool(side_effect="read")
    def look() -> str:
        """Look."""
        looked.append("looked")
        return "seen"

    replies = {
        "main": script(calls(("look", {}), ("transfer", {"amount": 1}), ("transfer", {"amount": 2})), says("Done."))
    }
    async with harness.worker(scripted_agent(ledger.transfer, look), scripts=replies):
        run = await harness.start(PROMPT)

        async def both() -> AgentRunState | None:
            state = await state_of(run)
            return state if len(state.pending_approvals) == 2 else None

        one, two = (await eventually(both)).pending_approvals
        await approve(run, two.approval_id)
        await event_of(run, "approval_recorded")
        assert (looked, ledger.rows) == ([], [])
        await run.signal("resolve_approval", {"approval_id": one.approval_id, "resolution": "denied", "by": "ann"})
        await run.result()
        answers = [message.ok for message in (await transcript_of(run)).messages if message.role == "tool"]
    assert (looked, ledger.rows) == (["looked"], [2])
    assert answers == [True, False, True]


async def test_a_request_nobody_answers_expires_and_is_not_run(harness: Harness, ledger: Ledger) -> None:
    async with harness.worker(scripted_agent(ledger.transfer), scripts=REPLIES):
        run = await harness.start({**PROMPT, "options": {"approval_expires_seconds": 1}})
        request = await pending_approval(run)
        result = await run.result()
        assert "approval_expired" in await event_types(run)
        assert (await state_of(run)).pending_approvals == ()
    assert ledger.rows == []
    assert result.tool_results[0].error is not None
    assert result.tool_results[0].error.code == "expired"
    assert "expired, not run" in result.tool_results[0].text
    assert request.expires_at > request.requested_at


async def test_an_agent_may_fail_on_expiry(harness: Harness, ledger: Ledger) -> None:
    spec = scripted_agent(ledger.transfer, approval_expires_seconds=1, on_approval_expired="fail_run")
    async with harness.worker(spec, scripts=REPLIES):
        error, _ = await failure_of(await harness.start(PROMPT))
    assert error.type == "ApprovalExpired"
    assert ledger.rows == []


async def test_approve_all_asks_for_reads_too(harness: Harness) -> None:
    @tool(side_effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    async with harness.worker(scripted_agent(look), scripts={"main": script(calls(("look", {})), says("Done."))}):
        run = await harness.start({**PROMPT, "options": {"approve": "all"}})
        request = await pending_approval(run)
        assert request.tool == "look"
        await approve(run, request.approval_id)
        assert (await run.result()).tool_results[0].text == "seen"


async def test_fifty_approvers_at_once_move_the_money_once(harness: Harness, ledger: Ledger) -> None:
    async with harness.worker(scripted_agent(ledger.transfer), scripts=REPLIES):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
        await asyncio.gather(*(approve(run, request.approval_id) for _ in range(50)))
        await run.result()
        recorded = [event for event in await events_of(run) if event.type == "approval_recorded"]
    assert ledger.rows == [50]
    assert len(recorded) == 1
