"""From what a tool returned to an outcome that stands, in a fixed order: prepare, validate, version, bound, project."""

import json
from collections.abc import Callable

from pydantic import JsonValue

from activities.schemas import compile_schema
from activities.tool_secrets import NO_SECRETS, ToolSecrets
from contracts.outcomes import ToolOutcome, bounded, failure
from contracts.pointers import NotThere, at, scalar_text
from contracts.projection import project
from contracts.records import MalformedPayload
from contracts.tools import ToolContract, ToolInvocation

PrepareResult = Callable[[ToolOutcome], ToolOutcome | None]


def settle(
    contract: ToolContract,
    invocation: ToolInvocation,
    outcome: ToolOutcome,
    *,
    prepare: PrepareResult | None = None,
    secrets: ToolSecrets = NO_SECRETS,
) -> ToolOutcome:
    """The outcome as it enters history. Never raises for what the outcome holds."""
    if prepare is not None:
        outcome = prepare(outcome) or _refused(outcome)
    outcome = _validated(contract, outcome)
    outcome = _versioned(contract, outcome)
    outcome = bounded(secrets.hidden_in_outcome(outcome))
    projection = project(outcome, invocation.output_limits.tightened(contract.model_output))
    return outcome if projection.text is None else outcome.model_copy(update={"projection": projection})


def from_outside(contract: ToolContract, raw: JsonValue) -> ToolOutcome:
    """What another process answered, as an outcome; whatever it wrote as the runtime's own is dropped."""
    try:
        outcome = ToolOutcome.from_wire(json.dumps(raw).encode())
    except MalformedPayload as error:
        reason = f"the tool answered with something that is no ToolOutcome: {error}"
        return failure("unknown_outcome" if contract.has_effect else "internal", reason, code="no_outcome")
    return bounded(outcome).model_copy(update={"projection": None})


def _refused(outcome: ToolOutcome) -> ToolOutcome:
    """Not shown to anybody; what the attempt left behind is still there to be undone."""
    told = failure("permission_denied", "tool result rejected during preparation", code="result_refused")
    return told.model_copy(
        update={
            "compensation_required": outcome.compensation_required,
            "compensation_token": outcome.compensation_token,
        }
    )


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
