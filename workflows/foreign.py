"""What another process answered, made fit to be looked at and passed on. Whatever came, a run must not end by it."""

import json

from pydantic import JsonValue
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

from contracts.outcomes import METADATA_MAX_BYTES, OUTCOME_MAX_BYTES, ToolOutcome, bounded
from contracts.records import MalformedPayload
from contracts.text import encodable, head, legal_json
from workflows.failures import told_outcome

# Deeper values break the JSON readers that they pass on their way.
MAX_DEPTH = 100


def json_of(raw: RawValue) -> JsonValue:
    """The JSON of a payload, small enough for another one; a sentence about it where that cannot be."""
    encoding = raw.payload.metadata.get("encoding", b"")
    if encoding != b"json/plain":
        return f"a payload with encoding {encoding.decode(errors='replace')!r}, where json/plain is expected"
    try:
        return _fitting(_legal(json.loads(raw.payload.data)))
    except (ValueError, RecursionError):
        return "JSON that cannot be read, or is nested too deeply"


def told(error: ActivityError) -> JsonValue:
    """The outcome that a failed attempt carries, to be checked as a returned one; None if it carries none."""
    outcome = told_outcome(error)
    return None if outcome is None else passable(outcome)


def passable(outcome: ToolOutcome) -> JsonValue:
    """An outcome that came inside something else, to be checked as one that came by itself."""
    try:
        return _fitting(_legal(outcome.model_dump(mode="json")))
    except (ValueError, RecursionError):
        return "an outcome that is nested too deeply"


def _legal(value: JsonValue) -> JsonValue:
    """The value as legal JSON. To go through a million items one by one takes longer than a workflow task may: what
    would be cut all the same is cut before."""
    size = _size(value)
    if size > OUTCOME_MAX_BYTES:
        if not isinstance(value, dict):
            return f"{size} bytes of JSON"
        value = _with_cut_data(value)
    return legal_json(_not_too_deep(value))


def _with_cut_data(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """An outcome as `bounded` cuts it, but at the price of its size instead of its items."""
    kept = {name: value[name] for name in ToolOutcome.model_fields if name in value and name != "projection"}
    for name, most in (("metadata", METADATA_MAX_BYTES), ("artifacts", OUTCOME_MAX_BYTES)):
        if _size(kept.get(name)) > most:
            del kept[name]
    data, text, metadata = kept.get("data"), kept.get("text"), kept.get("metadata", {})
    if _size(data) > METADATA_MAX_BYTES and isinstance(metadata, dict):
        whole = _compact({"ok": True, "message": text, "data": data} if text else data)
        kept["data"] = None
        if kept.get("ok") is True:
            kept["text"] = head(whole, OUTCOME_MAX_BYTES // 8)
            kept["metadata"] = {**metadata, "original_bytes": len(whole.encode())}
    return kept


def _compact(value: JsonValue) -> str:
    return encodable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _size(value: JsonValue) -> int:
    return len(_compact(value).encode())


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
