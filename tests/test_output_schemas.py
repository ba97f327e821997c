"""What a tool returned against what its contract promised, and the steps between the two: prepare, validate, version,
bound, project."""

import logging
from collections.abc import Callable

import pytest
from pydantic import JsonValue

from activities.catalog import Catalog, CatalogError
from activities.settling import from_outside, settle
from activities.tool_secrets import NO_SECRETS, ToolSecrets
from activities.tooling import LATER, Later, ToolError, tool
from contracts.outcomes import (
    METADATA_MAX_BYTES,
    OUTCOME_MAX_BYTES,
    Artifact,
    ErrorCategory,
    ToolErrorInfo,
    ToolOutcome,
    bounded,
    failure,
    full_text,
    says_done,
    says_not_done,
)
from contracts.policies import CompensationRule, OutputLimits, OutputValidation, ResourceVersionRule, RetryRule
from contracts.projection import model_text
from contracts.runs import ToolResultsPage
from contracts.tools import ToolContract, ToolInvocation, UndoRequest
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, events_of, says, script

TOTAL: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"t": {"type": "integer", "minimum": 1}},
    "required": ["t"],
}
REPORT = Artifact(name="report", uri="s3://reports/1", media_type="text/csv", bytes=7)
GOOD = ToolOutcome(ok=True, data={"t": 1})
BAD = ToolOutcome(ok=True, data={"t": 0}, artifacts=(REPORT,), resource_version="v7")
QUICK = RetryRule(max_attempts=3, initial_interval=0.01, max_interval=0.02, retryable=("internal", "permission_denied"))
Prepare = Callable[[ToolOutcome], ToolOutcome | None]


def contract(validation: OutputValidation = "strict", **settings: object) -> ToolContract:
    return ToolContract.model_validate(
        {
            "name": "count",
            "description": "Count.",
            "input_schema": {"type": "object"},
            "output_schema": TOTAL,
            "output_validation": validation,
            "side_effect": "read",
            **settings,
        }
    )


def invocation() -> ToolInvocation:
    return ToolInvocation(
        call_id="call_1", tool="count", version="1", arguments={}, idempotency_key="k", action_digest="d"
    )


def settled(
    outcome: ToolOutcome, by: ToolContract | None = None, prepare: Prepare | None = None, **secrets: str
) -> ToolOutcome:
    return settle(by or contract(), invocation(), outcome, prepare=prepare, secrets=ToolSecrets(secrets))


def told(outcome: ToolOutcome) -> tuple[ErrorCategory, str, bool]:
    assert outcome.error is not None
    assert not outcome.ok
    return outcome.error.category, outcome.error.code, outcome.error.retryable


# The output schema.


@pytest.mark.parametrize("validation", ["strict", "warn", "disabled"])
def test_a_success_that_keeps_the_promise_is_unchanged(validation: OutputValidation) -> None:
    assert settled(GOOD, contract(validation)) == GOOD


def test_strict_a_success_that_breaks_the_schema_is_a_failure_with_all_that_it_returned() -> None:
    outcome = settled(BAD)
    assert told(outcome) == ("internal", "invalid_output", False)
    assert outcome.error is not None
    assert "breaks its output schema: /t: must be at least 1; it is 0" in outcome.error.message
    assert (outcome.data, outcome.artifacts, outcome.resource_version) == ({"t": 0}, (REPORT,), "v7")
    assert outcome.metadata == {
        "output_schema_valid": False,
        "output_schema_issues": [
            {
                "instance_path": "/t",
                "schema_path": "/properties/t/minimum",
                "message": "must be at least 1; it is 0",
            }
        ],
    }
    # The model reads the failure and not a word of the result.
    assert model_text(outcome).startswith('{"ok": false, "error": {"category": "internal"')
    assert "s3://" not in model_text(outcome)


