import asyncio

import httpx
import pytest
from pydantic import JsonValue

from activities.providers.addresses import endpoint
from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from contracts.messages import Message, ToolCall
from contracts.tools import ToolContract
from tests.providers.asking import KEY, answered, asked
from tests.providers.legality import messages_illegality
from tests.providers.model_server import ModelServer, Response, chat_reply
from tests.support.loopback import loopback_client

LOOKUP = ToolContract(
    name="lookup", description="Looks up.", input_schema={"type": "object", "properties": {}}, side_effect="read"
)


def wire(*messages: Message) -> list[JsonValue]:
    sent = ChatCompletions().body(asked(*messages), stream=False)["messages"]
    assert isinstance(sent, list)
    assert messages_illegality(sent) is None
    return sent[1:]


def call(call_id: str, provider_call_id: str | None = None, **arguments: JsonValue) -> ToolCall:
    return ToolCall(call_id=call_id, tool="lookup", arguments=arguments, provider_call_id=provider_call_id)


def round_of(*calls: ToolCall) -> tuple[Message, ...]:
    results = (Message(role="tool", text="ok", call_id=each.call_id) for each in calls)
    return (Message(role="assistant", tool_calls=calls), *results)


@pytest.mark.parametrize(
    ("base", "address"),
    [
        ("http://h", "http://h/v1/chat/completions"),
        ("http://h/", "http://h/v1/chat/completions"),
        ("http://h/v1", "http://h/v1/chat/completions"),
        ("http://h/v1/", "http://h/v1/chat/completions"),
        ("http://h//v1//", "http://h/v1/chat/completions"),
        (" http://h/v1\n", "http://h/v1/chat/completions"),
        ("http://h/v1/chat/completions", "http://h/v1/chat/completions"),
        ("http://h/v1/chat/completions/", "http://h/v1/chat/completions"),
        ("HTTPS://h:8443/api/v1", "https://h:8443/api/v1/chat/completions"),
        ("https://h/v1beta/openai", "https://h/v1beta/openai/chat/completions"),
        ("http://[::1]:8080", "http://[::1]:8080/v1/chat/completions"),
    ],
)
def test_every_form_of_a_base_address_leads_to_one_endpoint(base: str, address: str) -> None:
    assert endpoint(base, ChatCompletions.path) == address


@pytest.mark.parametrize(
    "base",
    [
        *("", "h:8080", "//h/v1", "ftp://h/v1", "http://", "http:///v1", "http://h:port/v1", "http://h:99999"),
        *("http://h/v1?x=1", "http://h/v1?", "http://h/v1#top", f"http://user:{KEY}@h/v1", "http://a b/v1"),
        *("http://h/v1\n/x", "http://h\\v1", "http://h/v1/messages", "http://h/v1/completions", "http://[::1/v1"),
    ],
)
def test_an_illegal_base_address_is_refused_in_one_line(base: str) -> None:
    with pytest.raises(ValueError, match=r"^the base address .*$") as caught:
        endpoint(base, ChatCompletions.path)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("key", ["", "  ", f"a {KEY}", "\\\\\\", f"{KEY}\u2028x", f"{KEY}\x00", "sk-TEST-TOKEN-é"])
async def test_an_unusable_key_is_refused_without_showing_it(key: str) -> None:
    async with loopback_client() as http:
        with pytest.raises(ValueError, match="MY_KEY") as caught:
            HttpModel(http, ChatCompletions(), "http://h", key, key_name="MY_KEY")
    assert "TEST-TOKEN" not in str(caught.value)


async def test_the_request_says_what_the_api_needs() -> None:
    async with ModelServer([chat_reply({"content": "Hi"})] * 2) as server, loopback_client() as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, f" {KEY}\n")
        await model.complete(asked())
        await model.complete(asked(tools=(LOOKUP,)))
    plain, with_tools = server.requests
    assert (plain.method, plain.path) == ("POST", "/v1/chat/completions")
    assert plain.headers["authorization"] == f"Bearer {KEY}"
    assert plain.json == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert with_tools.json is not None
    assert with_tools.json["tools"] == [
        {
            "type": "function",
            "function": {"name": "lookup", "description": "Looks up.", "parameters": LOOKUP.input_schema},
        }
    ]


def test_provider_ids_go_back_unless_they_are_missing_or_repeat() -> None:
    sent = wire(
        Message(role="user", text="Hello"),
        *round_of(call("call_1", "functions.lookup:0"), call("call_2", ""), call("call_3", "call_5")),
        *round_of(call("call_4", "functions.lookup:0"), call("call_5"), call("call_6", "call_4")),
    )
    answers = [message["tool_call_id"] for message in sent if isinstance(message, dict) and message["role"] == "tool"]
    assert answers == ["functions.lookup:0", "call_2", "call_5", "call_4", "call_5_", "call_6"]


