"""How much of a model's reply may enter a run's history."""

from activities.model_attempt import final
from activities.providers.interface import Completion
from contracts.text import json_size, legal_json

# A reply enters history once: well below the 2 MiB that Temporal takes in one payload.
REPLY_MAX_BYTES = 1_048_576
# Each call takes the run's workflow task some tenths of a millisecond; one that takes two seconds is retried for ever.
MOST_CALLS = 1_000
# A call without a name, an id and arguments takes about this much there.
_CALL_MIN_BYTES = 40


def raw_size(completion: Completion) -> int:
    """About how many bytes the reply will take, before anything is spent on parsing and judging it."""
    calls = completion.calls
    texts = (text for call in calls for text in (call.name, call.arguments, call.provider_call_id or ""))
    said = (completion.text, completion.finish_reason or "", *texts)
    spoken = sum(len(text.encode(errors="surrogatepass")) for text in said)
    return spoken + len(calls) * _CALL_MIN_BYTES + json_size(legal_json(list(completion.opaque)))


def check_calls(calls: int) -> None:
    """Raises `ApplicationError` PayloadTooLarge, not retryable, for so many calls in one reply."""
    if calls > MOST_CALLS:
        raise final(
            "PayloadTooLarge", f"the model's reply has {calls} tool calls; at most {MOST_CALLS} fit into a round"
        )


def check_reply_size(size: int) -> None:
    """Raises `ApplicationError` PayloadTooLarge, not retryable, for so many bytes."""
    if size > REPLY_MAX_BYTES:
        reason = f"the model's reply has {size} bytes; at most {REPLY_MAX_BYTES} fit into a run's history"
        raise final("PayloadTooLarge", reason)
