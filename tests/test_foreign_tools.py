"""Tools in another process: a plain Temporal worker that knows nothing of ours but the JSON of the protocol."""

import asyncio
import json
import os
import signal
import sys
import uuid
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.tooling import tool
from contracts.policies import CompensationRule, OutputLimits, RetryRule
from contracts.tools import ToolContract
from runtime.dev_server import DevServer
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import CHECKOUT, Harness, calls, event_of, failure_of, script, transcript_of
from tests.support.tool_worker import outcomes, outcomes_of, tool_worker

INPUT: dict[str, JsonValue] = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("mode", "undo", "reconcile")},
    "required": ["mode"],
    "additionalProperties": False,
}
OUTPUT: dict[str, JsonValue] = {"type": "object", "properties": {"rows": {"type": "integer"}}}


@dataclass(frozen=True)
class Elsewhere:
    """A running worker of somebody else."""

    task_queue: str
    diary: Path

    def lines(self, activity: str) -> list[dict[str, Any]]:
        """What it wrote of this activity."""
        lines = [json.loads(line) for line in self.diary.read_text().splitlines()]
        return [line for line in lines if line["activity"] == activity]


@asynccontextmanager
async def foreign_worker(address: str, diary: Path) -> AsyncIterator[Elsewhere]:
    """The other worker, serving as soon as the block begins."""
    task_queue = f"foreign-{uuid.uuid4().hex[:12]}"
    program = str(CHECKOUT / "tests" / "apps" / "foreign_worker.py")
    # In a directory of its own and without our path: there is nothing of ours to import.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, program, address, task_queue, str(diary), cwd=diary.parent, env=environment, stdout=PIPE
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"serving\n"
        yield Elsewhere(task_queue, diary)
    finally:
        process.send_signal(signal.SIGKILL)
        await process.communicate()


@pytest.fixture(scope="module")
async def elsewhere(server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Elsewhere]:
    """One other worker for this module."""
    async with foreign_worker(server.address, tmp_path_factory.mktemp("elsewhere") / "diary.jsonl") as worker:
        yield worker


def remote(elsewhere: Elsewhere, **more: Any) -> ToolContract:
    """The contract of a read over there. Nothing of ours fulfils it."""
    contract = {"name": "remote", "description": "Read.", "input_schema": INPUT, "side_effect": "read"}
    return ToolContract.model_validate({**contract, "task_queue": elsewhere.task_queue, "timeout": 20, **more})


def remote_write(elsewhere: Elsewhere, **more: Any) -> ToolContract:
    """The contract of a write over there."""
    return remote(elsewhere, name="remote_write", side_effect="write", **more)


async def test_a_result_is_checked_and_projected_as_one_of_our_own(harness: Harness, elsewhere: Elsewhere) -> None:
    contract = remote(elsewhere, version="7", output_schema=OUTPUT, settings=("REMOTE_KEY",))
    async with tool_worker(harness, contract, calling=[("remote", {"mode": "fine"})]):
        run = await harness.start({**PROMPT, "context": {"tenant_id": "acme"}})
        result = await run.result()
        (outcome,) = await outcomes_of(run)
    (answer,) = result.tool_results
    assert (answer.text, answer.attempts) == ('{"rows":2}', 1)
    assert outcome.metadata["from"] == "afar"
    invocation = elsewhere.lines("remote")[-1]["invocation"]
    assert invocation["idempotency_key"] == answer.idempotency_key
    assert (invocation["tool"], invocation["version"], invocation["call_id"]) == ("remote", "7", answer.call_id)
    assert invocation["arguments"] == {"mode": "fine"}
    assert (invocation["context"]["tenant_id"], invocation["context"]["run_id"]) == ("acme", run.id)


@pytest.mark.parametrize("name", ["remote", "remote_write"])
async def test_an_answer_that_is_no_outcome_is_told_as_such_and_a_write_is_unknown(
    harness: Harness, elsewhere: Elsewhere, name: str
) -> None:
    modes = ["words", "nothing", "list", "coerced", "bytes", "deep", "deeper", "large_nonsense"]
    tools = (remote(elsewhere), remote_write(elsewhere))
    async with tool_worker(harness, *tools, calling=[(name, {"mode": mode}) for mode in modes]):
        run = await harness.start(PROMPT)
        result = await run.result()
        answers = [outcome.error for outcome in await outcomes_of(run)]
    category = "internal" if name == "remote" else "unknown_outcome"
    assert [(error.category, error.code) for error in answers if error] == [(category, "no_outcome")] * len(modes)
    assert {effect.state for effect in result.effects} == (set() if name == "remote" else {"unknown"})


async def test_what_json_cannot_hold_and_what_is_not_theirs_to_say(harness: Harness, elsewhere: Elsewhere) -> None:
    modes = ["surrogate", "nan", "forged"]
    async with tool_worker(harness, remote(elsewhere), calling=[("remote", {"mode": mode}) for mode in modes]):
        run = await harness.start(PROMPT)
        await run.result()
        texts = [message.text for message in (await transcript_of(run)).messages if message.role == "tool"]
    assert texts == ["half \ufffd", '{"rows":"NaN"}', "the truth"]


