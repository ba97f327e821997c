"""What another process answered, made fit to be looked at and passed on. Whatever came, a run must not end by it."""

import json

from pydantic import JsonValue
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

from contracts.outcomes import OUTCOME_MAX_BYTES, ToolOutcome, bounded
from contracts.records import MalformedPayload
from contracts.text import legal_json
from workflows.failures import told_outcome

# Deeper values break the JSON readers that they pass on their way.
MAX_DEPTH = 100


def json_of(raw: RawValue) -> JsonValue:
    """The JSON of a payload, small enough for another one; a sentence about it where that cannot be."""
    encoding = raw.payload.metadata.get("encoding", b"")
    if encoding != b"json/plain":
        return f"a payload with encoding {encoding.decode(errors='replace')!r}, where json/plain is expected"
    try:
        return _fitting(legal_json(_not_too_deep(json.loads(raw.payload.data))))
    except (ValueError, RecursionError):
        return "JSON that cannot be read, or is nested too deeply"


def told(error: ActivityError) -> JsonValue:
    """The outcome that a failed attempt carries, to be checked as a returned one; None if it carries none."""
    outcome = told_outcome(error)
    return None if outcome is None else passable(outcome)


def passable(outcome: ToolOutcome) -> JsonValue:
    """An outcome that came inside something else, to be checked as one that came by itself."""
    try:
        return _fitting(legal_json(_not_too_deep(outcome.model_dump(mode="json"))))
    except (ValueError, RecursionError):
        return "an outcome that is nested too deeply"


def _fitting(value: JsonValue) -> JsonValue:
    data = json.dumps(value).encode()
    if len(data) <= OUTCOME_MAX_BYTES:
        return value
    try:
        cut: JsonValue = bounded(ToolOutcome.from_wire(data)).model_dump(mode="json")
    except MalformedPayload:
        return f"{len(data)} bytes of JSON"
    return cut


def _not_too_deep(value: JsonValue) -> JsonValue:
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        level = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
    return value