def test_calls_go_back_with_legal_names_and_arguments_and_without_empty_text() -> None:
    odd = ToolCall(call_id="call_1", tool="look up\n!", arguments={"x": float("nan"), "é": "hi \ud83d"})
    unnamed = ToolCall(call_id="call_2", tool="", arguments={})
    sent = wire(Message(role="user", text="Hello"), *round_of(odd, unnamed))[1]
    assert isinstance(sent, dict)
    assert sent["content"] is None
    assert sent["tool_calls"] == [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "look_up__", "arguments": '{"x":"NaN","é":"hi \ufffd"}'},
        },
        {"id": "call_2", "type": "function", "function": {"name": "unknown", "arguments": "{}"}},
    ]


async def test_lone_surrogates_become_replacement_characters_both_ways() -> None:
    arguments = '{"text":"hi \\ud83d"}'
    tool_call: JsonValue = {"id": "a\ud83d", "function": {"name": "b\ud83d", "arguments": f"{arguments}\ud83d"}}
    async with (
        ModelServer([chat_reply({"content": "c\ud83d", "tool_calls": [tool_call]}, "d\ud83d")]) as server,
        loopback_client() as http,
    ):
        completion = await HttpModel(http, ChatCompletions(), server.base_url, KEY).complete(
            asked(Message(role="user", text="cut \ud83d"))
        )
    assert server.requests[0].body.decode().count("cut \ufffd") == 1
    assert completion.text == "c\ufffd"
    assert completion.finish_reason == "d\ufffd"
    raw = completion.calls[0]
    assert (raw.provider_call_id, raw.name, raw.arguments) == ("a\ufffd", "b\ufffd", f"{arguments}\ufffd")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"q": "é", "n": None}, '{"q":"é","n":null}'), (None, ""), ("", ""), ('{"q":', '{"q":'), ([1], "[1]")],
)
async def test_arguments_arrive_as_text_whatever_the_server_sends(arguments: JsonValue, text: str) -> None:
    tool_call: JsonValue = {"id": None, "function": {"name": "lookup", "arguments": arguments}}
    completion = await answered(chat_reply({"content": None, "tool_calls": [tool_call]}, "stop"))
    assert [(each.name, each.arguments, each.provider_call_id) for each in completion.calls] == [("lookup", text, None)]


async def test_a_malformed_call_is_kept_and_a_missing_list_of_calls_is_none() -> None:
    completion = await answered(chat_reply({"content": "x", "tool_calls": [None, {"type": "function"}]}))
    assert [each.name for each in completion.calls] == ["", ""]
    assert (await answered(chat_reply({"content": "x", "tool_calls": None}))).calls == ()


async def test_the_text_parts_of_a_content_list_are_joined() -> None:
    parts: JsonValue = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "a"},
        "stray",
        {"type": "text", "text": None},
        {"type": "text", "text": "b"},
    ]
    assert (await answered(chat_reply({"content": parts}))).text == "ab"


async def test_a_length_stop_marks_the_reply_as_truncated() -> None:
    tool_call: JsonValue = {"id": "a", "function": {"name": "lookup", "arguments": '{"steps":["make'}}
    assert (await answered(chat_reply({"tool_calls": [tool_call]}, "length"))).truncated
    assert not (await answered(chat_reply({"tool_calls": [tool_call]}, "tool_calls"))).truncated


async def test_a_reply_that_quotes_the_key_arrives_without_it() -> None:
    assert (await answered(chat_reply({"content": f"Your key is {KEY}."}))).text == "Your key is ***."


async def test_a_body_padded_with_blank_lines_is_read() -> None:
    reply = chat_reply({"content": "Hi"})
    assert (await answered(Response(200, {}, b"\n\n\n" + reply.body))).text == "Hi"


async def test_cancellation_passes_and_closes_the_connection() -> None:
    async def never(_: dict[str, JsonValue]) -> Response:
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    async with asyncio.timeout(10), ModelServer(never) as server, loopback_client() as http:
        request = asyncio.create_task(HttpModel(http, ChatCompletions(), server.base_url, KEY).complete(asked()))
        await server.received(1)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await server.disconnected(1)


async def test_one_connection_serves_several_requests() -> None:
    replies = [chat_reply({"content": text}) for text in "abc"]
    async with ModelServer(replies) as server, loopback_client(limits=httpx.Limits(max_connections=1)) as http:
        model = HttpModel(http, ChatCompletions(), server.base_url, KEY)
        assert [(await model.complete(asked())).text for _ in replies] == ["a", "b", "c"]
