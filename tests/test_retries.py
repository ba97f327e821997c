"""Another attempt: when, how often, how much later, and with what that stays the same."""

import asyncio
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, Field
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

from activities.providers.scripted import Script
from activities.tooling import Tool, ToolError, ToolRefused, tool
from contracts.approvals import action_digest
from contracts.outcomes import ErrorCategory, ToolOutcome, failure
from contracts.policies import RETRY_AFTER_MAX_SECONDS, RetryRule
from contracts.runs import ToolResultsPage
from contracts.tools import ToolContract, ToolInvocation
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Handle,
    Harness,
    attempts,
    calls,
    event_of,
    event_types,
    events_of,
    failure_of,
    histories,
    pending_approval,
    says,
    script,
    state_of,
)
from tests.support.waiting import eventually
from workflows.failures import tool_outcome

QUICK = RetryRule(max_attempts=3, initial_interval=0.01, max_interval=0.02)
LONG = RetryRule(max_attempts=3, initial_interval=600, max_interval=600)


def calling(made: Tool) -> Mapping[str, Script]:
    """A script that calls this tool once."""
    return {"main": script(calls((made.name, {})), says("Seen."))}


async def outcome_of(run: Handle) -> ToolOutcome:
    """The complete outcome of the run's one call."""
    page: ToolResultsPage = await run.query("tool_results", result_type=ToolResultsPage)
    (record,) = page.records
    return record.outcome


async def between_attempts(run: Handle, next_attempt: int = 2) -> float:
    """Wait until the run's activity waits for this attempt; how many seconds it waits in all."""

    async def ask() -> float | None:
        for pending in (await run.describe()).raw_description.pending_activities:
            waits = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
            if waits and pending.attempt == next_attempt:
                return pending.current_retry_interval.ToTimedelta().total_seconds()
        return None

    return await eventually(ask)


# -- how much later

SECONDS = st.floats(min_value=0.001, max_value=3_600)
SPREADS = st.floats(min_value=0, max_value=1, exclude_max=True)


@st.composite
def rules(draw: st.DrawFn, jitter: float | None = None) -> RetryRule:
    initial = draw(SECONDS)
    return RetryRule(
        max_attempts=100,
        initial_interval=initial,
        max_interval=draw(st.floats(min_value=initial, max_value=86_400)),
        multiplier=draw(st.floats(min_value=1, max_value=100)),
        jitter=draw(st.floats(min_value=0, max_value=1)) if jitter is None else jitter,
    )


@given(rules(), st.integers(min_value=1, max_value=100), SPREADS)
def test_a_delay_is_spread_around_the_backoff_and_never_above_the_maximum(
    rule: RetryRule, attempt: int, spread: float
) -> None:
    backoff = min(rule.max_interval, rule.initial_interval * rule.multiplier ** (attempt - 1))
    delay = rule.delay(attempt, spread)
    assert delay <= rule.max_interval
    assert backoff * (1 - rule.jitter) * 0.999_999 <= delay <= backoff * (1 + rule.jitter) * 1.000_001
    assert rule.delay(attempt, 0) == min(rule.max_interval, backoff * (1 - rule.jitter))


@given(rules(jitter=0), st.integers(min_value=1, max_value=99), SPREADS)
def test_without_jitter_delays_are_exactly_the_backoff_and_only_grow(
    rule: RetryRule, attempt: int, spread: float
) -> None:
    backoff = rule.initial_interval * rule.multiplier ** (attempt - 1)
    assert rule.delay(attempt, spread) == min(rule.max_interval, backoff)
    assert rule.delay(attempt, spread) <= rule.delay(attempt + 1, spread)


def test_a_slow_growth_goes_on_to_the_last_attempt() -> None:
    rule = RetryRule(max_attempts=100, initial_interval=1, max_interval=86_400, multiplier=1.05, jitter=0)
    assert [rule.delay(attempt, 0) for attempt in (66, 100)] == [1.05**65, 1.05**99]


def test_the_default_delays() -> None:
    rule = RetryRule()
    middle = [rule.delay(attempt, 0.5) for attempt in range(1, 9)]
    assert middle == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert (rule.delay(1, 0), rule.delay(7, 0), rule.delay(7, 0.999)) == pytest.approx((0.09, 4.5, 5.0))


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [(30, 30), (0.001, 0.1), (-5, 0.1), (1e9, RETRY_AFTER_MAX_SECONDS), (math.inf, 0.1), (math.nan, 0.1), ("7", 0.1)],
)
def test_what_a_failure_asks_for_is_a_least_delay_within_bounds(asked: float | str, seconds: float) -> None:
    @tool(side_effect="read", retry=RetryRule(max_attempts=2, jitter=0))
    def read() -> None:
        """Read."""

    outcome = failure("rate_limited", "slowly").model_copy(update={"metadata": {"retry_after": asked}})
    assert read.delay_after(outcome, 1, 0) == seconds


