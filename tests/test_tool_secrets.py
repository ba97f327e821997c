"""Settings of tools: named in the contract, resolved in the worker, and nowhere in what a run leaves behind."""

import asyncio
import logging
import re
from pathlib import Path

import pytest
from pydantic import JsonValue

from activities.tooling import ToolError, tool
from contracts.outcomes import OUTCOME_MAX_BYTES, Artifact, ToolErrorInfo, ToolOutcome
from contracts.policies import CompensationRule, HeartbeatRule, RetryRule
from contracts.tools import Reconciliation, ToolInvocation, UndoOutcome, UndoRequest
from runtime.settings import StartupError, tool_settings
from tests.support.agents import PROMPT
from tests.support.harness import Harness, attempts, histories
from tests.support.tool_worker import outcomes, outcomes_of, texts_in, texts_in_history, tool_worker
from tests.support.waiting import eventually
from tests.support.worker_process import ended_worker

# With what JSON escapes, and the beginning of another one.
SECRET = 'TEST-TOKEN-9"\\é'
LONGER = f"{SECRET}-and-more"
SETTINGS = {"BANK_KEY": SECRET, "SHOP_KEY": LONGER, "STAGE": "dev"}
NAMES = tuple(SETTINGS)
ONCE = RetryRule(max_attempts=1)
TWICE = RetryRule(max_attempts=2, initial_interval=0.01, max_interval=0.02)


def leaks(texts: list[str]) -> list[str]:
    """The texts with more of the secret than could be there by chance."""
    return [text for text in texts if "TEST-TOKEN" in text]


async def test_a_tool_reads_the_settings_it_names_and_no_others(harness: Harness) -> None:
    @tool(side_effect="read", settings=("BANK_KEY",))
    def named(invocation: ToolInvocation) -> list[bool]:
        """Read settings."""
        found = [invocation.setting("BANK_KEY") == SECRET]
        for other in ("SHOP_KEY", "PATH"):
            with pytest.raises(KeyError, match=f"named does not name the setting {other}"):
                invocation.setting(other)
        return found

    async with tool_worker(harness, named, settings=SETTINGS):
        (outcome,) = await outcomes(harness)
    assert outcome.data == [True]


