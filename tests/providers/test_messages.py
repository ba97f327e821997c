import pytest
from pydantic import JsonValue

from activities.arguments import propose
from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.providers.messages import Messages
from contracts.messages import InvalidToolCall, Message, ToolCall
from tests.providers.asking import answered as answered_by_chat
from tests.providers.asking_messages import (
    KEY,
    NOOP,
    USER,
    answered,
    asked,
    body_of,
    reply,
    sent,
    streamed,
    text,
    tool_use,
)
from tests.providers.legality import messages_illegality
from tests.providers.legality_messages import request_illegality
from tests.providers.model_server import ModelServer, RecordedConversation, Response, Streamed, chat_reply
from tests.support.loopback import loopback_client

BROKEN = '{"path": "/tmp/a", "content": "abc'


def call(call_id: str, provider_call_id: str | None = None, **arguments: JsonValue) -> ToolCall:
    return ToolCall(call_id=call_id, tool="noop", arguments=arguments, provider_call_id=provider_call_id)


def said(words: str) -> Message:
    return Message(role="assistant", text=words)


def user(words: str) -> Message:
    return Message(role="user", text=words)


def answer(call_id: str, words: str = "ok", ok: bool = True) -> Message:
    return Message(role="tool", call_id=call_id, text=words, ok=ok)


async def test_the_request_says_what_the_api_needs() -> None:
    async with ModelServer([Response.of(reply(text("Hi")))]) as server, loopback_client() as http:
        await HttpModel(http, Messages(), server.base_url, KEY, streaming=False).complete(asked(tools=(NOOP,)))
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert request.headers["x-api-key"] == KEY
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in request.headers
    assert request.json == {
        "model": "claude-sonnet-4-6",
        "max_tokens": 8192,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "noop", "description": "Does nothing.", "input_schema": NOOP.input_schema}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]}
        ],
        "stream": False,
    }


async def test_a_server_without_a_key_gets_none() -> None:
    async with ModelServer([streamed(reply(text("Hi")))]) as server, loopback_client() as http:
        assert (await HttpModel(http, Messages(), server.base_url, None).complete(asked())).text == "Hi"
    assert "x-api-key" not in server.requests[0].headers
    assert (server.requests[0].json or {})["stream"] is True


async def test_another_version_of_the_api_is_a_header_away() -> None:
    async with ModelServer([streamed(reply(text("Hi")))]) as server, loopback_client() as http:
        headers = {"anthropic-version": "2026-10-21"}
        await HttpModel(http, Messages(), server.base_url, KEY, headers=headers).complete(asked())
    assert server.requests[0].headers["anthropic-version"] == "2026-10-21"


def test_results_come_first_in_the_users_turn_and_what_the_user_says_after_them() -> None:
    turn = Message(role="assistant", text="Let me see.", tool_calls=(call("call_1", "toolu_1", x=1), call("call_2")))
    failed = answer("call_2", "it broke", ok=False)
    assert sent(asked(USER, user("Again"), turn, answer("call_1"), failed, user("And?"), user("Well?"))) == [
        {"role": "user", "content": [text("Hello"), text("Again")]},
        {"role": "assistant", "content": [text("Let me see."), tool_use("toolu_1", x=1), tool_use("call_2")]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"},
                {"type": "tool_result", "tool_use_id": "call_2", "content": "it broke", "is_error": True},
                text("And?"),
                text("Well?"),
            ],
        },
    ]