def test_warn_keeps_the_success_and_says_so_beside_it() -> None:
    outcome = settled(BAD, contract("warn"))
    assert outcome.ok
    assert outcome.metadata["output_schema_valid"] is False
    assert outcome.metadata["output_schema_issues"] == settled(BAD).metadata["output_schema_issues"]
    assert outcome.model_copy(update={"metadata": {}}) == BAD


def test_disabled_does_not_look() -> None:
    assert settled(BAD, contract("disabled")) == BAD


@pytest.mark.parametrize("validation", ["strict", "warn", "disabled"])
def test_rx04_an_error_is_never_replaced_by_a_schema_error(validation: OutputValidation) -> None:
    outcome = failure("invalid_input", "bad divisor", code="divisor")
    assert settled(outcome, contract(validation)) == outcome
    foreign = from_outside(contract(validation), {"ok": False, "text": "bad divisor"})
    assert "bad divisor" in model_text(settled(foreign, contract(validation)))


def test_a_text_is_held_against_the_schema_as_a_text() -> None:
    assert told(settled(ToolOutcome(ok=True, text='{"t": 1}')))[1] == "invalid_output"


def test_several_issues_are_told_at_once() -> None:
    schema: JsonValue = {**TOTAL, "additionalProperties": False}
    outcome = settled(ToolOutcome(ok=True, data={"t": 0, "u": 1}), contract("warn", output_schema=schema))
    issues = outcome.metadata["output_schema_issues"]
    assert isinstance(issues, list)
    assert len(issues) == 2


# The hook.


def test_a_hook_changes_what_everybody_sees_before_it_is_validated() -> None:
    seen: list[ToolOutcome] = []

    def double(outcome: ToolOutcome) -> ToolOutcome:
        seen.append(outcome)
        return outcome.model_copy(update={"data": {"t": 2}})

    assert settled(BAD, prepare=double).data == {"t": 2}
    assert seen == [BAD]
    assert told(settled(GOOD, prepare=lambda outcome: BAD))[1] == "invalid_output"


def test_a_hook_sees_failures_too_and_may_explain_them() -> None:
    explained = failure("conflict", "somebody else has it", code="taken")
    assert settled(failure("conflict", "409"), prepare=lambda outcome: explained) == explained


def explode(outcome: ToolOutcome) -> ToolOutcome:
    raise RuntimeError("secret " * 500_000)


def talk(outcome: ToolOutcome) -> ToolOutcome:
    return "fine"  # type: ignore[return-value]  # the mistake under test


def not_json(outcome: ToolOutcome) -> ToolOutcome:
    return outcome.model_copy(update={"data": object()})


