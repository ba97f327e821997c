"""From what a tool returned to an outcome that stands, in a fixed order: prepare, validate, version, bound, project."""

import json
import logging
from collections.abc import Callable

from pydantic import JsonValue

from activities.schemas import compile_schema
from activities.tool_secrets import NO_SECRETS, ToolSecrets
from contracts.outcomes import ToolOutcome, bounded, failure
from contracts.pointers import NotThere, at, scalar_text
from contracts.projection import project
from contracts.records import MalformedPayload
from contracts.tools import ToolContract, ToolInvocation

log = logging.getLogger("steadyhand.tools")

PrepareResult = Callable[[ToolOutcome], ToolOutcome | None]
_REFUSED = "tool result rejected during preparation"


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
        outcome = _prepared(contract, prepare, outcome, secrets)
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


def _prepared(
    contract: ToolContract, prepare: PrepareResult, outcome: ToolOutcome, secrets: ToolSecrets
) -> ToolOutcome:
    """What the tool's own hook makes of the outcome. One that raises or returns anything else refuses it.

    A hook decides what is read, not what happened: a success that it takes away was done all the same, and a failure
    keeps its category and what there is to undo.
    """
    try:
        prepared = prepare(outcome)
        if prepared is not None:
            prepared = bounded(secrets.hidden_in_outcome(prepared.model_copy(update={"projection": None})))
    # SystemExit and its like too: what was done would be unknown, and what they say would leave as it is.
    except BaseException:
        log.exception("prepare_result of tool %s failed", contract.name)
        prepared = None
    if prepared is not None and (prepared.ok or not outcome.ok):
        return prepared
    if outcome.error is not None:
        error = outcome.error.model_copy(update={"message": _REFUSED})
        return outcome.model_copy(update={"error": error, "text": "", "data": None})
    told = prepared.error.message if prepared is not None and prepared.error is not None else _REFUSED
    return failure("permission_denied", told, code="result_refused")


def _validated(contract: ToolContract, outcome: ToolOutcome) -> ToolOutcome:
    """Successes are held against the output schema. A success that breaks it has happened: it is never repeated, and
    all that it returned stays in the outcome."""
    if not outcome.ok or contract.output_schema is None or contract.output_validation == "disabled":
        return outcome
    value: JsonValue = outcome.text if outcome.data is None else outcome.data
    issues = compile_schema(contract.output_schema).issues(value)
    if not issues:
        return outcome
    marks: dict[str, JsonValue] = {
        "output_schema_valid": False,
        "output_schema_issues": [issue.as_json() for issue in issues],
    }
    outcome = outcome.model_copy(update={"metadata": {**outcome.metadata, **marks}})
    if contract.output_validation == "warn":
        return outcome
    reason = f"the tool ran, but its result breaks its output schema: {'; '.join(map(str, issues))}"
    told = failure("internal", reason, code="invalid_output")
    return outcome.model_copy(update={"ok": False, "error": told.error})


def _versioned(contract: ToolContract, outcome: ToolOutcome) -> ToolOutcome:
    if contract.resource_version is None or outcome.resource_version is not None or not outcome.ok:
        return outcome
    try:
        version = scalar_text(at(contract.resource_version.outcome, outcome.data))
    except NotThere:
        return outcome
    return outcome.model_copy(update={"resource_version": version})
