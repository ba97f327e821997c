"""Tools that share a client: it is opened before the worker takes work and closed after it has let the last call go."""

import asyncio
from collections.abc import Sequence
from types import ModuleType

import pytest
from pydantic import JsonValue

from activities.catalog import Catalog, CatalogError
from activities.tool_provider import ToolProvider
from activities.tooling import Tool, ToolError, tool
from contracts.outcomes import ToolOutcome
from contracts.policies import CompensationRule, RetryRule
from contracts.tools import Reconciliation, ToolInvocation, UndoRequest
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, says, script
from tests.support.tool_worker import outcomes, outcomes_of, tool_worker


class Account(ToolProvider):
    """Two tools over one session, and a diary of what happens to it."""

    def __init__(self, name: str, diary: list[str], mishap: str = "") -> None:
        self._name = name
        self._diary = diary
        self._mishap = mishap
        self._session: str | None = None
        self.balance = tool(side_effect="read", name=f"{name}_balance", description="Balance.")(self._balance)
        self.pay = tool(
            side_effect="write",
            name=f"{name}_pay",
            description="Pay.",
            compensation=CompensationRule(),
        )(self._pay)
        self.wire = tool(side_effect="write", name=f"{name}_wire", description="Wire.", reconciles=True)(self._wire)
        self.pay.undo(self._refund)
        self.wire.reconcile(self._look_up)

    def tools(self) -> Sequence[Tool]:
        return (self.pay, self.balance, self.wire)

    async def start(self) -> None:
        if self._mishap == "start":
            raise ConnectionError(f"{self._name} cannot be reached")
        self._session = f"session of {self._name}"
        self._diary.append(f"start {self._name}")

    async def close(self) -> None:
        self._session = None
        self._diary.append(f"close {self._name}")
        if self._mishap == "close":
            raise ConnectionError(f"{self._name} hung up")

    async def _balance(self, invocation: ToolInvocation) -> str:
        self._diary.append(f"balance {self._name}")
        return self._session or "closed"

    async def _pay(self) -> str:
        raise ToolError("internal", "half done", compensation_required=True, compensation_token=f"token {self._name}")

    def _refund(self, request: UndoRequest) -> str:
        self._diary.append(f"refund {self._name} by {self._session} and {request.compensation_token}")
        return "refunded"

    async def _wire(self) -> str:
        raise RuntimeError("the line went dead")

    def _look_up(self, invocation: ToolInvocation) -> Reconciliation:
        self._diary.append(f"look up {self._name} by {self._session}")
        return Reconciliation(state="done", outcome=ToolOutcome(ok=True, text=f"found at {self._name}"))


async def test_providers_live_exactly_as_long_as_the_worker(harness: Harness) -> None:
    diary: list[str] = []
    first, second = Account("first", diary), Account("second", diary)
    async with tool_worker(harness, first.balance, second.balance, providers=[first, second]):
        assert diary == ["start first", "start second"]
        both = await outcomes(harness)
        assert diary[2:] == ["balance first", "balance second"]
    assert diary[4:] == ["close second", "close first"]
    assert [outcome.text for outcome in both] == ["session of first", "session of second"]