async def test_a_secret_that_a_tool_echoes_is_removed_before_it_is_recorded(harness: Harness) -> None:
    """In every part of an outcome, in what is raised, also where a cut goes through it."""

    @tool(side_effect="read", settings=NAMES, retry=ONCE)
    def as_text(invocation: ToolInvocation) -> str:
        """Echo a text, its end cut off."""
        beginning = f"key {SECRET}, {LONGER} on dev"
        # Unhidden, it would be cut to an eighth of the bound, twelve bytes into a secret.
        return beginning + "x" * (OUTCOME_MAX_BYTES // 8 - 12 - len(beginning.encode())) + SECRET * 20_000

    @tool(side_effect="read", settings=NAMES, retry=ONCE)
    def as_data(invocation: ToolInvocation) -> dict[str, JsonValue]:
        """Echo data."""
        return {SECRET: [{"header": f"Bearer {LONGER}"}], "stage": "dev"}

    @tool(side_effect="read", settings=NAMES, retry=ONCE)
    async def as_outcome(invocation: ToolInvocation) -> ToolOutcome:
        """Echo all over an outcome."""
        artifact = Artifact(name=SECRET, uri=f"https://files/{SECRET}", media_type=SECRET)
        error = ToolErrorInfo(category="conflict", code=SECRET, message="m" * 1_990 + SECRET)
        return ToolOutcome(
            ok=False,
            error=error,
            resource_version=SECRET,
            compensation_token=SECRET,
            artifacts=(artifact,),
            metadata={SECRET: SECRET},
        )

    @tool(side_effect="read", settings=NAMES, retry=ONCE)
    def as_error(invocation: ToolInvocation) -> None:
        """Fail in words, with the secret where they are cut."""
        raise ToolError("conflict", "m" * 1_945 + SECRET * 20, code="c" * 88 + SECRET)

    @tool(side_effect="read", settings=NAMES, retry=TWICE)
    def as_exception(invocation: ToolInvocation) -> None:
        """Raise, with the secret where the text is cut, and more than once."""
        raise RuntimeError("r" * 190 + SECRET)

    async with tool_worker(harness, as_text, as_data, as_outcome, as_error, as_exception, settings=SETTINGS):
        run = await harness.start({**PROMPT, "context": {"tenant_id": "acme"}})
        await run.result()
        text, data, outcome, error, exception = await outcomes_of(run)
        texts = await texts_in_history(harness, run.id)
    assert any("acme" in each for each in texts)
    assert leaks(texts) == []
    assert text.text.startswith("key ***, *** on dev")
    assert data.data == {"***": [{"header": "Bearer ***"}], "stage": "dev"}
    assert (outcome.resource_version, outcome.artifacts[0].name, outcome.metadata["***"]) == ("***", "***", "***")
    assert error.error is not None
    assert error.error.category == "conflict"
    assert exception.error is not None
    assert exception.metadata["tool_attempt"] == 2


async def test_a_secret_in_a_progress_report_reaches_no_heartbeat(harness: Harness) -> None:
    release = asyncio.Event()

    @tool(side_effect="read", settings=NAMES, heartbeat=HeartbeatRule(timeout=30), lost_after=1)
    async def report(invocation: ToolInvocation) -> None:
        """Report progress."""
        invocation.heartbeat(0.5, f"ppp using {SECRET}")
        await release.wait()

    async with tool_worker(harness, report, settings=SETTINGS):
        run = await harness.start(PROMPT)

        async def reported() -> list[str] | None:
            description = (await run.describe()).raw_description
            texts = [text for pending in description.pending_activities for text in texts_in(pending)]
            return texts if any("ppp" in text for text in texts) else None

        texts = await eventually(reported)
        release.set()
        await run.result()
    assert leaks([*texts, *await texts_in_history(harness, run.id)]) == []


async def test_undo_and_reconciliation_are_as_discreet_and_as_bounded(harness: Harness) -> None:
    @tool(side_effect="write", settings=NAMES, compensation=CompensationRule(max_attempts=2))
    async def pay(invocation: ToolInvocation) -> None:
        """Pay, and leave something behind."""
        raise ToolError("internal", "half done", compensation_required=True)

    @pay.undo
    def refund(request: UndoRequest) -> UndoOutcome:
        if request.invocation.setting("BANK_KEY") != SECRET:
            raise AssertionError("no key")
        return UndoOutcome(text=f"refunded with {SECRET} " + "u" * 3_000_000)

    @tool(side_effect="write", settings=NAMES, compensation=CompensationRule())
    async def ship(invocation: ToolInvocation) -> None:
        """Ship, and leave something behind."""
        raise ToolError("internal", "half done", compensation_required=True)

    @ship.undo
    async def call_back(request: UndoRequest) -> None:
        raise ToolError("unavailable", f"refused {SECRET} " + "e" * 3_000_000)

    @tool(side_effect="write", settings=NAMES, reconciles=True)
    async def wire(invocation: ToolInvocation) -> None:
        """Wire, and lose the line."""
        raise RuntimeError("the line went dead")

    @wire.reconcile
    async def look_up(invocation: ToolInvocation) -> Reconciliation:
        return Reconciliation(state="done", outcome=ToolOutcome(ok=True, text=f"by {SECRET} " + "w" * 3_000_000))

    async with tool_worker(harness, pay, ship, wire, settings=SETTINGS):
        run = await harness.start(PROMPT)
        result = await run.result()
        (history,) = await histories(harness.client, run.id)
    assert leaks(await texts_in_history(harness, run.id)) == []
    assert [effect.state for effect in result.effects] == ["compensated", "compensation_failed", "done"]
    assert attempts(history, "pay.undo") == [1]
    assert result.tool_results[2].truncated
    assert result.tool_results[2].text.startswith("Warning: tool output truncated")
    assert len(result.tool_results[2].text.encode()) <= 65_536


# -- exceptions --


async def test_an_exception_is_a_class_a_short_text_and_a_reference_that_the_log_has(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    url = "postgresql://app:p@ss/w0rd@db.internal:5432/shop"

    @tool(side_effect="read", retry=ONCE)
    def query() -> None:
        """Query."""
        try:
            raise OSError("socket closed")
        except OSError as cause:
            raise LookupError(
                f"cannot reach {url} (password='hunter2 x', sslkey=k3y) {'y' * 5_000}\nSELECT 1"
            ) from cause

    async with tool_worker(harness, query):
        run = await harness.start(PROMPT)
        result = await run.result()
        (outcome,) = await outcomes_of(run)
        texts = await texts_in_history(harness, run.id)
    assert outcome.error is not None
    found = re.fullmatch(
        r"LookupError: (cannot reach postgresql://\*\*\*@db.internal.*)\.\.\. \(reference ([0-9a-f]{8})\)",
        outcome.error.message,
    )
    assert found is not None, outcome.error.message
    assert len(found[1]) <= 200
    for part in ("w0rd", "hunter2", "k3y", "SELECT 1", "Traceback", "socket closed", __file__):
        assert not [text for text in texts if part in text]
    assert found[2] in result.tool_results[0].text
    (record,) = [record for record in caplog.records if found[2] in record.getMessage()]
    assert record.levelno == logging.ERROR
    assert "w0rd" in caplog.text
    assert "socket closed" in caplog.text
    assert __file__ in caplog.text


async def test_what_a_tool_raises_never_ends_the_run(harness: Harness) -> None:
    cases: list[tuple[BaseException, str]] = [
        (TimeoutError("slow"), "timeout"),
        (ConnectionRefusedError("no"), "unavailable"),
        (FileNotFoundError(2, "no such file"), "not_found"),
        (PermissionError(13, "not yours"), "permission_denied"),
        (KeyError("id"), "internal"),
        (SystemExit(3), "internal"),
        (StopIteration(), "internal"),
    ]

    @tool(side_effect="read", retry=ONCE)
    def fail(case: int) -> None:
        """Fail."""
        raise cases[case][0]

    async with tool_worker(harness, fail, calling=[("fail", {"case": number}) for number in range(len(cases))]):
        errors = [outcome.error for outcome in await outcomes(harness)]
    kinds = [type(raised).__name__ for raised, _ in cases]
    told = [(error.category, error.code) for error in errors if error]
    assert told == [(category, kind) for (_, category), kind in zip(cases, kinds, strict=True)]
    for kind, error in zip(kinds, errors, strict=True):
        assert error is not None
        assert re.fullmatch(rf"{kind}: .+ \(reference [0-9a-f]{{8}}\)", error.message)


async def test_a_long_refusal_and_a_long_chain_of_causes_cost_one_attempt_each(harness: Harness) -> None:
    @tool(side_effect="read")
    def refuse() -> None:
        """Refuse at length."""
        raise ToolError("permission_denied", "n" * 5_000, code="c" * 5_000)

    @tool(side_effect="write", idempotency="idempotent", retry=ONCE)
    def chain() -> None:
        """Raise for 200 causes of 20 kB."""
        error: Exception = ValueError("first")
        for _ in range(200):
            above = RuntimeError("c" * 20_000)
            above.__cause__ = error
            error = above
        raise error

    async with tool_worker(harness, refuse, chain):
        run = await harness.start(PROMPT)
        await run.result()
        refused, chained = await outcomes_of(run)
        (history,) = await histories(harness.client, run.id)
    assert (attempts(history, "refuse"), attempts(history, "chain")) == ([1], [1])
    assert refused.error is not None
    assert refused.error.category == "permission_denied"
    assert "[cut: this is the beginning of 5000 bytes]" in refused.error.message
    assert chained.error is not None
    assert (chained.error.category, chained.error.code) == ("unknown_outcome", "RuntimeError")
    assert max(event.ByteSize() for event in history.events) < 10_000


# -- the start of a worker --


def test_settings_that_are_missing_are_told_by_name_only() -> None:
    named = {"BANK_KEY": "pay", "SHOP_KEY": "buy", "EMPTY": "sell"}
    with pytest.raises(StartupError) as refused:
        tool_settings(named, {"BANK_KEY": SECRET, "EMPTY": ""})
    assert refused.value.problems == ("tool buy: set SHOP_KEY", "tool sell: set EMPTY")
    assert tool_settings({"BANK_KEY": "pay"}, {"BANK_KEY": SECRET, "OTHER": "x"}) == {"BANK_KEY": SECRET}


def test_a_worker_does_not_start_without_a_setting_that_a_tool_names(tmp_path: Path) -> None:
    (tmp_path / "payer.py").write_text(
        """
from activities.tooling import tool
from contracts.agents import AgentSpec
from contracts.tools import ToolInvocation


@tool(side_effect="write", settings=("BANK_KEY", "SHOP_KEY"))
def pay(invocation: ToolInvocation) -> None:
    "Pay."


agent = AgentSpec(name="payer", instructions="Pay.", model="scripted:examples/refund_desk/script.json", tools=(pay,))
"""
    )
    finished = ended_worker("--app", "payer", environment={"PYTHONPATH": str(tmp_path), "SHOP_KEY": SECRET})
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == "worker: tool pay: set BANK_KEY\n"
