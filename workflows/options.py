"""Every timeout and retry policy, by name. All are bounded."""

from datetime import timedelta

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType, ActivityConfig

from contracts.policies import RECONCILE_SECONDS, CompensationRule
from contracts.tools import ToolContract

# A worker that lacks the tool, or has another version of it, refuses the call before anything runs: the run offers it
# again by itself.
REFUSED = ("NotFoundError", "ToolVersionMismatch")

LOAD_AGENT = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=10),
    retry_policy=RetryPolicy(maximum_attempts=10, maximum_interval=timedelta(seconds=30)),
)


# A reply may take minutes; a lost worker is noticed by its missing heartbeat. The delays that a provider asks for
# come with each failure, so the policy's own backoff is only for those that name none.
def model(number: int) -> ActivityConfig:
    """How the model is called; `number` counts the calls from 1, for people who read the history."""
    return ActivityConfig(
        summary=f"model call {number}",
        start_to_close_timeout=timedelta(minutes=10),
        heartbeat_timeout=timedelta(seconds=15),
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1), maximum_attempts=8
        ),
        cancellation_type=ActivityCancellationType.TRY_CANCEL,
    )


# What a hook asks, a policy service say, may be away for a while: nothing is paid again for asking again.
REVIEW = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=10),
    heartbeat_timeout=timedelta(seconds=15),
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30), maximum_attempts=10
    ),
)

# The server is the only one that can cancel a run: it is asked for as long as it may be away.
CANCEL = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=30),
    retry_policy=RetryPolicy(maximum_attempts=2_000, maximum_interval=timedelta(minutes=1)),
)
LEDGER = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=2),
    heartbeat_timeout=timedelta(seconds=15),
    retry_policy=RetryPolicy(maximum_attempts=20, maximum_interval=timedelta(seconds=30)),
)

# The activity gives up by itself at the contract's timeout; the server only has to catch one that cannot.
TOOL_GRACE = timedelta(seconds=5)

# How often a call is offered again to a worker that may have the right version of the tool.
OFFERS = 10


def offer_delay(offer: int) -> timedelta:
    """How long to wait before a refused call is offered again: 1 s, doubling to a minute."""
    return timedelta(seconds=min(60, 2**offer))


# Pure checking of a value that is already there.
SETTLE = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=30),
    retry_policy=RetryPolicy(maximum_attempts=10, maximum_interval=timedelta(seconds=30)),
)


def _taken_within(contract: ToolContract) -> timedelta | None:
    """How long to wait for somebody else's workers: nobody knows whether there are any, and a run's end waits too."""
    return timedelta(seconds=contract.taken_within) if contract.task_queue else None


def undo(contract: ToolContract, rule: CompensationRule) -> ActivityConfig:
    """How an effect is undone: by its own rule, and whatever happens to the run meanwhile."""
    return ActivityConfig(
        task_queue=contract.task_queue,
        schedule_to_start_timeout=_taken_within(contract),
        start_to_close_timeout=timedelta(seconds=rule.timeout) + TOOL_GRACE,
        heartbeat_timeout=None if contract.task_queue else timedelta(seconds=contract.lost_after),
        retry_policy=RetryPolicy(
            maximum_attempts=rule.max_attempts,
            maximum_interval=timedelta(minutes=1),
            non_retryable_error_types=REFUSED,
        ),
    )


def reconcile(contract: ToolContract) -> ActivityConfig:
    """How the outside world is asked whether a call took effect. Asking changes nothing, so it may be repeated."""
    return ActivityConfig(
        task_queue=contract.task_queue,
        schedule_to_start_timeout=_taken_within(contract),
        start_to_close_timeout=timedelta(seconds=RECONCILE_SECONDS) + TOOL_GRACE,
        heartbeat_timeout=None if contract.task_queue else timedelta(seconds=contract.lost_after),
        retry_policy=RetryPolicy(maximum_attempts=5, maximum_interval=timedelta(seconds=30)),
    )


def is_outside(contract: ToolContract) -> bool:
    """Whether the tool's result comes from outside our workers."""
    return contract.completes_later or contract.task_queue is not None


def is_repeated_by_temporal(contract: ToolContract) -> bool:
    """Whether Temporal makes the further attempts that the contract allows, or the run does."""
    return contract.repeatable and not (is_outside(contract) and contract.has_effect)


def tool(contract: ToolContract, activity_id: str) -> ActivityConfig:
    """How one call of this tool is run: one attempt unless its contract allows repetition."""
    retry = contract.retry
    # Whoever works outside our workers does not beat for us, nor give up by itself.
    silent = is_outside(contract)
    return ActivityConfig(
        activity_id=activity_id,
        summary=activity_id,
        task_queue=contract.task_queue,
        schedule_to_start_timeout=_taken_within(contract),
        start_to_close_timeout=timedelta(seconds=contract.timeout) + (timedelta() if silent else TOOL_GRACE),
        heartbeat_timeout=None if silent else timedelta(seconds=contract.lost_after),
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=retry.initial_interval),
            maximum_interval=timedelta(seconds=retry.max_interval),
            backoff_coefficient=retry.multiplier,
            maximum_attempts=retry.max_attempts if is_repeated_by_temporal(contract) else 1,
            non_retryable_error_types=REFUSED,
        ),
        # What an effect came to must be known, even when the run is being cancelled. Whoever completes it later hears
        # of no cancellation: there is nobody to wait for.
        cancellation_type=(
            ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
            if contract.has_effect and not contract.completes_later
            else ActivityCancellationType.TRY_CANCEL
        ),
    )
