"""Reasoning and signatures of chat models: kept as they were given, and sent back where their server wants them."""

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.chat_servers import DEEPSEEK
from activities.providers.interface import Completion
from contracts.messages import Message, ToolCall
from tests.providers.asking import answered, asked, failed
from tests.providers.chat_chunks import chunk, streamed
from tests.providers.legality import messages_illegality
from tests.providers.model_server import Streamed, chat_reply

CALL: dict[str, JsonValue] = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USER = Message(role="user", text="Hello")
ANSWER = Message(role="tool", call_id="call_1", text="seen")
SIGNED: JsonValue = {"google": {"thought_signature": "c2ln"}}
DETAILS: JsonValue = [
    {"type": "reasoning.text", "text": "Hm.", "signature": "c2ln", "format": "f", "index": 0},
    {"type": "reasoning.encrypted", "data": "ZGF0YQ==", "id": None, "index": 1},
]


def turn(completion: Completion) -> Message:
    """The turn as a run records it."""
    calls = tuple(
        ToolCall(call_id=f"call_{n}", tool=raw.name, arguments={}, provider_call_id=raw.provider_call_id)
        for n, raw in enumerate(completion.calls, start=1)
    )
    return Message(role="assistant", text=completion.text, tool_calls=calls, opaque=completion.opaque)


def sent(*messages: Message, dialect: ChatCompletions | None = None) -> list[dict[str, JsonValue]]:
    """The assistant's turns on the wire."""
    wire = (dialect or ChatCompletions()).body(asked(USER, *messages), stream=True)["messages"]
    assert isinstance(wire, list)
    assert messages_illegality(wire) is None
    return [message for message in wire if isinstance(message, dict) and message["role"] == "assistant"]


