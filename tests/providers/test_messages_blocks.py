"""Blocks of the API's own: kept as they came, and back in their place."""

import json

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.failures import Endpoint
from activities.providers.http_model import HttpModel
from activities.providers.messages import Messages
from contracts.messages import Message
from tests.providers.asking_messages import (
    KEY,
    NOOP,
    USER,
    answered,
    asked,
    both_ways,
    delta,
    events,
    recorded,
    reply,
    results,
    sent,
    streamed,
    text,
    thinking,
    tool_use,
)
from tests.providers.legality import messages_illegality
from tests.providers.legality_messages import WhatItGave
from tests.providers.model_server import ModelServer, RecordedConversation, Response, Streamed
from tests.support.loopback import loopback_client

REDACTED: JsonValue = {"type": "redacted_thinking", "data": "zz"}
CITED: JsonValue = [{"type": "web_search_result_location", "url": "https://x", "encrypted_index": "e1"}]


def search(id: str = "srv_1") -> JsonValue:
    return {"type": "server_tool_use", "id": id, "name": "web_search", "input": {"query": "q"}}


def finding(id: str = "srv_1") -> JsonValue:
    return {"type": "web_search_tool_result", "tool_use_id": id, "content": [{"type": "web_search_result", "url": "u"}]}


def back(*messages: Message) -> JsonValue:
    """What the first assistant turn of a conversation looks like on the wire."""
    return next(message["content"] for message in sent(asked(USER, *messages)) if message["role"] == "assistant")


THOUGHTFUL: list[list[JsonValue]] = [
    [thinking("t", "s1"), REDACTED, tool_use("toolu_1")],
    [thinking("", "s1"), tool_use("toolu_1")],
    [thinking("t", "s1"), text("Let me see."), tool_use("toolu_1"), tool_use("toolu_2", x=1)],
    [text("First."), thinking("t", "s1"), text("Then."), tool_use("toolu_1"), thinking("u", "s2"), tool_use("toolu_2")],
    [tool_use("toolu_1"), text("after the call")],
    [{"type": "compaction", "content": "Summary.", "encrypted_content": "e"}, text("Hi"), tool_use("toolu_1")],
    [text("See."), search(), finding(), text("Found."), tool_use("toolu_1")],
    [{"type": "future_block", "value": {"deep": [1, None]}}, tool_use("toolu_1")],
]


@pytest.mark.parametrize("content", THOUGHTFUL)
async def test_rx02_blocks_go_back_byte_by_byte_and_in_their_place(content: list[JsonValue]) -> None:
    message = recorded(await both_ways(reply(*content, stop_reason="tool_use")))
    assert back(message, *results(message)) == content


async def test_rx02_a_server_that_remembers_its_blocks_accepts_them() -> None:
    content = [thinking("t", "s1"), REDACTED, tool_use("toolu_1")]
    responses = [streamed(reply(*content, stop_reason="tool_use")), streamed(reply(text("Done.")))]
    played = RecordedConversation(responses, WhatItGave([content]).request_illegality)
    async with ModelServer(played) as server, loopback_client() as http:
        model = HttpModel(http, Messages(), server.base_url, KEY)
        first = recorded(await model.complete(asked(tools=(NOOP,))))
        last = await model.complete(asked(USER, first, *results(first), tools=(NOOP,)))
    assert (played.refused, last.text) == ([], "Done.")


@pytest.mark.parametrize("signature", ["", None])
async def test_rx02_thinking_without_a_signature_is_kept_and_not_sent(signature: str | None) -> None:
    content = [thinking("t", signature), tool_use("toolu_1")]
    completion = await both_ways(reply(*content, stop_reason="tool_use"))
    message = recorded(completion)
    assert isinstance(message.opaque[0], dict)
    assert message.opaque[0]["block"] == content[0]
    assert message.opaque[0]["reasoning"] == ["/thinking"]
    assert back(message, *results(message)) == [tool_use("toolu_1")]


async def test_a_turn_of_nothing_but_unsigned_thinking_is_left_out() -> None:
    message = recorded(await both_ways(reply(thinking("t", ""))))
    again = sent(asked(USER, message, Message(role="user", text="Say something.")))
    assert again == [{"role": "user", "content": [text("Hello"), text("Say something.")]}]


async def test_pointers_lead_to_reasoning_where_there_is_some() -> None:
    completion = await both_ways(reply(thinking("Hm.", "s1"), thinking("", "s2"), REDACTED, text("Hi")))
    assert completion.opaque == (
        {"block": thinking("Hm.", "s1"), "reasoning": ["/thinking"]},
        {"block": thinking("", "s2")},
        {"block": REDACTED},
        {"text": 2},
    )


async def test_a_turn_of_text_and_calls_needs_no_list_of_its_parts() -> None:
    completion = await both_ways(reply(text("One. "), text("Two."), tool_use("toolu_1"), stop_reason="tool_use"))
    assert (completion.text, completion.opaque) == ("One. Two.", ())


async def test_a_cited_text_is_counted_once_and_goes_back_with_its_citations() -> None:
    content = [search(), finding(), text("Because "), text("it is so", citations=CITED), text(".")]
    completion = await answered(Response.of(reply(*content)))
    assert completion.text == "Because it is so."
    assert [part for part in completion.opaque if isinstance(part, dict) and "text" in part] == [
        {"text": 8},
        {"text": 8},
        {"text": 1},
    ]
    assert {"block": {"type": "text", "citations": CITED}} in completion.opaque
    message = recorded(completion)
    assert back(message, USER) == content
    # Any other model reads the text, and nothing of the rest.
    elsewhere = ChatCompletions().body(asked(USER, message, USER), stream=False)["messages"]
    assert isinstance(elsewhere, list)
    assert messages_illegality(elsewhere) is None
    assert str(elsewhere).count("it is so") == 1