@pytest.mark.parametrize("hook", [lambda outcome: None, explode, talk, not_json])
def test_a_hook_that_refuses_or_fails_takes_the_result_away_but_not_what_happened(
    hook: Prepare, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    refused = settled(BAD, prepare=hook)
    assert told(refused) == ("permission_denied", "result_refused", False)
    assert model_text(refused).count("tool result rejected during preparation") == 1
    assert (refused.data, refused.artifacts) == (None, ())
    assert (says_done(refused), says_not_done(refused)) == (True, False)

    left = ToolError("timeout", "half done", code="half", retryable=True, compensation_required=True)
    failed = settled(left.outcome(NO_SECRETS).model_copy(update={"compensation_token": "t"}), prepare=hook)
    # Nothing says that the effect was done, and what there is to undo is still known.
    assert told(failed) == ("timeout", "half", True)
    assert (failed.compensation_required, failed.compensation_token) == (True, "t")
    assert "half done" not in failed.model_dump_json()
    assert not says_done(failed)


def test_a_hook_that_makes_a_success_a_failure_gives_the_words_and_the_effect_was_done() -> None:
    outcome = settled(GOOD, prepare=lambda outcome: failure("conflict", "holds a name: ask without names"))
    assert told(outcome) == ("permission_denied", "result_refused", False)
    assert "holds a name: ask without names" in model_text(outcome)
    assert says_done(outcome)


def test_a_hook_cannot_write_the_projection() -> None:
    other = settled(
        ToolOutcome(ok=True, text="x" * 999), contract(output_schema=None, model_output=OutputLimits(max_bytes=256))
    )
    assert other.projection is not None
    outcome = settled(GOOD, prepare=lambda outcome: outcome.model_copy(update={"projection": other.projection}))
    assert outcome.projection is None


def test_a_hook_for_what_completes_later_is_refused_at_worker_start() -> None:
    @tool(side_effect="read", completes_later=True)
    def wait(invocation: ToolInvocation) -> Later:
        """Wait."""
        return LATER

    Catalog([scripted_agent(wait)])
    wait.prepare_result(lambda outcome: outcome)
    with pytest.raises(CatalogError, match=r"'wait' .*what comes later passes no prepare_result"):
        Catalog([scripted_agent(wait)])


# The order of the steps.


def test_the_steps_come_in_a_fixed_order() -> None:
    """Prepared before validated, validated before versioned, without secrets before projected, projected last."""
    rule = ResourceVersionRule(outcome="/v")
    promise = contract(resource_version=rule, model_output=OutputLimits(max_bytes=256, max_tokens=64))

    def hook(outcome: ToolOutcome) -> ToolOutcome:
        return outcome.model_copy(update={"data": {"t": 1, "v": 12, "key": "sk-12345678", "pad": "p" * 400}})

    outcome = settled(BAD.model_copy(update={"resource_version": None}), promise, hook, KEY="sk-12345678")
    assert outcome.ok
    assert outcome.resource_version == "12"
    assert isinstance(outcome.data, dict)
    assert outcome.data["key"] == "***"
    assert outcome.projection is not None
    assert "sk-12345678" not in outcome.model_dump_json()
    assert "***" in full_text(outcome)
    echoed = settled(ToolOutcome(ok=True, text="it is sk-12345678"), contract(output_schema=None), KEY="sk-12345678")
    assert echoed.text == "it is ***"
    # A result that breaks its schema has no version to read.
    assert settled(ToolOutcome(ok=True, data={"t": 0, "v": 12}), promise).resource_version is None


# What the model reads of a success, and what is kept of one too large.


def test_data_with_a_text_or_artifacts_is_read_as_one_envelope() -> None:
    with_text = ToolOutcome(ok=True, text="Zwei Zeilen für 界", data={"b": 1, "a": [1.0]})
    assert full_text(with_text) == ('{"artifacts":[],"data":{"a":[1],"b":1},"message":"Zwei Zeilen für 界","ok":true}')
    assert full_text(GOOD.model_copy(update={"artifacts": (REPORT,)})) == (
        '{"artifacts":[{"bytes":7,"media_type":"text/csv","name":"report","uri":"s3://reports/1"}],"data":{"t":1},'
        '"message":"","ok":true}'
    )
    assert full_text(GOOD) == '{"t":1}'
    assert full_text(ToolOutcome(ok=True, text="plain", artifacts=(REPORT,))) == "plain"


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (failure("not_found", ""), "not_found"),
        (failure("not_found", "", code="http_404"), "http_404"),
        (ToolOutcome(ok=False, text="gone", error=ToolErrorInfo(category="not_found")), "gone"),
        (ToolOutcome(ok=False), "internal"),
        (failure("not_found", "no such page", code="http_404"), "no such page"),
    ],
)
def test_a_failure_without_words_says_its_code(outcome: ToolOutcome, message: str) -> None:
    assert f'"message": "{message}"' in full_text(outcome)