async def test_a_success_of_another_shape_has_happened_but_is_not_shown(harness: Harness, elsewhere: Elsewhere) -> None:
    contract = remote_write(elsewhere, output_schema=OUTPUT)
    async with tool_worker(harness, contract, calling=[("remote_write", {"mode": "other_shape"})]):
        run = await harness.start(PROMPT)
        result = await run.result()
        (outcome,) = await outcomes_of(run)
    assert outcome.error is not None
    assert (outcome.error.category, outcome.error.code) == ("internal", "invalid_output")
    assert [effect.state for effect in result.effects] == ["done"]


@pytest.mark.parametrize(("mode", "size"), [("large", 1_900_000), ("largest", 2_097_000)])
async def test_a_result_near_the_servers_limit_is_cut_and_the_run_goes_on(
    harness: Harness, elsewhere: Elsewhere, mode: str, size: int
) -> None:
    contract = remote_write(elsewhere, model_output=OutputLimits(max_bytes=1_000))
    async with tool_worker(harness, contract, calling=[("remote_write", {"mode": mode})]):
        run = await harness.start(PROMPT)
        result = await run.result()
        (outcome,) = await outcomes_of(run)
    (answer,) = result.tool_results
    assert answer.truncated
    assert answer.text.startswith(f"Warning: tool output truncated (original bytes: {size}")
    assert len(answer.text.encode()) <= 1_000
    assert len(outcome.model_dump_json()) <= 262_144
    assert [effect.state for effect in result.effects] == ["done"]


async def test_a_failure_carries_its_outcome(harness: Harness, elsewhere: Elsewhere) -> None:
    modes = ["failed", "failed_large"]
    async with tool_worker(
        harness, remote_write(elsewhere), calling=[("remote_write", {"mode": mode}) for mode in modes]
    ):
        run = await harness.start(PROMPT)
        result = await run.result()
        plain, large = await outcomes_of(run)
    assert plain.error is not None
    assert (plain.error.category, plain.error.code, plain.error.message) == ("conflict", "taken", "it is taken")
    assert large.error is not None
    assert large.error.category == "conflict"
    assert len(large.model_dump_json()) <= 262_144
    assert len(result.tool_results[1].text.encode()) <= 65_536
    assert [effect.state for effect in result.effects] == ["failed", "failed"]


@pytest.mark.parametrize("name", ["remote", "remote_write"])
async def test_a_failure_that_carries_no_failed_outcome_is_one_all_the_same(
    harness: Harness, elsewhere: Elsewhere, name: str
) -> None:
    modes = ["failed_fine", "failed_nonsense", "failed_bytes", "failed_deep", "raise"]
    tools = (remote(elsewhere), remote_write(elsewhere))
    async with tool_worker(harness, *tools, calling=[(name, {"mode": mode}) for mode in modes]):
        run = await harness.start(PROMPT)
        result = await run.result()
        answers = [outcome.error for outcome in await outcomes_of(run)]
    category = "internal" if name == "remote" else "unknown_outcome"
    assert [error.category for error in answers if error] == [category] * len(modes)
    assert max(len(error.message.encode()) for error in answers if error) <= 2_000
    assert {effect.state for effect in result.effects} == (set() if name == "remote" else {"unknown"})


async def test_an_exception_is_repeated_where_the_contract_allows(harness: Harness, elsewhere: Elsewhere) -> None:
    contract = remote(elsewhere, retry=RetryRule(max_attempts=2, initial_interval=0.01))
    async with tool_worker(harness, contract, calling=[("remote", {"mode": "flaky"})]):
        (outcome,) = await outcomes(harness)
    assert outcome.ok
    assert [line["attempt"] for line in elsewhere.lines("remote")[-2:]] == [1, 2]


async def test_a_worker_with_another_version_is_passed_over(harness: Harness, elsewhere: Elsewhere) -> None:
    async with tool_worker(harness, remote_write(elsewhere), calling=[("remote_write", {"mode": "another_version"})]):
        run = await harness.start(PROMPT)
        result = await run.result()
    assert result.tool_results[0].ok
    first, second = elsewhere.lines("remote_write")[-2:]
    assert first["invocation"]["idempotency_key"] == second["invocation"]["idempotency_key"]


async def test_a_call_that_nobody_takes_did_not_run(harness: Harness, elsewhere: Elsewhere) -> None:
    contract = remote_write(elsewhere, taken_within=0.3).model_copy(update={"task_queue": f"{harness.task_queue}-none"})
    async with tool_worker(harness, contract, calling=[("remote_write", {"mode": "fine"})]):
        run = await harness.start(PROMPT)
        async with asyncio.timeout(15):
            result = await run.result()
        (outcome,) = await outcomes_of(run)
    assert outcome.error is not None
    assert (outcome.error.category, outcome.error.code) == ("unavailable", "no_worker")
    assert [effect.state for effect in result.effects] == ["failed"]


