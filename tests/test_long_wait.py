"""A run of 3 MB that waits three days for its approval, while everybody looks at it and the worker is replaced."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import tool
from contracts.agents import AgentSpec
from contracts.events import EventsPage
from contracts.policies import OutputLimits
from contracts.runs import AgentRunState
from contracts.tools import ToolInvocation
from tests.support.harness import Handle, Harness, histories, pending_approval

BLOCKS, BLOCKS_A_ROUND = 48, 12
BLOCK_BYTES = 65_000


class Bookkeeper:
    """A model that reads all blocks and then pays. It notes what it was told to be, and that nothing was missing."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.largest = 0

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        self.told.append((request.instructions, next(each.description for each in request.tools if each.name == "pay")))
        answers = [message.text for message in request.messages if message.role == "tool"]
        self.largest = max(self.largest, sum(map(len, answers)))
        if len(answers) < BLOCKS:
            numbers = range(len(answers), len(answers) + BLOCKS_A_ROUND)
            return Completion("", tuple(RawToolCall("read_block", f'{{"number": {number}}}') for number in numbers))
        if len(answers) == BLOCKS:
            return Completion("", (RawToolCall("pay", '{"amount": 7}'),))
        return Completion(f"{answers[-1]} after {BLOCKS} blocks")


@tool(side_effect="read")
def read_block(number: int) -> str:
    """Read a block of 65 KB."""
    words = f"entry {number} of the ledger, checked and found to be in order; "
    return (words * (BLOCK_BYTES // len(words) + 1))[:BLOCK_BYTES]


def bookkeeping_agent(paid: list[str], wording: str) -> AgentSpec:
    @tool(side_effect="write", approval="always", description=f"Pay, {wording}.")
    def pay(amount: int, invocation: ToolInvocation) -> str:
        paid.append(invocation.idempotency_key)
        return f"paid {amount}"

    return AgentSpec(
        name="bookkeeper",
        instructions=f"Keep the books, {wording}.",
        model="books:main",
        tools=(read_block, pay),
        max_rounds=BLOCKS + 1,
        tool_output=OutputLimits(max_tokens=1_000_000),
        max_tool_calls=BLOCKS + 1,
        deadline_seconds=2_592_000,
    )


@asynccontextmanager
async def looked_at(run: Handle) -> AsyncIterator[None]:
    """Ask for state and events again and again meanwhile, at least ten times."""
    over = asyncio.Event()

    async def look() -> None:
        looks = 0
        while looks < 10 or not over.is_set():
            # The time-skipping server loses a query now and then; then it is asked again.
            with suppress(RPCError):
                state = await run.query("state", result_type=AgentRunState, rpc_timeout=timedelta(seconds=2))
                page = await run.query("events", result_type=EventsPage, rpc_timeout=timedelta(seconds=2))
                assert state.status == "waiting_for_approval"
                assert page.events[-1].type == "approval_requested"
                looks += 1

    async with asyncio.TaskGroup() as watchers:
        watchers.create_task(look())
        yield
        over.set()


@pytest.mark.long
async def test_it_finishes_as_it_was_started(skipping: WorkflowEnvironment) -> None:
    harness = Harness(skipping.client)
    model, paid = Bookkeeper(), list[str]()
    async with harness.worker(bookkeeping_agent(paid, "as agreed"), providers={"books": model}, max_cached_workflows=0):
        run = await harness.start({"agent": "bookkeeper", "prompt": "Read everything, then pay 7."})
        request = await pending_approval(run)
        async with looked_at(run):
            await skipping.sleep(timedelta(days=1))
    changed = bookkeeping_agent(paid, "as changed by a deploy")
    async with harness.worker(changed, providers={"books": model}, max_cached_workflows=0):
        async with looked_at(run):
            await skipping.sleep(timedelta(days=2))
        assert await skipping.get_current_time() - request.requested_at >= timedelta(days=3)
        assert await pending_approval(run) == request
        assert paid == []
        await run.signal(
            "resolve_approval",
            {
                "approval_id": request.approval_id,
                "resolution": "approved",
                "by": "ann",
                "action_digest": request.action_digest,
            },
        )
        result = await run.result()
    assert result.text == f"paid 7 after {BLOCKS} blocks"
    assert len(paid) == 1
    assert [effect.state for effect in result.effects] == ["done"]
    assert set(model.told) == {("Keep the books, as agreed.", "Pay, as agreed.")}
    assert model.largest > 3_000_000
    sizes = [sum(event.ByteSize() for event in history.events) for history in await histories(skipping.client, run.id)]
    assert sum(sizes) < 4_500_000
    await harness.check_histories()
