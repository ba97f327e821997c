"""Real worker processes, killed with SIGKILL at the moments that count. Effects are counted in a real SQLite table."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from runtime.dev_server import DevServer
from tests.apps import payments
from tests.support.harness import Harness, event_types, pending_approval, state_of
from tests.support.worker_process import worker_process

APP = "tests.apps.payments"


class Bank:
    """The world outside: what was paid, and how often each tool was called."""

    def __init__(self, path: Path) -> None:
        self.environment = {"PAYMENTS_DATABASE": str(path)}
        self._path = str(path)

    def kill_after_effect(self, tool: str, attempt: int) -> None:
        with closing(payments.connect(self._path)) as database:
            database.execute("INSERT INTO kills VALUES (?, ?)", (tool, attempt))

    def payments(self) -> list[int]:
        with closing(payments.connect(self._path)) as database:
            return [amount for (amount,) in database.execute("SELECT amount FROM payments")]

    def calls(self) -> list[tuple[str, int]]:
        with closing(payments.connect(self._path)) as database:
            return list(database.execute("SELECT key, attempt FROM calls ORDER BY rowid"))


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path / "bank.db")


async def test_killed_while_waiting_and_again_right_after_the_effect_there_is_one_refund(
    harness: Harness, server: DevServer, bank: Bank
) -> None:
    bank.kill_after_effect("refund", attempt=1)
    run = await harness.start({"agent": "refunder", "prompt": "Refund the broken lamp."})
    async with worker_process(APP, harness.task_queue, server.address, bank.environment) as worker:
        request = await pending_approval(run)
        await worker.kill()
    assert bank.payments() == []
    async with worker_process(APP, harness.task_queue, server.address, bank.environment) as worker:
        assert await pending_approval(run) == request
        await run.signal(
            "resolve_approval",
            {
                "approval_id": request.approval_id,
                "resolution": "approved",
                "by": "ann",
                "action_digest": request.action_digest,
            },
        )
        assert await worker.gone() == -9
    assert bank.payments() == [1800]
    async with worker_process(APP, harness.task_queue, server.address, bank.environment):
        result = await run.result()
    assert bank.payments() == [1800]
    assert (result.status, result.text) == ("completed", "Refunded.")
    assert [effect.state for effect in result.effects] == ["done"]
    (first, second) = bank.calls()
    assert (first[1], second[1]) == (1, 2)
    assert first[0] == second[0] == result.tool_results[0].idempotency_key


async def test_a_tool_that_must_not_be_repeated_is_not_and_its_outcome_is_unknown(
    harness: Harness, server: DevServer, bank: Bank
) -> None:
    bank.kill_after_effect("wire", attempt=1)
    run = await harness.start({"agent": "wirer", "prompt": "Wire the rent."})
    async with worker_process(APP, harness.task_queue, server.address, bank.environment) as worker:
        assert await worker.gone() == -9
    async with worker_process(APP, harness.task_queue, server.address, bank.environment):
        result = await run.result()
        assert "effect_unknown" in await event_types(run)
        assert [effect.state for effect in (await state_of(run)).effects] == ["unknown"]
    assert len(bank.calls()) == 1
    assert bank.payments() == [700]
    error = result.tool_results[0].error
    assert error is not None
    assert error.category == "unknown_outcome"
    assert "do not repeat it blindly" in error.message


async def test_a_worker_ends_on_sigterm_though_a_tool_does_not(harness: Harness, server: DevServer, bank: Bank) -> None:
    """Python waits for threads for ever; the worker leaves without the one that nobody can stop."""
    run = await harness.start({"agent": "stuck", "prompt": "Get stuck."})
    async with worker_process(APP, harness.task_queue, server.address, bank.environment) as worker:
        result = await run.result()
        assert result.tool_results[0].error is not None
        assert result.tool_results[0].error.category == "timeout"
        async with asyncio.timeout(30):
            assert await worker.terminate() == 0