async def test_an_undo_elsewhere_at_the_end_of_a_run_and_after_it(harness: Harness, elsewhere: Elsewhere) -> None:
    """The same request over there, whoever asks: the run at its end, or an operator afterwards."""

    @tool(side_effect="read")
    def fail() -> str:
        """Fail."""
        raise RuntimeError("no")

    contract = remote_write(elsewhere, compensation=CompensationRule())
    careless = scripted_agent(contract, fail).model_copy(update={"name": "careless"})
    careful = careless.model_copy(update={"name": "careful", "compensate_on": ("failed",)})
    run_input = {"prompt": "Go.", "options": {"on_tool_error": "fail_run"}, "context": {"tenant_id": "acme"}}
    replies = script(calls(("remote_write", {"mode": "fine"})), calls(("fail", {})))
    async with harness.worker(careless, careful, scripts={"main": replies}):
        _, partial = await failure_of(await harness.start({"agent": "careful", **run_input}))
        undone = elsewhere.lines("undo")[-1]["request"]
        left = await harness.start({"agent": "careless", **run_input})
        await failure_of(left)
        again = await (await harness.compensate({"workflow_id": left.id})).result()
    assert [effect.state for effect in partial.effects] == ["compensated"]
    assert undone["invocation"]["context"]["tenant_id"] == "acme"
    assert undone["invocation"]["idempotency_key"] == partial.tool_results[0].idempotency_key
    assert undone["outcome"]["data"] == {"rows": 2}
    assert [(effect.tool, effect.state) for effect in again.effects] == [("remote_write", "compensated")]
    undone_later = elsewhere.lines("undo")[-1]["request"]
    assert undone_later["invocation"]["context"]["tenant_id"] == "acme"
    assert undone_later["outcome"]["data"] == {"rows": 2}


@pytest.mark.parametrize(
    ("undo", "state"),
    [
        ("", "compensated"),
        ("nothing_to_undo", "compensated"),
        ("silent", "compensated"),
        ("words", "compensation_failed"),
        ("raise", "compensation_failed"),
    ],
)
async def test_an_undo_elsewhere(harness: Harness, elsewhere: Elsewhere, undo: str, state: str) -> None:
    contract = remote_write(elsewhere, compensation=CompensationRule())
    async with tool_worker(harness, contract, calling=[("remote_write", {"mode": "raise", "undo": undo})]):
        run = await harness.start(PROMPT)
        result = await run.result()
        await event_of(run, "compensation_completed" if state == "compensated" else "compensation_failed")
    assert [effect.state for effect in result.effects] == [state]
    request = elsewhere.lines("undo")[-1]["request"]
    assert request["outcome"]["error"]["category"] == "unknown_outcome"
    assert request["invocation"]["idempotency_key"] == result.tool_results[0].idempotency_key


@pytest.mark.parametrize(
    ("reconcile", "state", "event"),
    [
        ("done", "done", "done"),
        ("not_done", "failed", "not_done"),
        ("unknown", "unknown", "unknown"),
        ("words", "unknown", "unknown"),
    ],
)
async def test_a_reconciliation_elsewhere(
    harness: Harness, elsewhere: Elsewhere, reconcile: str, state: str, event: str
) -> None:
    contract = remote_write(elsewhere, reconciles=True)
    async with tool_worker(harness, contract, calling=[("remote_write", {"mode": "raise", "reconcile": reconcile})]):
        run = await harness.start(PROMPT)
        result = await run.result()
        recorded = await event_of(run, "effect_reconciled")
    assert [effect.state for effect in result.effects] == [state]
    assert recorded.data["state"] == event
    # What was found out is bounded as any result is.
    assert result.tool_results[0].truncated == (reconcile == "done")


def test_the_other_worker_imports_nothing_of_ours() -> None:
    source = (CHECKOUT / "tests" / "apps" / "foreign_worker.py").read_text()
    imports = {line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imports == {"asyncio", "json", "sys", "typing", "temporalio"}


async def test_a_later_refusal_elsewhere_does_not_speak_for_an_earlier_attempt(harness: Harness) -> None:
    @activity.defn(name="pay")
    async def pay(invocation: dict[str, Any]) -> dict[str, Any]:
        if activity.info().attempt == 1:
            raise RuntimeError("committed, then the line went dead")
        told = {"ok": False, "error": {"category": "conflict"}}
        raise ApplicationError("no", told, type="ToolFailed", non_retryable=True)

    contract = ToolContract(
        name="pay",
        description="Pay.",
        input_schema={"type": "object"},
        side_effect="write",
        idempotency="idempotent_with_key",
        task_queue=f"{harness.task_queue}-foreign",
        retry=RetryRule(max_attempts=2, initial_interval=0.01),
    )
    elsewhere = Worker(harness.client, task_queue=f"{harness.task_queue}-foreign", activities=[pay])
    async with elsewhere, tool_worker(harness, contract):
        result = await (await harness.start(PROMPT)).result()
    assert [effect.state for effect in result.effects] == ["unknown"]
