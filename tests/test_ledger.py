"""The effect ledger: written before the world is touched, settled by what was seen, and paged for whoever asks."""

import asyncio

import pytest
from temporalio.client import WorkflowHistory

from activities.tooling import ToolError, tool
from contracts.effects import LedgerPage, LedgerQuery
from contracts.outcomes import OUTCOME_MAX_BYTES, ToolOutcome
from contracts.policies import CompensationRule, SideEffect
from contracts.search_attributes import AGENT_NEEDS_OPERATOR
from contracts.tools import ToolContract, UndoOutcome, UndoRequest
from runtime.dev_server import DevServer
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Handle, Harness, calls, event_of, failure_of, histories, says, script, state_of
from tests.support.hotel import FAIL_RUN, Hotel, fail, failing_after, hotel_agent

FREE = CompensationRule()


async def ledger(run: Handle, **query: int) -> LedgerPage:
    page: LedgerPage = await run.query("ledger", LedgerQuery(**query), result_type=LedgerPage)
    return page


async def test_an_effect_is_unknown_from_before_its_first_attempt_until_it_is_seen(harness: Harness) -> None:
    started: asyncio.Queue[str] = asyncio.Queue()
    go_on = asyncio.Event()

    def holding(name: str, side_effect: SideEffect) -> ToolContract:
        async def hold() -> str:
            """Hold on."""
            await started.put(name)
            await go_on.wait()
            return "done"

        hold.__name__ = name
        held = tool(side_effect=side_effect, compensation=FREE if side_effect == "write" else None)(hold)
        if side_effect == "write":
            held.undo(lambda request: None)
        return held

    tools = [holding("look", "read"), holding("write_down", "write"), holding("throw_away", "destructive")]
    replies = script(calls(*((each.name, {}) for each in tools)), says("Done."))
    async with harness.worker(scripted_agent(*tools), scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": {"tool_concurrency": "parallel"}})
        for _ in tools:
            await started.get()
        # Whatever comes meanwhile has the run show itself anew.
        await run.signal("add_message", {"id": "1", "text": "Well?"})
        await event_of(run, "message_added")
        in_flight, page = await state_of(run), await ledger(run)
        described = await run.describe()
        go_on.set()
        result = await run.result()
    assert [(effect.tool, effect.state) for effect in in_flight.effects] == [
        ("write_down", "unknown"),
        ("throw_away", "unknown"),
    ]
    # What is under way is no operator's.
    assert described.typed_search_attributes.get(AGENT_NEEDS_OPERATOR) is False
    # What an undo would need is there before anything has happened; of a tool without undo nothing is kept.
    thrown, written = page.entries
    assert (thrown.invocation, thrown.outcome, written.outcome) == (None, None, None)
    assert written.invocation is not None
    assert written.invocation.idempotency_key == result.tool_results[1].idempotency_key
    assert [(effect.tool, effect.state) for effect in result.effects] == [
        ("write_down", "done"),
        ("throw_away", "done"),
    ]


@tool(side_effect="write")
def turned_down() -> str:
    """Say no before anything happens."""
    raise ToolError("conflict", "it is taken")


@tool(side_effect="write")
def vanish() -> str:
    """End in a way that nobody understands."""
    raise OSError("connection reset")


@tool(side_effect="write")
def work() -> str:
    """Work."""
    return "worked"


@tool(side_effect="write", compensation=FREE)
def half() -> str:
    """End half way."""
    raise OSError("connection reset")


@half.undo
def take_half_back(request: UndoRequest) -> str:
    return "taken back"


@tool(side_effect="write", compensation=FREE)
def stuck() -> str:
    """End half way, for good."""
    raise OSError("connection reset")


@stuck.undo
def cannot_take_back(request: UndoRequest) -> str:
    raise RuntimeError("it is stuck")


async def test_every_state_of_an_effect_and_its_pages_newest_first(harness: Harness) -> None:
    tools = [work, turned_down, vanish, half, stuck]
    replies = script(calls(*((each.name, {}) for each in tools)), says("Done."))
    async with harness.worker(scripted_agent(*tools), scripts={"main": replies}):
        run = await harness.start({**PROMPT, "context": {"tenant_id": "acme"}})
        result = await run.result()
        whole = await ledger(run)
        pages = [await ledger(run, max_bytes=1)]
        while pages[-1].next > 0:
            pages.append(await ledger(run, max_bytes=1, before=pages[-1].next))
        beyond, nothing = await ledger(run, before=1_000), await ledger(run, before=0)
        described = await run.describe()
    states = ["done", "failed", "unknown", "compensated", "compensation_failed"]
    assert [effect.state for effect in result.effects] == states
    assert [entry.effect for entry in whole.entries] == [*reversed(result.effects)]
    assert (whole.next, whole.total, whole.context.tenant_id) == (0, 5, "acme")
    assert [[entry.effect.state for entry in page.entries] for page in pages] == [[state] for state in states[::-1]]
    assert [page.next for page in pages] == [4, 3, 2, 1, 0]
    assert (beyond, nothing.entries, nothing.next, nothing.total) == (whole, (), 0, 5)
    # Only what an undo may still be made for keeps what that needs.
    assert [entry.effect.tool for entry in whole.entries if entry.invocation is not None] == ["stuck"]
    assert described.typed_search_attributes.get(AGENT_NEEDS_OPERATOR) is True


def scheduled(history: WorkflowHistory, activity_type: str) -> list[tuple[float, int]]:
    """Heartbeat timeout in seconds and attempts of each activity of this type."""
    attributes = [event.activity_task_scheduled_event_attributes for event in history.events]
    return [
        (each.heartbeat_timeout.ToTimedelta().total_seconds(), each.retry_policy.maximum_attempts)
        for each in attributes
        if each.activity_type.name == activity_type
    ]


async def test_an_undo_at_the_end_has_its_own_attempts_and_beats(harness: Harness) -> None:
    hotel = Hotel(undo_fails=1)
    async with harness.worker(hotel_agent(hotel), scripts={"main": failing_after(1)}):
        run = await harness.start(FAIL_RUN)
        _, partial = await failure_of(run)
        (history,) = await histories(harness.client, run.id)
    (effect,) = partial.effects
    assert effect.compensation is not None
    assert (effect.state, effect.compensation.attempts, hotel.log[-1]) == ("compensated", 2, "give back 1")
    assert scheduled(history, "book") == [(hotel.book.lost_after, 1)]
    assert scheduled(history, "book.undo") == [(hotel.book.lost_after, 2)]


async def test_nothing_to_undo_is_no_failure_and_the_others_go_on(harness: Harness) -> None:
    hotel = Hotel()
    async with harness.worker(hotel_agent(hotel), scripts={"main": failing_after(1, 1)}):
        _, partial = await failure_of(await harness.start(FAIL_RUN))
    assert [(effect.state, effect.compensation.state) for effect in partial.effects if effect.compensation] == [
        ("compensated", "nothing_to_undo"),
        ("compensated", "compensated"),
    ]


async def test_an_undo_at_the_end_is_given_the_outcome_as_the_run_has_it(harness: Harness) -> None:
    """The token whole, and the rest within the bounds of every outcome."""
    seen = list[UndoRequest]()

    @tool(side_effect="write", compensation=FREE)
    def write_much() -> ToolOutcome:
        """Say more than fits."""
        return ToolOutcome(ok=True, text="x" * 3 * OUTCOME_MAX_BYTES, compensation_token="shelf 7")

    @write_much.undo
    def take_back(request: UndoRequest) -> UndoOutcome:
        seen.append(request)
        return UndoOutcome(text="taken back")

    agent = scripted_agent(write_much, fail).model_copy(update={"compensate_on": ("failed",)})
    async with harness.worker(agent, scripts={"main": script(calls(("write_much", {})), calls(("fail", {})))}):
        _, partial = await failure_of(await harness.start(FAIL_RUN))
    assert [effect.state for effect in partial.effects] == ["compensated"]
    (request,) = seen
    assert (request.compensation_token, request.outcome.ok) == ("shelf 7", True)
    assert request.outcome.text.startswith("xxx")
    assert len(request.model_dump_json()) < OUTCOME_MAX_BYTES + 10_000


@pytest.mark.long
async def test_a_hundred_and_fifty_effects_are_undone_in_reverse_and_the_result_still_fits(
    impatient: DevServer,
) -> None:
    """Made over several executions of the run, with undos that say as much as they may, in bytes that grow in JSON."""
    harness, order = Harness(impatient.client), list[str]()

    @tool(side_effect="write", compensation=FREE)
    def mark(number: int) -> str:
        """Make a mark."""
        return f"mark {number}"

    @mark.undo
    def wipe(request: UndoRequest) -> str:
        order.append(request.outcome.text)
        return "\x01" * 2_000

    agent = scripted_agent(mark, fail, max_tool_calls=200).model_copy(update={"compensate_on": ("failed",)})
    marks = calls(*(("mark", {"number": number}) for number in range(150)))
    async with harness.worker(agent, scripts={"main": script(marks, calls(("fail", {})))}):
        run = await harness.start(FAIL_RUN)
        error, partial = await failure_of(run)
        state = await state_of(run)
        rest = await ledger(run)
    assert len(await histories(harness.client, run.id)) > 1
    assert order == [f"mark {number}" for number in reversed(range(150))]
    assert error.type == "ToolFailed"
    # The latest are shown, as many as fit; the ledger has all of them.
    assert len(partial.model_dump_json()) < 1_048_576
    assert 20 < len(partial.effects) < 150
    assert partial.effects[-1].call_id == "call_150"
    assert state.effects == partial.effects
    assert rest.total == 150
    await harness.check_histories()