def test_what_undo_and_later_calls_need_outlives_the_cut() -> None:
    outcome = ToolOutcome(
        ok=False,
        error=ToolErrorInfo(category="conflict", message="no"),
        data="d" * OUTCOME_MAX_BYTES,
        resource_version="v7",
        compensation_required=True,
        compensation_token="undo-1",
        artifacts=(REPORT,),
        metadata={"output_schema_valid": False},
    )
    cut = bounded(outcome)
    assert len(cut.model_dump_json().encode()) <= OUTCOME_MAX_BYTES
    assert (cut.compensation_required, cut.compensation_token, cut.resource_version) == (True, "undo-1", "v7")
    assert cut.artifacts == (REPORT,)
    assert cut.metadata["output_schema_valid"] is False
    assert bounded(cut) == cut

    wordy = bounded(outcome.model_copy(update={"metadata": {"note": "n" * (METADATA_MAX_BYTES + 1)}}))
    assert set(wordy.metadata) == {"original_bytes"}
    hopeless = bounded(outcome.model_copy(update={"compensation_token": "t" * OUTCOME_MAX_BYTES}))
    assert (hopeless.compensation_required, hopeless.compensation_token) == (True, None)


# Whole runs.


@pytest.mark.parametrize("how", ["strict", "hook", "not JSON"])
async def test_an_effect_whose_result_cannot_be_used_was_done_and_is_never_repeated(harness: Harness, how: str) -> None:
    """Whatever the retry rule lists: the money has moved."""
    paid: list[str] = []

    @tool(side_effect="write", idempotency="idempotent_with_key", output_schema=TOTAL, retry=QUICK)
    def pay(invocation: ToolInvocation) -> object:
        """Pay."""
        paid.append(invocation.idempotency_key)
        if how == "not JSON":
            return object()
        return BAD if how == "strict" else GOOD

    if how == "hook":
        pay.prepare_result(lambda outcome: None)

    async with harness.worker(scripted_agent(pay), scripts={"main": script(calls(("pay", {})), says("Done."))}):
        run = await harness.start(PROMPT)
        result = await run.result()
        page = await run.query("tool_results", result_type=ToolResultsPage)
        assert "effect_unknown" not in [event.type for event in await events_of(run)]
    assert len(paid) == 1
    assert [effect.state for effect in result.effects] == ["done"]
    error = result.tool_results[0].error
    assert error is not None
    assert error.code == {"strict": "invalid_output", "hook": "result_refused", "not JSON": "result_not_json"}[how]
    assert page.records[0].outcome.artifacts == ((REPORT,) if how == "strict" else ())


async def test_a_result_that_breaks_its_schema_is_never_asked_for_again(harness: Harness) -> None:
    ran: list[str] = []

    @tool(side_effect="read", output_schema=TOTAL, retry=QUICK)
    def listed() -> dict[str, int]:
        """Count."""
        ran.append("listed")
        return {"t": 0 if ran.count("listed") < 2 else 5}

    @tool(side_effect="read", output_schema=TOTAL)
    def unlisted() -> dict[str, int]:
        """Count."""
        ran.append("unlisted")
        return {"t": 0}

    replies = script(calls(("listed", {}), ("unlisted", {})), says("Done."))
    async with harness.worker(scripted_agent(listed, unlisted), scripts={"main": replies}):
        result = await (await harness.start(PROMPT)).result()
    assert sorted(ran) == ["listed", "unlisted"]
    assert [answered.ok for answered in result.tool_results] == [False, False]


async def test_a_huge_failure_is_still_undone(harness: Harness) -> None:
    undone: list[str | None] = []

    @tool(side_effect="write", compensation=CompensationRule())
    def book() -> ToolOutcome:
        """Book."""
        half = ToolError("conflict", "half", compensation_required=True, compensation_token="undo-1").outcome(
            NO_SECRETS
        )
        return half.model_copy(update={"metadata": {"log": "l" * 900_000}})

    @book.undo
    def unbook(request: UndoRequest) -> None:
        undone.append(request.compensation_token)

    async with harness.worker(scripted_agent(book), scripts={"main": script(calls(("book", {})), says("Done."))}):
        result = await (await harness.start(PROMPT)).result()
    assert undone == ["undo-1"]
    assert [effect.state for effect in result.effects] == ["compensated"]