async def test_a_provider_is_closed_after_the_last_call_has_ended(harness: Harness) -> None:
    diary: list[str] = []
    account, began = Account("bank", diary), asyncio.Event()

    @tool(side_effect="read")
    async def slow() -> str:
        """End after the worker was told to stop."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            diary.append("slow ended")
        return "never"

    async with tool_worker(harness, slow, providers=[account]):
        run = await harness.start(PROMPT)
        await began.wait()
    assert diary == ["start bank", "slow ended", "close bank"]
    await run.terminate()


async def test_a_provider_that_cannot_start_stops_the_worker_and_those_before_it_are_closed(harness: Harness) -> None:
    diary: list[str] = []
    providers = [Account("first", diary), Account("broken", diary, mishap="start"), Account("third", diary)]
    with pytest.raises(ConnectionError, match="broken cannot be reached"):
        async with tool_worker(harness, providers[0].balance, providers=providers):
            raise AssertionError("served without its provider")
    assert diary == ["start first", "close first"]


async def test_a_provider_that_cannot_close_does_not_keep_the_others_open(harness: Harness) -> None:
    diary: list[str] = []
    providers = [Account("first", diary), Account("broken", diary, mishap="close")]
    with pytest.raises(ConnectionError, match="broken hung up"):
        async with tool_worker(harness, providers[0].balance, providers=providers):
            pass
    assert diary[2:] == ["close broken", "close first"]


async def test_undo_and_reconciliation_go_to_the_provider_that_owns_the_tool(harness: Harness) -> None:
    diary: list[str] = []
    first, second = Account("first", diary), Account("second", diary)
    tools = (first.pay, second.pay, first.wire, second.wire)
    async with tool_worker(harness, *tools, providers=[first, second]):
        run = await harness.start(PROMPT)
        result = await run.result()
        found = (await outcomes_of(run))[2:]
    assert diary[2:-2] == [
        "refund first by session of first and token first",
        "refund second by session of second and token second",
        "look up first by session of first",
        "look up second by session of second",
    ]
    assert [outcome.text for outcome in found] == ["found at first", "found at second"]
    assert [effect.state for effect in result.effects] == ["compensated", "compensated", "done", "done"]


def test_the_order_of_providers_and_of_their_tools_is_kept() -> None:
    first, second = Account("b", []), Account("a", [])
    catalog = Catalog([scripted_agent(second.balance)], providers=[first, second, first])
    names = [f"{name}_{what}" for name in ("b", "a") for what in ("pay", "balance", "wire")]
    assert list(catalog.tools) == names
    assert catalog.providers == (first, second)


def test_two_providers_with_a_tool_of_one_name_are_refused_with_both_sources() -> None:
    with pytest.raises(CatalogError, match=r"two tools are named 'bank_pay': .*Account\._pay and .*Account\._pay"):
        Catalog([scripted_agent()], providers=[Account("bank", []), Account("bank", [])])


def test_a_providers_tool_that_cannot_keep_its_promise_is_refused() -> None:
    class Forgetful(ToolProvider):
        def __init__(self) -> None:
            self._wire = tool(side_effect="write", name="wire", reconciles=True)(self._send)

        def tools(self) -> Sequence[Tool]:
            return (self._wire,)

        def _send(self) -> None:
            """Send."""

    with pytest.raises(CatalogError, match=r"'wire' .*reconciles is declared, but nothing does it"):
        Catalog([scripted_agent()], providers=[Forgetful()])


def test_what_is_no_provider_is_none() -> None:
    module = ModuleType("app")
    vars(module).update(agent=scripted_agent(), account=Account("bank", []), nothing=None, kind=Account)
    catalog = Catalog.from_modules([module])
    assert catalog.providers == (vars(module)["account"],)
    with pytest.raises(CatalogError, match="None is no ToolProvider"):
        Catalog([scripted_agent()], providers=[None])  # type: ignore[list-item]


async def test_a_plain_function_needs_nothing_of_ours(harness: Harness) -> None:
    """Arguments in, text out: the invocation is for those that ask for it."""

    @tool(side_effect="read")
    def add(left: int, right: int = 5) -> int:
        """Add."""
        return left + right

    assert add(1, right=2) == 3
    replies = script(calls(("add", {"left": 3})), says("8."))
    async with harness.worker(scripted_agent(add), scripts={"main": replies}):
        result = await (await harness.start(PROMPT)).result()
    assert result.tool_results[0].text == "8"


async def test_the_calculator_of_the_third_seed(harness: Harness) -> None:
    """A result, a missing argument, an unknown tool and an exception, each answered in order with what it took."""

    @tool(side_effect="none", retry=RetryRule(max_attempts=1))
    def calculator(expr: str) -> str:
        """Add two numbers."""
        left, plus, right = expr.partition("+")
        if not plus:
            raise ValueError("Unsupported expr")
        return str(int(left) + int(right))

    wanted: list[tuple[str, dict[str, JsonValue]]] = [
        ("calculator", {"expr": "3+5"}),
        ("calculator", {}),
        ("x", {}),
        ("calculator", {"expr": "3*5"}),
    ]
    async with tool_worker(harness, calculator, calling=wanted, together=True):
        result = await (await harness.start(PROMPT)).result()
    added, missing, unknown, unsupported = result.tool_results
    assert (added.text, added.attempts) == ("8", 1)
    assert missing.error is not None
    assert (missing.error.category, missing.duration_ms, missing.attempts) == ("invalid_input", 0, 0)
    assert "expr" in missing.error.message
    assert unknown.error is not None
    assert (unknown.error.category, unknown.duration_ms, unknown.attempts) == ("not_found", 0, 0)
    assert "calculator" in unknown.error.message
    assert unsupported.error is not None
    assert unsupported.error.message.startswith("ValueError: Unsupported expr (reference ")
    assert unsupported.duration_ms > 0
    assert [answer.call_id for answer in result.tool_results] == [f"call_{number}" for number in range(1, 5)]
