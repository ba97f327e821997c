"""Scenarios of consent, of runs that wait for it, and of chains of executions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.common import RawValue

from activities.tooling import tool
from contracts.approvals import ApprovalRequest
from tests.histories.rounds import DONE, look, show
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, calls, failure_of, pending_approval, script, state_of

BROKEN = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b"{nonsense"))
FOREIGN = RawValue(Payload(metadata={"encoding": b"who/knows"}, data=b"\xff"))


@tool(side_effect="write", approval="always")
def transfer(amount: int) -> str:
    """Move money."""
    return f"moved {amount}"


@asynccontextmanager
async def asking(harness: Harness, *amounts: int, on_denial: str = "tell_model") -> AsyncIterator[None]:
    """A worker whose agent asks for these transfers, all in one round."""
    wanted = [("transfer", {"amount": amount}) for amount in amounts or (50,)]
    agent = scripted_agent(transfer, on_approval_denied=on_denial)
    async with harness.worker(agent, scripts={"main": script(calls(*wanted), DONE)}):
        yield


def answer(request: ApprovalRequest, **more: object) -> dict[str, object]:
    """A decision of this request: approved, unless `more` says otherwise."""
    return {"approval_id": request.approval_id, "resolution": "approved", "by": "ann", **more}


async def approval_granted(harness: Harness) -> Handle:
    async with asking(harness):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
        await run.signal("resolve_approval", answer(request, action_digest=request.action_digest, reason="right"))
        assert [effect.state for effect in (await run.result()).effects] == ["done"]
    return run


async def approval_denied(harness: Harness) -> Handle:
    async with asking(harness):
        run = await harness.start(PROMPT)
        await run.signal(
            "resolve_approval", answer(await pending_approval(run), resolution="denied", reason="too much")
        )
        assert (await run.result()).effects == ()
        await show(run, "tool_refused")
    return run


async def approval_expired(harness: Harness) -> Handle:
    async with asking(harness):
        run = await harness.start({**PROMPT, "options": {"approval_expires_seconds": 1}})
        await run.result()
        await show(run, "approval_expired", "tool_refused")
    return run


async def denial_fails_the_run(harness: Harness) -> Handle:
    async with asking(harness, on_denial="fail_run"):
        run = await harness.start(PROMPT)
        await run.signal("resolve_approval", answer(await pending_approval(run), resolution="denied"))
        assert (await failure_of(run))[0].type == "ApprovalDenied"
    return run


async def approve_all(harness: Harness) -> Handle:
    """A read waits as well. The batch is decided by updates, last call first."""
    wanted = calls(("look", {"item": "a"}), ("transfer", {"amount": 1}))
    async with harness.worker(scripted_agent(look, transfer), scripts={"main": script(wanted, DONE)}):
        run = await harness.start({**PROMPT, "options": {"approve": "all"}})
        await pending_approval(run)
        one, two = (await state_of(run)).pending_approvals
        await run.execute_update("decide", answer(two, resolution="denied"))
        await run.execute_update("decide", answer(one))
        assert [record.ok for record in (await run.result()).tool_results] == [True, False]
    return run


CHANGES: tuple[dict[str, object], ...] = (
    {"approval_id": "approval-of-another-call"},
    {"resolution": "maybe"},
    {"by": ""},
    {"action_digest": "0" * 64},
    {"arguments": {"amount": 5_000}},
    {"scope": "tool"},
    {"signature": "c2ln"},
)


async def refused_signals(harness: Harness) -> Handle:
    """Everything that must not open the gate: before the first step, while nobody serves the run, and while one waits
    for the answer. Then what does open it, and the contrary."""
    run = await harness.start(PROMPT)
    await run.signal("open_sesame", args=[BROKEN, FOREIGN])
    async with asking(harness):
        request = await pending_approval(run)
    wrong: list[list[object]] = [[], [{}, {}, {}], [BROKEN], [FOREIGN], [None], ["approved"], [{"approve": "maybe"}]]
    wrong += [[answer(request, **change)] for change in CHANGES]
    for arguments in wrong:
        await run.signal("resolve_approval", args=arguments)
    async with asking(harness):
        refusals: tuple[object, ...] = (BROKEN, answer(request, action_digest="0" * 64))
        for refused in refusals:
            with pytest.raises(WorkflowUpdateFailedError):
                await run.execute_update("decide", refused)
        await show(run, "signal_refused", "approval_refused")
        await run.signal("resolve_approval", answer(request))
        await run.signal("resolve_approval", answer(request, resolution="denied"))
        assert [effect.state for effect in (await run.result()).effects] == ["done"]
    return run


async def cancelled_waiting(harness: Harness) -> Handle:
    async with asking(harness):
        run = await harness.start(PROMPT)
        await pending_approval(run)
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        await show(run, "run_cancelled")
    return run


async def open_approval(harness: Harness) -> Handle:
    """Nobody has decided yet."""
    async with asking(harness):
        run = await harness.start(PROMPT)
        await pending_approval(run)
    return run


# -- chains: a server that suggests early to continue as new


async def rounds_continued(harness: Harness) -> Handle:
    """Continues between rounds."""
    replies = script(*(calls(("look", {"item": item})) for item in "ab"), DONE)
    async with harness.worker(scripted_agent(look), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        assert len((await run.result()).tool_results) == 2
    return run


async def _wait_over(run: Handle) -> None:
    """Deny the first of two requests, then send signals until the run waits in another execution."""
    await run.signal("resolve_approval", answer(await pending_approval(run), resolution="denied"))
    while (state := await state_of(run)).previous_run_id is None:
        await run.signal("junk")
    assert len(state.pending_approvals) == 1


async def approval_continued(harness: Harness) -> Handle:
    """Continues while it waits, with one decision taken, and is then approved."""
    async with asking(harness, 1, 2):
        run = await harness.start(PROMPT)
        await _wait_over(run)
        await run.signal("resolve_approval", answer(await pending_approval(run)))
        assert [effect.state for effect in (await run.result()).effects] == ["done"]
    return run


async def open_approval_continued(harness: Harness) -> Handle:
    """Continues while it waits, and waits still."""
    async with asking(harness, 1, 2):
        run = await harness.start(PROMPT)
        await _wait_over(run)
    return run


SCENARIOS = (
    approval_granted,
    approval_denied,
    approval_expired,
    denial_fails_the_run,
    approve_all,
    refused_signals,
    cancelled_waiting,
    open_approval,
)
CHAINS = (rounds_continued, approval_continued, open_approval_continued)
