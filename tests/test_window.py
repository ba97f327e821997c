"""What of a conversation fits into the model's window: legal, within the budget, and cut rarely."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.interface import CompletionRequest
from activities.token_counts import CountFailed, TokenCounter, counter_for, message_tokens
from activities.window import LEFT_OUT, Fitted, TokenSplit, WindowExceeded, fit
from contracts.hints import EMPTY_REPLY_HINT, OUTPUT_HINT, is_hint
from contracts.messages import Message, ToolCall, illegality
from contracts.models import ContextBudget, ModelSettings
from contracts.projection import estimate_tokens
from contracts.tools import ToolContract
from tests.providers.legality import messages_illegality

# The same examples each time, and none kept on disk.
PROPERTY = settings(deadline=None, derandomize=True, database=None, max_examples=150)
LOOK = ToolContract(name="look", description="Looks.", input_schema={"type": "object"}, side_effect="read")
PAY = ToolContract(name="pay", description="Pays.", input_schema={"type": "object"}, side_effect="write")
# 50 tokens, which makes the numbers below easy to follow.
RESERVED = 50


def user(tokens: int, letter: str = "u") -> Message:
    """Of so many tokens, all told."""
    return Message(role="user", text=letter * (4 * (tokens - 4)))


def answer(tokens: int) -> Message:
    return Message(role="assistant", text="a" * (4 * (tokens - 4)))


def exchange(name: str, *results: int, tool: str = "look", opaque: tuple[JsonValue, ...] = ()) -> tuple[Message, ...]:
    """A turn with a call for each result, which has so many letters."""
    calls = tuple(ToolCall(call_id=f"{name}_{index}", tool=tool, arguments={}) for index in range(len(results)))
    answers = (
        Message(role="tool", call_id=call.call_id, text="r" * size) for call, size in zip(calls, results, strict=True)
    )
    return (Message(role="assistant", tool_calls=calls, opaque=opaque), *answers)


def asked(messages: Sequence[Message], *tools: ToolContract, instructions: str = "") -> CompletionRequest:
    return CompletionRequest("m", instructions, tuple(messages), tools)


def budget(window: int | None, messages: int = 2, exchanges: int = 1) -> ContextBudget:
    # Not validated: what is looked at here holds for windows below the least that an agent may have, too.
    return ContextBudget.model_construct(
        window=window, reserved_output=RESERVED, recent_messages=messages, recent_exchanges=exchanges
    )


def fitted(
    messages: Sequence[Message], window: int | None, recent_messages: int = 2, recent_exchanges: int = 1
) -> Fitted:
    return fit(asked(messages), budget(window, recent_messages, recent_exchanges), estimate_tokens)


def units(messages: Sequence[Message]) -> Iterator[range]:
    before = [None, *(message.role for message in messages)]
    starts = [
        index
        for index, message in enumerate(messages)
        if message.role == "user" or (message.role == "assistant" and before[index] != "assistant")
    ]
    for start, end in pairwise([*starts, len(messages)]):
        yield range(start, end)


def protected(messages: Sequence[Message], recent_messages: int, recent_exchanges: int) -> set[int]:
    """Positions of what must stay, found by looking from the end."""
    found: list[range] = []
    spoken = [unit for unit in units(messages) if messages[unit[-1]].role != "tool"]
    exchanges = [unit for unit in units(messages) if messages[unit[-1]].role == "tool"]
    requests = [each for each in spoken if messages[each[0]].role == "user" and not is_hint(messages[each[0]])]
    found += spoken[len(spoken) - min(recent_messages, len(spoken)) :]
    found += exchanges[len(exchanges) - min(recent_exchanges, len(exchanges)) :]
    found += requests[-1:]
    if exchanges and not any(message.role == "assistant" for message in messages[exchanges[-1].stop :]):
        found.append(exchanges[-1])
    return {position for unit in found for position in unit}


def tokens(messages: Sequence[Message]) -> int:
    return sum(message_tokens(message, estimate_tokens) for message in messages)


def fate(original: Sequence[Message], sent: Sequence[Message]) -> tuple[set[int], set[int]]:
    """Positions of the messages that were left out, and of the results that are sent shortened. Every message of these
    tests differs from the others, so that each can be found again."""
    left_out, shortened = set(), set()
    remaining = [message for message in sent if message != LEFT_OUT]
    for position, message in enumerate(original):
        if not remaining:
            left_out.add(position)
        elif remaining[0] == message:
            remaining.pop(0)
        elif message.role == "tool" and remaining[0].call_id == message.call_id:
            assert len(remaining.pop(0).text) < len(message.text)
            shortened.add(position)
        else:
            left_out.add(position)
    assert remaining == []
    return left_out, shortened


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """Legal ones that a model may be asked to continue, each message unlike the others."""
    messages = [Message(role="user", text="0" + "u" * draw(st.integers(0, 400)))]
    kinds = draw(st.lists(st.sampled_from(["user", "hint", "answer", "exchange", "exchange", "exchange"]), max_size=14))
    for number, kind in enumerate(kinds, start=1):
        size = draw(st.integers(0, 600))
        match kind:
            case "user":
                messages.append(Message(role="user", text=f"{number}" + "u" * size))
            case "hint":
                messages.append(Message(role="user", text=f"{OUTPUT_HINT}{number}"))
            case "answer":
                messages.append(Message(role="assistant", text=f"{number}" + "a" * size))
            case _:
                block: JsonValue = {"from": "x:m", "block": {"type": "thinking", "signature": f"{number}" + "s" * size}}
                results = draw(st.lists(st.integers(0, 1_200), min_size=1, max_size=3))
                messages += exchange(f"c{number}", *results, opaque=(block,) if size % 2 else ())
    if messages[-1].role == "assistant":
        messages.append(Message(role="user", text="and now?"))
    return tuple(messages)


RECENT_MESSAGES, RECENT_EXCHANGES = st.integers(1, 3), st.integers(0, 2)
WINDOWS = st.integers(60, 2_500)


@PROPERTY
@given(conversations(), WINDOWS, RECENT_MESSAGES, RECENT_EXCHANGES)
def test_what_is_sent_is_legal_and_fits_or_the_request_is_refused(
    messages: tuple[Message, ...], window: int, recent_messages: int, recent_exchanges: int
) -> None:
    must_stay = protected(messages, recent_messages, recent_exchanges)
    least = tokens([messages[position] for position in sorted(must_stay)]) + RESERVED
    if len(must_stay) < len(messages):
        least += tokens([LEFT_OUT])
    whole = tokens(messages) + RESERVED
    if window < min(least, whole):
        with pytest.raises(WindowExceeded) as caught:
            fitted(messages, window, recent_messages, recent_exchanges)
        assert caught.value.tokens.total == least
        return
    found = fitted(messages, window, recent_messages, recent_exchanges)
    sent = found.request.messages
    assert found.tokens.total <= window
    assert found.input_tokens == tokens(sent)
    assert illegality(sent) is None
    assert sent[0].role == "user"
    assert sent[-1] == messages[-1]
    left_out, shortened = fate(messages, sent)
    assert (found.left_out, found.shortened) == (len(left_out), len(shortened))
    assert not must_stay & (left_out | shortened)
    assert sent.count(LEFT_OUT) == (1 if left_out else 0)
    if window >= whole:
        assert found.request.messages is messages


@PROPERTY
@given(conversations(), WINDOWS, RECENT_MESSAGES, RECENT_EXCHANGES)
def test_the_oldest_give_way_first_and_results_before_messages(
    messages: tuple[Message, ...], window: int, recent_messages: int, recent_exchanges: int
) -> None:
    try:
        sent = fitted(messages, window, recent_messages, recent_exchanges).request.messages
    except WindowExceeded:
        return
    left_out, shortened = fate(messages, sent)
    must_stay = protected(messages, recent_messages, recent_exchanges)
    yielding = [unit for unit in units(messages) if unit[0] not in must_stay]
    # An unbroken beginning of what may go, and whole units: what is sent is legal.
    assert sorted(left_out) == [position for unit in yielding for position in unit][: len(left_out)]
    long = [position for unit in yielding for position in unit if len(messages[position].text) > 300]
    long = [position for position in long if messages[position].role == "tool" and position not in left_out]
    touched = [unit for unit in yielding if shortened & set(unit)]
    if touched:
        assert all(position in shortened for position in long if position < touched[-1].start)
    if left_out:
        assert set(long) <= shortened


@PROPERTY
@given(conversations(), WINDOWS, WINDOWS, RECENT_MESSAGES, RECENT_EXCHANGES)
def test_a_larger_window_keeps_all_that_a_smaller_one_keeps(
    messages: tuple[Message, ...], one: int, other: int, recent_messages: int, recent_exchanges: int
) -> None:
    try:
        small = fitted(messages, min(one, other), recent_messages, recent_exchanges)
    except WindowExceeded:
        return
    large = fitted(messages, max(one, other), recent_messages, recent_exchanges)
    left_out, shortened = fate(messages, small.request.messages)
    left_out_of_large, shortened_in_large = fate(messages, large.request.messages)
    assert left_out_of_large <= left_out
    assert shortened_in_large <= shortened | left_out


@PROPERTY
@given(conversations(), WINDOWS, RECENT_MESSAGES, RECENT_EXCHANGES)
def test_what_gave_way_once_stays_so_while_the_conversation_grows(
    messages: tuple[Message, ...], window: int, recent_messages: int, recent_exchanges: int
) -> None:
    before: tuple[set[int], set[int]] = set(), set()
    for unit in units(messages):
        grown = messages[: unit.stop]
        try:
            sent = fitted(grown, window, recent_messages, recent_exchanges).request.messages
        except WindowExceeded:
            continue
        left_out, shortened = fate(grown, sent)
        assert before[0] <= left_out
        assert before[1] <= shortened | left_out
        before = left_out, shortened


def common_beginning(one: Sequence[Message], other: Sequence[Message]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def requests_of_growing(parts: Sequence[tuple[Message, ...]], window: int) -> list[tuple[Message, ...]]:
    return [
        fitted([message for part in parts[:count] for message in part], window).request.messages
        for count in range(1, len(parts) + 1)
    ]


def breaks(sent: Sequence[Sequence[Message]], tolerated: int = 0) -> list[int]:
    """After which requests the next one does not begin with all of it, but for so many messages at its end."""
    pairs = enumerate(pairwise(sent))
    return [n for n, (one, other) in pairs if common_beginning(one, other) < len(one) - tolerated]


def test_growing_results_are_shortened_in_few_cuts_with_one_beginning_between_them() -> None:
    # 100 rounds of 275 tokens in a window of 10,050: shortened ones have about 65, so nothing is left out. The step is
    # 1,656 tokens, so there is a cut about every 6 rounds, and none comes with the next round.
    parts = [(user(50),), *(exchange(f"c{n}", 1_000) for n in range(100))]
    sent = requests_of_growing(parts, 10_050)
    cuts = breaks(sent)
    assert len(cuts) == 11
    assert min(later - earlier for earlier, later in pairwise(cuts)) >= 5
    assert all(len(messages) == 1 + 2 * n for n, messages in enumerate(sent))


def test_a_growing_conversation_is_cut_rarely() -> None:
    # 150 messages of 100 tokens in a window of 5,050: the step is 848 tokens.
    parts = [(user(100),) if n % 2 else (answer(100),) for n in range(1, 151)]
    cuts = breaks([sent for sent in requests_of_growing(parts, 5_050) if sent[-1].role == "user"])
    assert len(cuts) == 12
    assert min(later - earlier for earlier, later in pairwise(cuts[1:])) >= 4


def test_where_messages_are_left_out_only_the_last_exchange_changes_between_cuts() -> None:
    # Shortened rounds of about 65 tokens in a window of 2,550: the step is 424 tokens. Results vary, and with them what
    # has to stay.
    parts = [(user(50),), *(exchange(f"c{n}", 400 + 1_600 * (n % 2)) for n in range(100))]
    sent = requests_of_growing(parts, 2_550)
    cuts = breaks(sent, tolerated=1)
    assert sent[-1][1] == LEFT_OUT
    assert len(sent[-1]) < 80
    assert len(cuts) <= 25


def test_equal_conversations_are_cut_at_equal_places() -> None:
    messages = [user(50), *(message for n in range(50) for message in exchange(f"c{n}", 2_000))]
    copy = [Message.model_validate_json(message.model_dump_json()) for message in messages]
    assert fitted(messages, 5_000).request.messages == fitted(copy, 5_000).request.messages


def test_the_numbers_of_a_small_conversation() -> None:
    messages = [user(20), *exchange("c1", 1_200), *exchange("c2", 1_200), *exchange("c3", 1_200)]
    whole = fitted(messages, None)
    assert (whole.shortened, whole.left_out) == (0, 0)
    assert whole.tokens == TokenSplit(conversation=77, tool_results=918, reserved_output=50)
    assert fitted(messages, 1_045).tokens == whole.tokens
    shortened = fitted(messages, 1_044)
    assert (shortened.shortened, shortened.left_out) == (1, 0)
    assert shortened.request.messages[2].text == (
        "[This call succeeded. The 1200 bytes that it returned were left out, as they are too old to fit. "
        "Do not call look again only to read them.]"
    )
    left_out = fitted(messages, 600)
    assert (left_out.shortened, left_out.left_out) == (2, 0)
    left_out = fitted(messages, 470)
    assert (left_out.shortened, left_out.left_out) == (0, 4)
    assert left_out.request.messages == (messages[0], LEFT_OUT, *messages[5:])


@pytest.mark.parametrize(
    ("tool", "contracts", "again"),
    [
        ("look", (LOOK,), "Call look again if you need them."),
        ("pay", (PAY,), "Do not call pay again only to read them."),
        ("gone", (LOOK,), "Do not call gone again only to read them."),
        ("look", (LOOK.model_copy(update={"idempotency": "non_idempotent"}),), "Do not call look again only to read"),
    ],
)
def test_only_a_call_without_effect_may_be_made_again(
    tool: str, contracts: tuple[ToolContract, ...], again: str
) -> None:
    messages = [user(20), *exchange("c1", 4_000, tool=tool), *exchange("c2", 4)]
    sent = fit(asked(messages, *contracts), budget(600), estimate_tokens).request.messages
    assert again in sent[2].text
    assert sent[2].call_id == "c1_0"


def test_a_failure_stays_a_failure() -> None:
    failed = Message(role="tool", call_id="c1_0", text="é" * 1_000, ok=False)
    messages = [user(20), exchange("c1", 1)[0], failed, *exchange("c2", 4)]
    short = fitted(messages, 600).request.messages[2]
    assert not short.ok
    assert short.text.startswith("[This call failed. The 2000 bytes")


def test_schemas_instructions_and_the_reserved_output_count_and_stay() -> None:
    request = CompletionRequest(
        "m", "i" * 400, (user(20),), (LOOK,), ModelSettings(max_output_tokens=300), {"type": "object"}
    )
    found = fit(request, ContextBudget(), estimate_tokens, 10_000)
    assert found.tokens == TokenSplit(
        system=104, conversation=20, tool_schemas=22, output_schema=9, reserved_output=300
    )
    assert found.input_tokens == 155
    with pytest.raises(WindowExceeded, match="needs 455 tokens and the model's window has 454"):
        fit(request, ContextBudget(), estimate_tokens, 454)
    assert fit(request, ContextBudget(window=455), estimate_tokens, 454).request is request
    assert fit(request, ContextBudget(reserved_output=299), estimate_tokens, 454).request is request
    assert fit(asked((user(20),)), ContextBudget(), estimate_tokens).tokens.reserved_output == 1_024


@pytest.mark.parametrize(
    ("request_", "advice"),
    [
        (asked((user(20),), instructions="i" * 4_000), "shorten the agent's instructions"),
        (asked((user(1_000),)), "send a shorter prompt or lower context.recent_messages"),
        (asked((user(20), *exchange("c", 4_000))), "lower tool_output.max_tokens or context.recent_exchanges"),
        (asked((user(20),), *[LOOK] * 40), "give the agent fewer tools or shorter schemas"),
        (asked((user(200),)), "send a shorter prompt"),
    ],
)
def test_a_request_that_cannot_fit_says_what_needs_most(request_: CompletionRequest, advice: str) -> None:
    with pytest.raises(WindowExceeded) as caught:
        fit(request_, budget(150), estimate_tokens)
    told = str(caught.value)
    assert advice in told
    for source in ("system", "conversation", "tool results", "tool schemas", "output schema", "reserved output 50"):
        assert source in told
    assert len(told) < 500


def test_the_request_stays_through_any_number_of_hints() -> None:
    hints = [Message(role="user", text=EMPTY_REPLY_HINT)] * 3
    messages = [user(60, "o"), answer(60), user(60), *exchange("c1", 4_000), *exchange("c2", 4), *hints]
    sent = fitted(messages, 230).request.messages
    assert sent == (LEFT_OUT, messages[2], *messages[5:7], *hints[1:])


@pytest.mark.parametrize("text", [EMPTY_REPLY_HINT, f"{EMPTY_REPLY_HINT} And: refund it.", f"{OUTPUT_HINT}refund it"])
def test_a_request_in_the_words_of_a_hint_stays(text: str) -> None:
    request = Message(role="user", text=text)
    hints = [Message(role="user", text=EMPTY_REPLY_HINT)] * 3
    sent = fitted([request, answer(60), *exchange("c1", 4_000), *exchange("c2", 4), *hints], 230).request.messages
    assert sent[0] == request
    assert LEFT_OUT in sent


def test_results_that_the_model_has_not_read_stay_whatever_the_budget_says() -> None:
    messages = [user(20), *exchange("c1", 2_000), *exchange("c2", 2_000)]
    sent = fitted(messages, 700, recent_exchanges=0).request.messages
    assert sent[-1] == messages[-1]
    with pytest.raises(WindowExceeded):
        fitted(messages, 500, recent_exchanges=0)
    read = [*messages, answer(20), user(20, "v")]
    assert fitted(read, 300, recent_exchanges=0).left_out + fitted(read, 300, recent_exchanges=0).shortened > 0


def test_a_reply_is_not_the_first_that_is_sent() -> None:
    messages = [user(500), answer(50), user(50, "v")]
    sent = fitted(messages, 300).request.messages
    assert sent == (LEFT_OUT, *messages[1:])


def test_a_part_of_an_exchange_is_never_left_out() -> None:
    # As reported of others: a cut by size between a call and its results, with limits that fall on every message.
    first = [user(30, "o"), *exchange("c", 200, 210), answer(40)]
    for messages in ([*first, user(30)], [user(30), *exchange("c", 2_000, 3_000)]):
        for window in range(60, 1_600, 5):
            try:
                sent = fitted(messages, window).request.messages
            except WindowExceeded:
                continue
            assert illegality(sent) is None
            wire = ChatCompletions().body(asked(sent, instructions="s"), stream=False)["messages"]
            assert isinstance(wire, list)
            assert messages_illegality(wire) is None
            assert next(message for message in messages if message.role == "user" and "u" in message.text) in sent


def test_one_that_began_with_the_assistant_does_so_no_more() -> None:
    messages = [answer(20), user(20), *exchange("c1", 2_000), *exchange("c2", 4)]
    assert fitted(messages, 800).request.messages == tuple(messages)
    assert fitted(messages, 170).request.messages == (LEFT_OUT, *messages[:2], *messages[4:])


def test_no_window_is_refused_that_is_large_enough() -> None:
    messages = [user(20), *(message for n in range(12) for message in (answer(12 + n), user(20 + n)))]
    least = tokens([LEFT_OUT, *messages[-2:]]) + RESERVED
    for window in range(least, tokens(messages) + RESERVED + 1):
        assert fitted(messages, window).tokens.total <= window


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(lambda n: (answer(12 + n), user(20 + n)), id="messages left out"),
        pytest.param(lambda n: exchange(f"c{n}", 300 + n), id="results shortened"),
    ],
)
def test_one_token_more_never_keeps_less(part: Callable[[int], tuple[Message, ...]]) -> None:
    messages = [user(20), *(message for n in range(16) for message in part(n))]
    whole = tokens(messages) + RESERVED
    before = None
    for window in range(whole // 2, whole + 1):
        left_out, shortened = fate(messages, fitted(messages, window).request.messages)
        if before is not None:
            assert left_out <= before[0]
            assert shortened <= before[0] | before[1]
        before = left_out, shortened
    assert before == (set(), set())


def test_names_and_arguments_count() -> None:
    call = ToolCall(call_id="c", tool="look", arguments={"place": "p" * 400})
    assert message_tokens(Message(role="assistant", text="t" * 40, tool_calls=(call,)), estimate_tokens) == 8 + 123


def test_opaque_blocks_count() -> None:
    block: JsonValue = {"from": "x:m", "block": {"signature": "s" * 4_000}}
    plain, thinking = exchange("c", 4)[0], exchange("c", 4, opaque=(block, {"call": 0}))[0]
    assert message_tokens(thinking, estimate_tokens) - message_tokens(plain, estimate_tokens) == 1_004


def test_each_message_is_counted_once() -> None:
    seen: list[str] = []

    def count(text: str) -> int:
        seen.append(text)
        return estimate_tokens(text)

    messages = [user(20), *(message for n in range(100) for message in exchange(f"c{n}", 2_000))]
    fit(asked(messages), budget(None), count)
    assert len(seen) == 201
    seen.clear()
    fit(asked(messages), budget(5_000), count)
    # The short results and the word about what was left out as well.
    assert len(seen) == 201 + 100 + 1


def test_hints_of_the_runtime_are_known_as_such() -> None:
    assert is_hint(Message(role="user", text=EMPTY_REPLY_HINT))
    assert is_hint(Message(role="user", text=f"{OUTPUT_HINT}/total: is missing"))
    assert not is_hint(Message(role="user", text="Please refund ord_1."))
    assert not is_hint(Message(role="user", text=f"{EMPTY_REPLY_HINT} And refund ord_1."))
    assert not is_hint(Message(role="assistant", text=EMPTY_REPLY_HINT))


def test_a_turn_that_was_paused_stays_or_goes_with_its_pieces() -> None:
    block: JsonValue = {"from": "x:m", "block": {"searched": "s" * 400}}
    paused = [Message(role="assistant", text=f"{n}", opaque=(block, {"text": 1})) for n in range(3)]
    messages = [user(20), *paused, user(20, "v"), *paused, *exchange("c1", 4), *exchange("c2", 4)]
    assert fitted(messages, 500).request.messages == (LEFT_OUT, *messages[1:5], *messages[-2:])
    assert fitted(messages, 200, recent_messages=1).request.messages == (LEFT_OUT, messages[4], *messages[-2:])


# -- counters of an app -----------------------------------------------------------------------------------------------


def words(text: str) -> int:
    return len(text.split())


def characters(text: str) -> int:
    return len(text)


def test_the_counter_with_the_longest_matching_beginning_counts() -> None:
    counters = [TokenCounter("openai:", words), TokenCounter("openai:gpt-4", characters)]
    for ordered in (counters, counters[::-1]):
        assert counter_for("openai:gpt-4.1", ordered)("two words") == 9
        assert counter_for("openai:o3", ordered)("two words") == 2
        assert counter_for("anthropic:o3", ordered) is estimate_tokens
    assert fit(asked([user(20)]), budget(None), counter_for("openai:o3", counters)).input_tokens == 5


@pytest.mark.parametrize(("returned", "shown"), [(-1, "-1"), (1.5, "a float"), (True, "a bool"), (None, "a NoneType")])
def test_what_is_no_number_of_tokens_is_not_taken_for_one(returned: object, shown: str) -> None:
    counter = TokenCounter("openai:", lambda text: returned)  # type: ignore[arg-type,return-value]  # an app's mistake
    with pytest.raises(CountFailed, match=f"for models 'openai:' returned {shown}, which is no number of tokens"):
        fit(asked([user(20)]), budget(None), counter_for("openai:m", [counter]))


def refuses(text: str) -> int:
    raise ValueError(f"cannot read {text}")


def test_a_counter_that_fails_is_named_without_the_text_and_nothing_is_estimated_instead() -> None:
    with pytest.raises(CountFailed) as caught:
        fit(asked([user(20, "S")]), budget(None), counter_for("openai:m", [TokenCounter("openai:", refuses)]))
    told = (
        "the token counter tests.test_window.refuses for models 'openai:' raised ValueError on a text of 64 characters"
    )
    assert str(caught.value) == told
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_counter_gets_text_that_can_be_encoded() -> None:
    lone = Message(role="user", text="\ud800")
    counter = TokenCounter("openai:", lambda text: len(text.encode()))
    assert fit(asked([lone]), budget(None), counter_for("openai:m", [counter])).input_tokens == 4 + 3