async def test_citations_are_gathered_from_a_stream() -> None:
    whole = list(events(reply(search(), finding(), text("it is so", citations=None))))
    place = max(index for index, event in enumerate(whole) if "content_block_stop" in str(event))
    first: JsonValue = {"type": "char_location", "cited_text": "so"}
    assert isinstance(CITED, list)
    whole[place:place] = [delta(2, "citations_delta", citation=each) for each in (CITED[0], first)]
    message = recorded(await answered(Streamed.of_events(*whole)))
    assert back(message, USER) == [search(), finding(), text("it is so", citations=[CITED[0], first])]


async def test_deltas_of_kinds_that_nobody_knows_are_kept() -> None:
    started: JsonValue = {"type": "future_block", "note": "a", "value": None, "list": [1]}
    whole = list(events(reply(started)))
    grown: JsonValue = {"type": "future_delta", "note": "b", "value": {"x": 1}, "more": "c", "none": None}
    whole.insert(3, {"type": "content_block_delta", "index": 0, "delta": grown})
    completion = await answered(Streamed.of_events(*whole))
    expected: JsonValue = {"type": "future_block", "note": "ab", "value": {"x": 1}, "list": [1], "more": "c"}
    assert completion.opaque == ({"block": expected},)


async def test_what_an_event_says_of_the_whole_reply_is_kept() -> None:
    stream = Messages().reply_stream(Endpoint("http://h/v1/messages", "ANTHROPIC_API_KEY"))
    whole = list(events(reply(text("Hi"))))
    edits: JsonValue = {"applied_edits": [{"type": "clear_tool_uses_20250919"}]}
    whole[-2] = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "context_management": edits}
    for event in whole:
        list(stream.add("", json.dumps(event)))
    assert stream.reply()["context_management"] == edits


async def test_a_call_whose_arguments_come_at_once_keeps_them() -> None:
    whole = [each for each in events(reply(tool_use("toolu_1"))) if "delta" not in str(each)]
    whole[2] = {"type": "content_block_start", "index": 0, "content_block": tool_use("toolu_1", x=1)}
    completion = await answered(Streamed.of_events(*whole))
    assert [call.arguments for call in completion.calls] == ['{"x":1}']


async def test_a_call_without_a_name_or_an_id_is_kept_for_the_model_to_hear_of() -> None:
    completion = await answered(Response.of(reply({"type": "tool_use", "input": {}}, {"type": "tool_use"})))
    assert [(call.name, call.arguments, call.provider_call_id) for call in completion.calls] == [
        ("", "{}", None),
        ("", "", None),
    ]


async def paused(*content: JsonValue) -> Message:
    completion = await both_ways(reply(*content, stop_reason="pause_turn"))
    assert completion.paused
    return recorded(completion)


async def test_a_paused_turn_is_the_last_one_and_what_follows_belongs_to_it() -> None:
    first = await paused(text("Let me see. "), search())
    assert sent(asked(USER, first))[1:] == [{"role": "assistant", "content": [text("Let me see. "), search()]}]
    second = await paused(finding(), search("srv_2"), text(" more \n"))
    going_on = sent(asked(USER, first, second))
    # The end of a turn to go on with must not be blank.
    assert going_on[1:] == [
        {"role": "assistant", "content": [text("Let me see. "), search(), finding(), search("srv_2"), text(" more")]}
    ]
    last = recorded(await both_ways(reply(finding("srv_2"), text("Found."))))
    assert [message["role"] for message in sent(asked(USER, first, second, last, USER))] == [
        "user",
        "assistant",
        "user",
    ]


async def test_a_search_may_still_be_on_while_our_own_tools_run() -> None:
    message = recorded(await both_ways(reply(search(), tool_use("toolu_1"), stop_reason="tool_use")))
    assert back(message, *results(message)) == [search(), tool_use("toolu_1")]
    then = recorded(await both_ways(reply(finding(), text("Done."))))
    assert back(message, *results(message), then, USER) == [search(), tool_use("toolu_1")]


async def test_half_of_a_search_stays_away_when_it_is_over() -> None:
    cut = await paused(text("Let me see."), search())
    assert back(cut, USER) == [text("Let me see.")]
    rest = recorded(await both_ways(reply(finding(), text("Found."))))
    # The turn before it is not in the window any more, or is another model's.
    assert back(rest, USER) == [text("Found.")]


async def test_a_search_that_the_limit_cut_off_stays_away() -> None:
    whole = list(events(reply(search(), stop_reason="max_tokens")))
    written = next(index for index, event in enumerate(whole) if "input_json_delta" in str(event))
    del whole[written + 1]
    message = recorded(await answered(Streamed.of_events(*whole)))
    assert sent(asked(USER, message)) == [{"role": "user", "content": [text("Hello")]}]


async def test_a_turn_of_another_api_that_is_to_go_on_gets_a_user_to_say_so() -> None:
    message = (await paused(text("Let me see."), search())).model_copy(update={"opaque": ()})
    assert [each["role"] for each in sent(asked(USER, message))] == ["user", "assistant", "user"]