@pytest.mark.parametrize("blank", ["", " ", "\n\t ", "\u2028"])
def test_no_blank_text_is_sent_anywhere(blank: str) -> None:
    turn = Message(role="assistant", text=blank, tool_calls=(call("call_1"),))
    assert sent(asked(USER, user(blank), said(blank), user("Go."), turn, answer("call_1", blank), user(blank))) == [
        {"role": "user", "content": [text("Hello"), text("Go.")]},
        {"role": "assistant", "content": [tool_use("call_1")]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1"}]},
    ]


def test_a_system_text_that_is_blank_is_left_out() -> None:
    request = asked()
    assert "system" not in body_of(type(request)("m", " ", request.messages, ()))


def test_a_conversation_that_the_assistant_begins_or_ends_gets_a_user() -> None:
    both = sent(asked(said("Welcome. ")))
    assert [message["role"] for message in both] == ["user", "assistant", "user"]
    assert [message["role"] for message in sent(asked(said("Welcome."), USER))] == ["user", "assistant", "user"]
    # Nothing is taken from what the assistant said: only the end of the last turn must not be blank.
    assert both[1]["content"] == [text("Welcome. ")]


def test_a_conversation_that_says_nothing_is_still_legal() -> None:
    assert [message["role"] for message in sent(asked(user(" ")))] == ["user"]


def test_only_legal_ids_and_names_are_sent_each_id_once() -> None:
    calls = [call("call_1", "functions.noop:0"), call("call 2!"), call("call_2_"), call("call_3", "toolu_1")]
    later = [call("call_4", "toolu_1"), call("", "")]
    odd = ToolCall(call_id="call_5", tool="no op\n!", arguments={})
    messages = [USER, Message(role="assistant", tool_calls=tuple(calls)), *(answer(each.call_id) for each in calls)]
    messages += [Message(role="assistant", tool_calls=(*later, odd))]
    messages += [*(answer(each.call_id) for each in later), answer("call_5")]
    content = [block for message in sent(asked(*messages)) for block in message["content"]]  # type: ignore[union-attr]  # checked by sent()
    assert [block["id"] for block in content if block["type"] == "tool_use"] == [  # type: ignore[index,call-overload]  # as above
        *("call_1", "call_2_", "call_2__", "toolu_1", "call_4", "call", "call_5")
    ]
    assert content[-4]["name"] == "no_op__"  # type: ignore[index,call-overload]  # as above


def test_a_call_that_nobody_answered_is_answered_by_us() -> None:
    turn = Message(role="assistant", tool_calls=(call("call_1"), call("call_2")))
    last = sent(asked(USER, turn, answer("call_2"), user("Go on.")))[-1]["content"]
    assert isinstance(last, list)
    assert [block.get("is_error", False) for block in last if isinstance(block, dict)] == [True, False, False]


def test_equal_transcripts_have_equal_beginnings_and_few_cache_breakpoints() -> None:
    turn = Message(role="assistant", tool_calls=(call("call_1"),))
    short, long = sent(asked(USER)), sent(asked(USER, turn, answer("call_1"), user("More?")))
    assert long[: len(short)] == short
    messages = body_of(asked(USER, turn, answer("call_1"), user("More?")))["messages"]
    assert isinstance(messages, list)
    assert [str(message).count("cache_control") for message in messages] == [0, 0, 1]
    assert str(messages[-1]).endswith("'text': 'More?', 'cache_control': {'type': 'ephemeral'}}]}")


async def test_lone_surrogates_and_numbers_that_json_does_not_have_are_made_legal() -> None:
    turn = Message(role="assistant", tool_calls=(call("call_1", x=float("nan"), y="hi \ud83d"),))
    async with ModelServer([streamed(reply(text("Hi")))]) as server, loopback_client() as http:
        await HttpModel(http, Messages(), server.base_url, KEY).complete(
            asked(user("cut \ud83d"), turn, answer("call_1"))
        )
    assert "cut \ufffd" in server.requests[0].body.decode()
    assert '"input":{"x":"NaN","y":"hi \ufffd"}' in server.requests[0].body.decode()


async def poisoned(completion_text: str, arguments: str) -> tuple[Message, InvalidToolCall]:
    """A turn of Chat Completions whose call cannot be read, as the transcript keeps it."""
    written: JsonValue = {"id": "call_abc", "type": "function", "function": {"name": "noop", "arguments": arguments}}
    completion = await answered_by_chat(chat_reply({"content": completion_text, "tool_calls": [written]}, "tool_calls"))
    verdict = propose(completion.calls[0], "call_1", {"noop": NOOP}, truncated=completion.truncated)
    assert isinstance(verdict, InvalidToolCall)
    return Message(role="assistant", text=completion.text, tool_calls=(verdict.as_call(),)), verdict


async def test_r06_a_call_that_chat_completions_broke_is_legal_for_both_apis() -> None:
    turn, verdict = await poisoned("", BROKEN)
    assert "not valid JSON" in str(verdict.issues[0])
    assert verdict.raw == BROKEN
    transcript = (USER, turn, answer("call_1", str(verdict.issues[0]), ok=False))
    played = RecordedConversation([streamed(reply(text("I see.")))], request_illegality)
    async with ModelServer(played) as server, loopback_client() as http:
        completion = await HttpModel(http, Messages(), server.base_url, KEY).complete(asked(*transcript))
    assert played.refused == []
    assert completion.text == "I see."
    assert sent(asked(*transcript))[1]["content"] == [tool_use("call_abc")]
    back = ChatCompletions().body(asked(*transcript), stream=False)["messages"]
    assert isinstance(back, list)
    assert messages_illegality(back) is None


async def test_r06_a_broken_call_of_this_api_is_legal_for_both_apis() -> None:
    events = reply({"type": "tool_use", "id": "toolu_1", "name": "noop", "input": {}}, stop_reason="tool_use")
    parts = list(_with_input(events, BROKEN))
    completion = await answered(Streamed.of_events(*parts))
    assert completion.calls[0].arguments == BROKEN
    verdict = propose(completion.calls[0], "call_1", {"noop": NOOP}, truncated=completion.truncated)
    assert isinstance(verdict, InvalidToolCall)
    turn = Message(role="assistant", text=completion.text, tool_calls=(verdict.as_call(),))
    transcript = (USER, turn, answer("call_1", "The arguments were not valid JSON.", ok=False))
    assert sent(asked(*transcript))[1]["content"] == [tool_use("toolu_1")]
    back = ChatCompletions().body(asked(*transcript), stream=False)["messages"]
    assert isinstance(back, list)
    assert messages_illegality(back) is None


def _with_input(message: dict[str, JsonValue], written: str) -> list[JsonValue]:
    content = message["content"]
    assert isinstance(content, list)
    return [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": content[0]},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": written}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": message["stop_reason"]}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


async def test_r08_a_call_cut_off_by_the_limit_of_the_reply_runs_nothing() -> None:
    cut = '{"dir":"/data","only":["tmp"'
    message = reply({"type": "tool_use", "id": "toolu_1", "name": "noop", "input": {}}, stop_reason="max_tokens")
    completion = await answered(Streamed.of_events(*_with_input(message, cut)))
    assert completion.truncated
    assert [each.arguments for each in completion.calls] == [cut]
    verdict = propose(completion.calls[0], "call_1", {"noop": NOOP}, truncated=completion.truncated)
    assert isinstance(verdict, InvalidToolCall)
    assert (verdict.reason, verdict.raw) == ("truncated_reply", cut)


@pytest.mark.parametrize("stop_reason", ["max_tokens", "model_context_window_exceeded"])
async def test_both_limits_mark_a_reply_as_cut_off(stop_reason: str) -> None:
    completion = await answered(Response.of(reply(text("Half"), tool_use("toolu_1"), stop_reason=stop_reason)))
    assert (completion.truncated, completion.finish_reason) == (True, stop_reason)
    assert not (await answered(Response.of(reply(text("Hi"))))).truncated


def test_a_turn_without_anything_in_it_never_goes_back() -> None:
    assert [message["role"] for message in sent(asked(USER, said(" "), user("You said nothing.")))] == ["user"]