async def test_temporal_waits_as_long_as_the_tool_asked_for(harness: Harness) -> None:
    @tool(side_effect="read", retry=QUICK)
    def search() -> str:
        """Search."""
        raise ToolError("rate_limited", "slowly", retryable=True, retry_after=1_234)

    async with harness.worker(scripted_agent(search), scripts=calling(search)):
        run = await harness.start(PROMPT)
        assert round(await between_attempts(run)) == 1_234
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await run.result()


# -- which failures

FLAKY: list[tuple[tuple[ErrorCategory, ...], ErrorCategory, bool, int]] = [
    # C13: a set of categories takes the place of the failure's own flag, both ways.
    (("rate_limited",), "unavailable", True, 1),
    (("unavailable",), "unavailable", False, 3),
    (("rate_limited", "unavailable"), "rate_limited", False, 3),
    # Without one, the flag decides.
    ((), "unavailable", True, 3),
    ((), "unavailable", False, 1),
    ((), "internal", True, 3),
]


def failing(number: int, categories: tuple[ErrorCategory, ...], category: ErrorCategory, flag: bool) -> Tool:
    @tool(side_effect="read", name=f"t{number}", retry=QUICK.model_copy(update={"retryable": categories}))
    def search() -> str:
        """Search."""
        raise ToolError(category, "no", retryable=flag)

    return search


async def test_a_failure_is_repeated_if_its_category_is_listed_or_nothing_is_and_it_says_so(harness: Harness) -> None:
    tools = [failing(number, *case[:3]) for number, case in enumerate(FLAKY)]
    replies = {"main": script(calls(*((each.name, {}) for each in tools)), says("Seen."))}
    async with harness.worker(scripted_agent(*tools), scripts=replies):
        run = await harness.start(PROMPT)
        result = await run.result()
        (history,) = await histories(harness.client, run.id)
    made = [case[3] for case in FLAKY]
    assert [attempts(history, each.name) for each in tools] == [[number] for number in made]
    assert [record.attempts for record in result.tool_results] == made
    told = [(record.error.category, record.error.retryable) for record in result.tool_results if record.error]
    assert told == [case[1:3] for case in FLAKY]


async def test_categories_hold_for_a_keyed_write_whose_earlier_attempt_nobody_saw_the_end_of(harness: Harness) -> None:
    """The later failure is told as an unknown outcome, but whether it is repeated is decided by what it was."""

    @tool(
        side_effect="write",
        idempotency="idempotent_with_key",
        retry=QUICK.model_copy(update={"retryable": ("unavailable", "unknown_outcome"), "max_attempts": 4}),
    )
    def pay(invocation: ToolInvocation) -> str:
        """Pay."""
        if invocation.attempt == 1:
            raise RuntimeError("lost")
        raise ToolError("unavailable", "no") if invocation.attempt == 2 else ToolError("conflict", "no")

    async with harness.worker(scripted_agent(pay), scripts=calling(pay)):
        result = await (await harness.start(PROMPT)).result()
    (record,) = result.tool_results
    assert record.error is not None
    assert (record.error.category, record.attempts) == ("unknown_outcome", 3)


EVERY: tuple[ErrorCategory, ...] = ("invalid_input", "internal", "permission_denied", "unavailable")


def never(value: int) -> int:
    raise ValueError("never right")


async def test_what_breaks_a_schema_is_never_repeated_whatever_is_listed(harness: Harness) -> None:
    ran: list[str] = []
    retry = QUICK.model_copy(update={"retryable": EVERY})

    @tool(side_effect="read", retry=retry, output_schema={"type": "object", "required": ["id"]})
    def wrong_result() -> dict[str, int]:
        """Return what the schema does not allow."""
        ran.append("wrong_result")
        return {}

    @tool(side_effect="read", retry=retry)
    def wrong_argument(number: Annotated[int, AfterValidator(never)]) -> str:
        """Take what only Python can check."""
        ran.append("wrong_argument")
        return "ran"

    replies = {"main": script(calls(("wrong_result", {}), ("wrong_argument", {"number": 1})), says("Seen."))}
    async with harness.worker(scripted_agent(wrong_result, wrong_argument), scripts=replies):
        run = await harness.start(PROMPT)
        result = await run.result()
        (history,) = await histories(harness.client, run.id)
    assert ran == ["wrong_result"]
    assert [attempts(history, name) for name in ("wrong_result", "wrong_argument")] == [[1], [1]]
    told = [(record.error.category, record.error.code) for record in result.tool_results if record.error]
    assert told == [("internal", "invalid_output"), ("invalid_input", "invalid_arguments")]


