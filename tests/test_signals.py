"""Signals that nobody could have meant: each is recorded, none changes anything, and the run lives on."""

from collections.abc import Sequence

import pytest
from pydantic import JsonValue
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.common import RawValue

from activities.tooling import tool
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, events_of, pending_approval, says, script, state_of

BROKEN = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b"{nonsense"))
FOREIGN = RawValue(Payload(metadata={"encoding": b"who/knows"}, data=b"\xff"))


@tool(side_effect="write", approval="always")
def transfer(amount: int) -> str:
    """Move money."""
    return f"moved {amount}"


REPLIES = {"main": script(calls(("transfer", {"amount": 50})), says("Done."))}


@pytest.mark.parametrize(
    ("name", "arguments", "event_type"),
    [
        ("resolve_approval", [], "signal_refused"),
        ("resolve_approval", [{}, {}, {}], "signal_refused"),
        ("resolve_approval", [BROKEN], "approval_refused"),
        ("resolve_approval", [FOREIGN], "approval_refused"),
        ("resolve_approval", [None], "approval_refused"),
        ("resolve_approval", ["approved"], "approval_refused"),
        ("resolve_approval", [{"approve": "maybe"}], "approval_refused"),
        ("resolve_approval", [{"approval_id": ["x"], "resolution": True, "by": {}}], "approval_refused"),
        (
            "resolve_approval",
            [{"approval_id": "x" * 1_000_000, "resolution": "approved", "by": "a"}],
            "approval_refused",
        ),
        ("open_sesame", [{"approval_id": "x"}], "signal_refused"),
        ("open_sesame", [BROKEN, FOREIGN], "signal_refused"),
        ("add_message", [], "signal_refused"),
        ("add_message", ["hurry"], "signal_refused"),
        ("add_message", [{"id": "1"}], "signal_refused"),
        ("add_message", [{"id": "", "text": "hurry"}], "signal_refused"),
        ("add_message", [{"id": "1", "text": " "}], "signal_refused"),
        ("add_message", [{"id": "1", "text": "x" * 1_100_000}], "signal_refused"),
        ("add_message", [BROKEN], "signal_refused"),
    ],
)
async def test_nonsense_is_recorded_and_changes_nothing(
    harness: Harness, name: str, arguments: Sequence[JsonValue], event_type: str
) -> None:
    async with harness.worker(scripted_agent(transfer), scripts=REPLIES):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
        before = await state_of(run)
        await run.signal(name, args=arguments)
        after = await state_of(run)
        assert (after.status, after.pending_approvals) == (before.status, before.pending_approvals)
        last = (await events_of(run))[-1]
        assert last.type == event_type
        assert last.data["reason"]
        assert len(str(last.data)) < 5_000
        await run.signal(
            "resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"}
        )
        assert (await run.result()).text == "Done."


@pytest.mark.parametrize("arguments", [[{}, {}], [BROKEN], [FOREIGN], [7], [{"expected_revision": "1"}]])
async def test_a_cancel_run_that_does_not_decode_cancels_nothing(
    harness: Harness, arguments: Sequence[JsonValue]
) -> None:
    async with harness.worker(scripted_agent(transfer), scripts=REPLIES):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
        with pytest.raises(WorkflowUpdateFailedError):
            await run.execute_update("cancel_run", args=arguments)
        await run.execute_update("decide", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"})
        assert (await run.result()).text == "Done."


@pytest.mark.parametrize("arguments", [[], [{}, {}], [BROKEN], [FOREIGN], [7]])
async def test_an_update_that_does_not_decode_fails_for_its_sender_only(
    harness: Harness, arguments: Sequence[JsonValue]
) -> None:
    async with harness.worker(scripted_agent(transfer), scripts=REPLIES):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
        with pytest.raises(WorkflowUpdateFailedError):
            await run.execute_update("decide", args=arguments)
        with pytest.raises(WorkflowUpdateFailedError):
            await run.execute_update("decide_for_me", args=arguments)
        await run.execute_update("decide", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"})
        assert (await run.result()).text == "Done."


@pytest.mark.parametrize("query", ["events", "transcript", "ledger"])
@pytest.mark.parametrize("argument", [7, "x", {"limit": -1, "max_bytes": -1}, BROKEN])
async def test_a_query_that_does_not_decode_fails_for_its_sender_only(
    harness: Harness, query: str, argument: JsonValue
) -> None:
    async with harness.worker(scripted_agent(transfer), scripts={"main": script(says("Done."))}):
        run = await harness.start(PROMPT)
        await run.result()
        with pytest.raises(WorkflowQueryFailedError):
            await run.query(query, argument)
        assert await run.query(query) is not None


async def test_signals_before_the_first_step_are_recorded_too(harness: Harness) -> None:
    run = await harness.start(PROMPT)
    await run.signal("open_sesame")
    async with harness.worker(scripted_agent(transfer), scripts={"main": script(says("Done."))}):
        await run.result()
        events = await events_of(run)
    assert "signal_refused" in [event.type for event in events]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
