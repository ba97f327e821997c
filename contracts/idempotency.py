"""Names that stay the same over attempts, crashes and continue-as-new, and differ for every other call."""

from pydantic import JsonValue

from contracts.canonical import digest


def idempotency_key(chain: tuple[str, str], call_id: str, tool: str, version: str, arguments: JsonValue) -> str:
    """The key a tool hands to the outside world: 64 hex digits.

    `chain` is (workflow id, first execution run id). The call id carries the call's ordinal in the run, so that two
    intended identical calls differ. Neither the run id nor the attempt nor the provider's id is part of it: they
    change, repeat or are missing.
    """
    return digest([*chain, call_id, tool, version, digest(arguments)])


def approval_id(chain: tuple[str, str], call_id: str) -> str:
    """The handle of one call's approval. It differs for a new execution of the same workflow id, so that an old
    decision cannot open a new gate."""
    return f"approval-{digest([*chain, call_id])[:32]}"