async def test_retries_are_over_before_a_result_is_prepared(harness: Harness) -> None:
    prepared: list[ToolOutcome] = []

    @tool(side_effect="read", retry=QUICK)
    def flaky(invocation: ToolInvocation) -> str:
        """Work at the third attempt."""
        if invocation.attempt < 3:
            raise ToolError("unavailable", "not yet", retryable=True)
        return "done"

    @flaky.prepare_result
    def keep(outcome: ToolOutcome) -> ToolOutcome:
        prepared.append(outcome)
        return outcome

    async with harness.worker(scripted_agent(flaky), scripts=calling(flaky)):
        result = await (await harness.start(PROMPT)).result()
    assert [outcome.text for outcome in prepared] == ["done"]
    assert result.tool_results[0].attempts == 3


async def test_a_read_is_repeated_unless_its_contract_says_that_it_must_not(harness: Harness) -> None:
    def lost() -> str:
        """Lose the line."""
        raise ConnectionError("reset by peer")

    look = tool(side_effect="read", name="look", retry=QUICK)(lost)
    same = tool(side_effect="read", name="same", retry=QUICK, idempotency="idempotent")(lost)
    take = tool(side_effect="read", name="take", idempotency="non_idempotent")(lost)
    replies = {"main": script(calls(("look", {}), ("same", {}), ("take", {})), says("Seen."))}
    async with harness.worker(scripted_agent(look, same, take), scripts=replies):
        result = await (await harness.start(PROMPT)).result()
    assert [record.attempts for record in result.tool_results] == [3, 3, 1]
    with pytest.raises(ToolRefused, match="a read tool with idempotency 'non_idempotent' must not be repeated"):
        tool(side_effect="read", retry=QUICK, idempotency="non_idempotent")(lost)


# -- what stays the same


async def test_every_attempt_has_the_same_call_id_and_key_and_the_next_number(harness: Harness) -> None:
    seen: list[ToolInvocation] = []

    @tool(side_effect="write", idempotency="idempotent_with_key", retry=QUICK)
    def pay(invocation: ToolInvocation) -> str:
        """Pay."""
        seen.append(invocation)
        if invocation.attempt < 3:
            raise ToolError("unavailable", "not yet", retryable=True)
        return "paid"

    async with harness.worker(scripted_agent(pay), scripts=calling(pay)):
        run = await harness.start(PROMPT)
        result = await run.result()
        outcome = await outcome_of(run)
        (history,) = await histories(harness.client, run.id)
    assert [invocation.attempt for invocation in seen] == [1, 2, 3]
    assert {invocation.call_id for invocation in seen} == {"call_1"}
    assert {invocation.idempotency_key for invocation in seen} == {result.tool_results[0].idempotency_key}
    assert outcome.metadata["tool_attempt"] == 3
    assert result.tool_results[0].attempts == 3
    # Temporal made them: one activity, whose start says that it was the third.
    assert attempts(history, "pay") == [3]
    assert [effect.state for effect in result.effects] == ["done"]


async def test_attempts_go_on_counting_when_another_worker_takes_over(harness: Harness) -> None:
    """R-20: a restart gives no new budget."""
    seen: list[int] = []

    @tool(
        side_effect="read",
        retry=RetryRule(max_attempts=3, initial_interval=0.3, max_interval=0.3, jitter=0),
    )
    def broken(invocation: ToolInvocation) -> str:
        """Never work."""
        seen.append(invocation.attempt)
        raise ConnectionError("reset by peer")

    async with harness.worker(scripted_agent(broken), scripts=calling(broken)):
        run = await harness.start(PROMPT)
        await between_attempts(run)
    async with harness.worker(scripted_agent(broken), scripts=calling(broken)):
        result = await run.result()
    assert seen == [1, 2, 3]
    assert result.tool_results[0].attempts == 3


