"""How much one execution may record, and when it is time to continue as new."""

from temporalio import workflow

from workflows.failures import RunFailed

# Below the server's limits of 51,200 events and 50 MB, with room for one more group of tool calls.
HISTORY_MAX_EVENTS = 45_000
HISTORY_MAX_BYTES = 38_000_000


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
