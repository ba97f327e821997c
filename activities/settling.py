"""From what a tool returned to an outcome that stands, in a fixed order: prepare, validate, version, bound, project."""

from collections.abc import Callable, Mapping

from pydantic import JsonValue, ValidationError

from activities.schemas import compile_schema
from contracts.outcomes import ToolOutcome, bounded, failure
from contracts.pointers import NotThere, at, scalar_text
from contracts.projection import project
from contracts.records import describe
from contracts.tools import ToolContract, ToolInvocation

PrepareResult = Callable[[ToolOutcome], ToolOutcome | None]
# Shorter settings are words like "true" or "dev": replacing them would garble text and hide nothing.
SECRET_MIN_LENGTH = 8


def settle(
    contract: ToolContract,
    invocation: ToolInvocation,
    outcome: ToolOutcome,
    *,
    prepare: PrepareResult | None = None,
    secrets: Mapping[str, str],
) -> ToolOutcome:
    """The outcome as it enters history. Never raises for what the outcome holds."""
    if prepare is not None:
        outcome = prepare(outcome) or failure(
            "permission_denied", "tool result rejected during preparation", code="result_refused"
        )
    outcome = _validated(contract, outcome)
    outcome = _versioned(contract, outcome)
    outcome = bounded(_without_secrets(outcome, secrets))
    projection = project(outcome, invocation.output_limits.tightened(contract.model_output))
    return outcome if projection.text is None else outcome.model_copy(update={"projection": projection})


def from_outside(contract: ToolContract, raw: JsonValue) -> ToolOutcome:
    """What another process answered, as an outcome; whatever it wrote as the runtime's own is dropped."""
    try:
        outcome = ToolOutcome.model_validate(raw)
    except ValidationError as error:
        reason = f"the tool answered with something that is no ToolOutcome: {describe(error)}"
        return failure("unknown_outcome" if contract.has_effect else "internal", reason, code="no_outcome")
    if not outcome.ok and outcome.error is None:
        outcome = failure("internal", outcome.text or "the tool failed and did not say why", code="no_reason")
    return outcome.model_copy(update={"projection": None})


def _validated(contract: ToolContract, outcome: ToolOutcome) -> ToolOutcome:
    """Successes are held against the output schema. A success that breaks it has happened: it is never repeated."""
    if not outcome.ok or contract.output_schema is None or contract.output_validation == "disabled":
        return outcome
    value: JsonValue = outcome.text if outcome.data is None else outcome.data
    issues = [str(issue) for issue in compile_schema(contract.output_schema).issues(value)]
    if not issues:
        return outcome
    marks: dict[str, JsonValue] = {"output_schema_valid": False, "output_schema_issues": list[JsonValue](issues)}
    if contract.output_validation == "strict":
        reason = f"the tool ran, but its result breaks its output schema: {'; '.join(issues)}"
        outcome = failure("internal", reason, code="invalid_output")
    return outcome.model_copy(update={"metadata": {**outcome.metadata, **marks}})


def _versioned(contract: ToolContract, outcome: ToolOutcome) -> ToolOutcome:
    if contract.resource_version is None or outcome.resource_version is not None or not outcome.ok:
        return outcome
    try:
        version = scalar_text(at(contract.resource_version.outcome, outcome.data))
    except NotThere:
        return outcome
    return outcome.model_copy(update={"resource_version": version})


def _without_secrets(outcome: ToolOutcome, secrets: Mapping[str, str]) -> ToolOutcome:
    """Settings that the tool was given must not come back in what it returns."""
    values = [value for value in secrets.values() if len(value) >= SECRET_MIN_LENGTH]
    if not any(value in outcome.model_dump_json() for value in values):
        return outcome
    return ToolOutcome.model_validate(_replaced(outcome.model_dump(mode="python"), values))


def _replaced(value: JsonValue, secrets: list[str]) -> JsonValue:
    match value:
        case str():
            for secret in secrets:
                value = value.replace(secret, "***")
            return value
        case dict():
            return {str(_replaced(key, secrets)): _replaced(item, secrets) for key, item in value.items()}
        case list() | tuple():
            return [_replaced(item, secrets) for item in value]
    return value