async def test_neither_another_tool_nor_an_approval_nor_a_restart_gives_new_calls(harness: Harness) -> None:
    """R-20: failures of one tool are bounded by the run's calls, whatever happens in between."""
    ran: list[str] = []

    @tool(side_effect="read", retry=RetryRule())
    def bad() -> str:
        """Fail."""
        ran.append("bad")
        raise ToolError("unavailable", "no", retryable=True)

    @tool(side_effect="write", approval="always")
    def good() -> str:
        """Work."""
        ran.append("good")
        return "ok"

    replies = {"main": script(*(calls((name, {})) for name in ("bad", "good") * 5))}
    agent = scripted_agent(bad, good, max_tool_calls=5)
    run = await harness.start(PROMPT)
    for _ in range(2):
        async with harness.worker(agent, scripts=replies):
            request = await pending_approval(run)
        await run.signal(
            "resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"}
        )
    async with harness.worker(agent, scripts=replies), asyncio.timeout(30):
        error, _ = await failure_of(run)
    assert error.type == "MaxToolCallsExceeded"
    assert ran == ["bad", "good", "bad", "good", "bad"]


async def test_the_three_layers_of_retrying_stay_apart(harness: Harness) -> None:
    """R-14: what the model should read is told at once, a passing fault never is, a lasting one is told once."""
    made = {"fetch": 0, "flaky": 0, "broken": 0}

    @tool(side_effect="read", retry=QUICK)
    def fetch() -> str:
        """Not find it."""
        made["fetch"] += 1
        raise ToolError("not_found", "HTTP 404")

    @tool(side_effect="read", retry=QUICK)
    def flaky() -> str:
        """Work at the third attempt."""
        made["flaky"] += 1
        if made["flaky"] < 3:
            raise ConnectionError("reset by peer")
        return "ok"

    @tool(side_effect="read", retry=QUICK)
    def broken() -> str:
        """Never work."""
        made["broken"] += 1
        raise ValueError("no such column")

    replies = {"main": script(calls(*((name, {}) for name in made)), says("Seen."))}
    async with harness.worker(scripted_agent(fetch, flaky, broken), scripts=replies):
        run = await harness.start(PROMPT)
        result = await run.result()
        asked = [event for event in await events_of(run) if event.type == "model_started"]
        (history,) = await histories(harness.client, run.id)
    assert made == {"fetch": 1, "flaky": 3, "broken": 3}
    assert [record.ok for record in result.tool_results] == [False, True, False]
    assert len(asked) == 2
    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    assert all(each.retry_policy.maximum_attempts for each in scheduled if each.activity_type.name)


async def test_no_attempt_is_waited_for_that_would_begin_after_the_deadline(harness: Harness) -> None:
    @tool(side_effect="read", retry=LONG)
    def search() -> str:
        """Search."""
        raise ConnectionError("reset by peer")

    soon = (datetime.now(UTC) + timedelta(seconds=300)).isoformat()
    async with harness.worker(scripted_agent(search), scripts=calling(search)):
        async with asyncio.timeout(30):
            result = await (await harness.start({**PROMPT, "context": {"deadline": soon}})).result()
    (record,) = result.tool_results
    assert record.error is not None
    assert (record.error.category, record.attempts) == ("unavailable", 1)


# -- cancelled between two attempts


async def test_a_read_that_waits_for_its_next_attempt_is_cancelled_at_once(harness: Harness) -> None:
    @tool(side_effect="read", retry=LONG)
    def search() -> str:
        """Search."""
        raise ConnectionError("reset by peer")

    async with harness.worker(scripted_agent(search), scripts=calling(search)):
        run = await harness.start(PROMPT)
        await between_attempts(run)
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        outcome = await outcome_of(run)
    assert outcome.error is not None
    assert outcome.error.category == "cancelled"


async def test_a_write_cancelled_between_two_attempts_may_have_happened(harness: Harness) -> None:
    """For the server an activity that waits for its next attempt has not started."""
    rows: list[str] = []

    @tool(side_effect="write", idempotency="idempotent_with_key", retry=LONG)
    def pay(invocation: ToolInvocation) -> str:
        """Pay."""
        rows.append(invocation.idempotency_key)
        raise ConnectionError("the line went dead")

    async with harness.worker(scripted_agent(pay), scripts=calling(pay)):
        run = await harness.start(PROMPT)
        await between_attempts(run)
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        outcome, state = await outcome_of(run), await state_of(run)
        assert "effect_unknown" in await event_types(run)
    assert len(rows) == 1
    assert [effect.state for effect in state.effects] == ["unknown"]
    assert outcome.error is not None
    assert outcome.error.category == "unknown_outcome"
    assert outcome.metadata["tool_attempt"] == 1


