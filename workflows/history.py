"""How much one execution may record, and when it is time to continue as new."""

from temporalio import workflow

from workflows.failures import RunFailed

# Below the server's limits of 51,200 events and 50 MB, with room for one more group of tool calls.
HISTORY_MAX_EVENTS = 45_000
HISTORY_MAX_BYTES = 38_000_000
# From here on a run that cannot take all of its messages along leaves the oldest behind.
FULL_EVENTS = 40_000
FULL_BYTES = 29_000_000
# An undo is about ten events with its retries and small; what comes after the last one fits above this.
LAST_EVENTS = 50_500
LAST_BYTES = 47_000_000


def check_room() -> None:
    """Raises `RunFailed` PayloadTooLarge where the server would soon end the run without a word."""
    info = workflow.info()
    events, size = info.get_current_history_length(), info.get_current_history_size()
    if events > HISTORY_MAX_EVENTS or size > HISTORY_MAX_BYTES:
        raise RunFailed(
            "PayloadTooLarge",
            f"the history of this run has {events} events and {size} bytes, and its state is too large to continue in "
            "another: keep results smaller, or lower tool_output",
        )


def is_full() -> bool:
    """Whether it is time to continue as new at the price of old messages."""
    info = workflow.info()
    return info.get_current_history_length() > FULL_EVENTS or info.get_current_history_size() > FULL_BYTES


def has_room_to_end() -> bool:
    """Whether something more may be done at the end of the run."""
    info = workflow.info()
    return info.get_current_history_length() < LAST_EVENTS and info.get_current_history_size() < LAST_BYTES