@pytest.mark.parametrize(
    ("message", "block", "pointers"),
    [
        ({"reasoning_content": "Hm."}, {"reasoning_content": "Hm."}, ["/fields/reasoning_content"]),
        ({"reasoning": "Hm."}, {"reasoning": "Hm."}, ["/fields/reasoning"]),
        ({"reasoning_text": "Hm.", "reasoning_opaque": "x"}, None, ["/fields/reasoning_text"]),
        ({"reasoning_details": DETAILS}, None, ["/fields/reasoning_details/0/text"]),
        ({"reasoning": "Hm.", "reasoning_details": DETAILS}, None, ["/fields/reasoning"]),
        ({"extra_content": SIGNED}, None, []),
        ({"reasoning_content": None, "reasoning": 5, "reasoning_details": []}, {}, []),
        ({"reasoning_content": "", "tool_calls": None}, {}, []),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_given_is_kept(
    message: dict[str, JsonValue], block: JsonValue, pointers: list[JsonValue], stream: bool
) -> None:
    reply = chat_reply({"role": "assistant", "content": "Hi", **message})
    completion = await answered(streamed(reply) if stream else reply)
    fields = message if block is None else block
    kept: list[JsonValue] = [{"block": {"fields": fields}, "reasoning": pointers}, {"text": 2}]
    assert list(completion.opaque) == (kept if fields else [])
    assert completion.text == "Hi"


async def test_reasoning_in_the_content_keeps_its_place_and_goes_back() -> None:
    thinking: JsonValue = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "closed": True}
    content: JsonValue = [thinking, {"type": "text", "text": "Hi"}, {"type": "reference", "reference_ids": [1]}]
    for reply in (chat_reply({"content": content}), streamed(chat_reply({"content": content}))):
        completion = await answered(reply)
        assert completion.text == "Hi"
        assert list(completion.opaque) == [
            {"block": {"content": thinking}, "reasoning": ["/content/thinking/0/text"]},
            {"text": 2},
            {"block": {"content": {"type": "reference", "reference_ids": [1]}}, "reasoning": []},
        ]
        assert sent(turn(completion), USER) == [{"role": "assistant", "content": content}]


async def test_thinking_that_is_streamed_in_pieces_is_one_part() -> None:
    texts: list[JsonValue] = [{"type": "text", "text": text} for text in ("Hm", ".")]
    deltas: list[JsonValue] = [{"content": [{"type": "thinking", "thinking": [text]}]} for text in texts]
    deltas += [{"content": "H"}, {"content": "i"}]
    events = [chunk(delta) for delta in deltas]
    completion = await answered(Streamed.of_events(*events, chunk({}, "stop"), "[DONE]"))
    assert completion.text == "Hi"
    assert completion.opaque[0] == {
        "block": {"content": {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}},
        "reasoning": ["/content/thinking/0/text"],
    }


async def test_blocks_of_reasoning_that_are_streamed_in_pieces_go_back_whole() -> None:
    pieces: list[JsonValue] = [
        {"type": "reasoning.text", "text": "H", "id": "r", "index": 0},
        {"type": "reasoning.text", "text": "m.", "index": 0, "signature": None},
        {"type": "reasoning.text", "signature": "c2ln", "index": 0},
        {"type": "reasoning.encrypted", "data": "QQ==", "index": 0},
        {"type": "reasoning.encrypted", "data": "Qg==", "index": 0},
        {"type": "reasoning.text", "text": "More.", "index": 1},
    ]
    events = [chunk({"reasoning_details": [piece]}) for piece in pieces]
    completion = await answered(Streamed.of_events(*events, chunk({"content": "Hi"}, "stop"), "[DONE]"))
    (wire,) = sent(turn(completion), USER)
    first: JsonValue = {"type": "reasoning.text", "text": "Hm.", "id": "r", "index": 0, "signature": "c2ln"}
    assert wire["reasoning_details"] == [first, *pieces[3:]]


@pytest.mark.parametrize("stream", [False, True])
async def test_signatures_of_calls_go_back_with_their_calls(stream: bool) -> None:
    calls: JsonValue = [CALL | {"extra_content": SIGNED}, CALL | {"id": "b"}]
    reply = chat_reply({"content": "Hi", "tool_calls": calls}, "tool_calls")
    completion = await answered(streamed(reply) if stream else reply)
    assert list(completion.opaque) == [
        {"text": 2},
        {"call": 0},
        {"block": {"call": 0, "fields": {"extra_content": SIGNED}}, "reasoning": []},
        {"call": 1},
    ]
    second = ANSWER.model_copy(update={"call_id": "call_2"})
    (wire,) = sent(turn(completion), ANSWER, second)
    assert wire["tool_calls"] == calls


async def test_reasoning_goes_back_where_tools_were_called_since_the_last_user_message() -> None:
    thinking = await answered(chat_reply({"content": None, "reasoning_content": "One.", "tool_calls": [CALL]}))
    final = await answered(chat_reply({"content": "Hi", "reasoning_content": "Two."}))
    assert [wire.get("reasoning_content") for wire in sent(turn(thinking), ANSWER, turn(final), USER)] == [
        "One.",
        "Two.",
    ]
    assert [wire.get("reasoning_content") for wire in sent(turn(final), USER, turn(final), USER)] == [None, None]
    # Even empty reasoning was given, and DeepSeek wants to see it.
    silent = await answered(chat_reply({"content": None, "reasoning_content": "", "tool_calls": [CALL]}))
    assert sent(turn(silent), ANSWER)[0]["reasoning_content"] == ""


def test_deepseek_reads_of_another_models_calls_that_there_is_no_reasoning() -> None:
    calling = Message(role="assistant", tool_calls=(ToolCall(call_id="call_1", tool="look", arguments={}),))
    assert sent(calling, ANSWER, dialect=ChatCompletions(DEEPSEEK))[0]["reasoning_content"] == ""
    assert "reasoning_content" not in sent(calling, ANSWER)[0]


async def test_the_reasoning_of_groq_and_vllm_is_kept_and_stays_here() -> None:
    completion = await answered(chat_reply({"content": "Hi", "reasoning": "Hm.", "tool_calls": [CALL]}))
    assert completion.opaque[0] == {"block": {"fields": {"reasoning": "Hm."}}, "reasoning": ["/fields/reasoning"]}
    assert "reasoning" not in sent(turn(completion), ANSWER)[0]


async def test_a_turn_of_nothing_but_reasoning_is_not_sent() -> None:
    thinking: JsonValue = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    messages: list[JsonValue] = [{"content": "", "reasoning_content": "Hm."}, {"content": [thinking]}]
    for message in messages:
        completion = await answered(chat_reply(message))
        assert completion.opaque
        assert sent(turn(completion), USER) == []


def test_parts_that_make_no_sense_are_left_out() -> None:
    odd: tuple[JsonValue, ...] = (
        {"block": {"call": 7, "fields": {"extra_content": {}}}},
        {"block": {"call": -1, "fields": {"extra_content": {}}}},
        {"block": {"fields": []}},
        {"block": {"what": 1}},
        {"text": 2},
    )
    assert sent(Message(role="assistant", text="Hi", opaque=odd), USER) == [{"role": "assistant", "content": "Hi"}]


async def test_tags_in_the_text_are_text() -> None:
    completion = await answered(chat_reply({"content": "<think>Hm.</think>Hi"}))
    assert (completion.text, completion.opaque) == ("<think>Hm.</think>Hi", ())


async def test_what_is_kept_can_be_recorded() -> None:
    nested: JsonValue = "x"
    for _ in range(70):
        nested = [nested]
    failure = await failed(chat_reply({"content": "Hi", "reasoning_details": [nested]}))
    assert (failure.type, failure.retryable) == ("ModelBehaviour", False)
    completion = await answered(chat_reply({"content": "Hi", "reasoning_details": [{"text": "\ud83d"}]}))
    assert "\ufffd" in str(completion.opaque)