@pytest.mark.parametrize(("earlier", "category"), [(None, "unavailable"), ("lost", "unknown_outcome")])
def test_a_write_that_no_worker_took_again_may_have_happened(earlier: str | None, category: str) -> None:
    """The server gives the failure of the attempt before as the cause of such a timeout."""
    contract = ToolContract(
        name="pay", description="Pay.", input_schema={"type": "object"}, side_effect="write", idempotency="idempotent"
    )
    timeout = ActivityTimeoutError("not taken", type=TimeoutType.SCHEDULE_TO_START, last_heartbeat_details=[])
    timeout.__cause__ = ApplicationError(earlier) if earlier else None
    error = ActivityError(
        "timed out",
        scheduled_event_id=5,
        started_event_id=0,
        identity="",
        activity_type="pay",
        activity_id="call_1",
        retry_state=RetryState.TIMEOUT,
    )
    error.__cause__ = timeout
    told = tool_outcome(error, contract).error
    assert told is not None
    assert told.category == category


# -- one consent, one effect


def gated(rows: list[str], idempotency: str, retry: RetryRule) -> Tool:
    @tool(
        side_effect="write",
        approval="always",
        idempotency=idempotency,  # type: ignore[arg-type]  # one of the names
        retry=retry,
        timeout=0.3,
    )
    async def transfer(amount: int, invocation: ToolInvocation) -> str:
        """Move money, and hang the first time."""
        if invocation.idempotency_key not in rows or idempotency != "idempotent_with_key":
            rows.append(invocation.idempotency_key)
        if invocation.attempt == 1:
            await asyncio.Event().wait()
        return "moved"

    return transfer


TRANSFER = {"main": script(calls(("transfer", {"amount": 50})), says("Seen."))}


async def approved(run: Handle) -> dict[str, object]:
    """Approve the one pending call; the decision."""
    decision: dict[str, object] = {
        "approval_id": (await pending_approval(run)).approval_id,
        "resolution": "approved",
        "by": "ann",
    }
    await run.execute_update("decide", decision)
    return decision


async def test_an_approved_call_that_must_not_be_repeated_has_one_attempt_and_is_told_as_unknown(
    harness: Harness,
) -> None:
    """R-21."""
    rows: list[str] = []
    transfer = gated(rows, "non_idempotent", RetryRule())
    async with harness.worker(scripted_agent(transfer), scripts=TRANSFER):
        run = await harness.start(PROMPT)
        await approved(run)
        result = await run.result()
        await event_of(run, "effect_unknown")
    assert len(rows) == 1
    assert "do not repeat it blindly" in result.tool_results[0].text
    assert [effect.state for effect in result.effects] == ["unknown"]


async def test_an_approved_call_with_a_key_is_repeated_with_it_and_the_approval_is_spent_once(
    harness: Harness,
) -> None:
    """R-21, with the approval sent again while the second attempt runs."""
    rows: list[str] = []
    transfer = gated(rows, "idempotent_with_key", RetryRule(max_attempts=3, initial_interval=0.3, jitter=0))
    async with harness.worker(scripted_agent(transfer), scripts=TRANSFER):
        run = await harness.start(PROMPT)
        decision = await approved(run)
        await between_attempts(run)
        with pytest.raises(WorkflowUpdateFailedError):
            await run.execute_update("decide", decision)
        result = await run.result()
        assert len([event for event in await events_of(run) if event.type == "approval_recorded"]) == 1
    assert (len(rows), result.tool_results[0].attempts) == (1, 2)
    assert [effect.state for effect in result.effects] == ["done"]


async def test_a_definition_that_changed_under_an_approval_does_not_run_what_it_no_longer_takes(
    harness: Harness,
) -> None:
    """R-25(f): the same version, but the worker that comes next has a narrower schema."""
    ran: list[int] = []

    @tool(side_effect="write", approval="always", name="transfer")
    def before(amount: int) -> str:
        """Move money."""
        raise AssertionError("the first worker is gone by then")

    @tool(side_effect="write", approval="always", name="transfer", idempotency="idempotent", retry=QUICK)
    def after(amount: Annotated[int, Field(le=10)]) -> str:
        """Move a little money."""
        ran.append(amount)
        return "moved"

    async with harness.worker(scripted_agent(before), scripts=TRANSFER):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
    await run.signal("resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"})
    async with harness.worker(scripted_agent(after), scripts=TRANSFER):
        result = await run.result()
    assert ran == []
    (record,) = result.tool_results
    assert record.error is not None
    # By the schema itself, before Python gets to see the arguments.
    assert (record.error.category, record.error.message[:8], record.attempts) == ("invalid_input", "/amount:", 1)
    assert [effect.state for effect in result.effects] == ["failed"]


def test_the_order_of_arguments_is_no_difference() -> None:
    """R-25(e)."""
    assert action_digest("edit", "1", {"b": 1, "a": 2}) == action_digest("edit", "1", {"a": 2, "b": 1})
    assert action_digest("edit", "1", {"a": 2}) != action_digest("edit", "1", {"a": "2"})
