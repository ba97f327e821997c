"""The key in whatever a provider says, however it is written there."""

import json
from collections.abc import Callable

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.providers.interface import Completion, ModelFailure
from activities.providers.secrecy import Secret
from tests.providers.asking import asked
from tests.providers.model_server import ModelServer, Response, chat_reply
from tests.support.loopback import loopback_client

KEY = "sk-TEST/TOKEN+9=="


def plainly(text: str) -> str:
    return json.dumps(text)[1:-1]


def with_slashes(text: str) -> str:
    return plainly(text).replace("/", "\\/")


def for_html(text: str) -> str:
    return plainly(text).replace("+", "\\u002B").replace("=", "\\u003d").replace("/", "\\u002f")


def in_codes(text: str) -> str:
    return "".join(f"\\u{ord(char):04X}" for char in text)


ESCAPES = (plainly, with_slashes, for_html, in_codes)


async def replied(body: str, key: str = KEY) -> Completion:
    async with ModelServer([Response(200, {}, body.encode())]) as server, loopback_client() as http:
        return await HttpModel(http, ChatCompletions(), server.base_url, key).complete(asked())


@pytest.mark.parametrize("escape", ESCAPES)
async def test_no_text_of_a_reply_holds_the_key_however_its_body_writes_it(escape: Callable[[str], str]) -> None:
    arguments = json.dumps(json.dumps({KEY: ["x", KEY]}))[1:-1].replace(KEY, escape(KEY))
    call = f'{{"id":"{escape(KEY)}","function":{{"name":"{escape(KEY)}","arguments":"{arguments}"}}}}'
    message = f'{{"content":"It is {escape(KEY)}!","tool_calls":[{call}]}}'
    reply = await replied(f'{{"choices":[{{"message":{message},"finish_reason":"{escape(KEY)}"}}]}}')
    assert (reply.text, reply.finish_reason) == ("It is ***!", "***")
    (raw,) = reply.calls
    assert (raw.name, raw.provider_call_id, json.loads(raw.arguments)) == ("***", "***", {"***": ["x", "***"]})


@pytest.mark.parametrize("escape", ESCAPES)
async def test_the_strings_inside_argument_texts_do_not_hold_the_key(escape: Callable[[str], str]) -> None:
    text = f'{{"path":"C:\\\\dir\\\\the {escape(KEY)}\\n" , "n":1.50}}'
    again = f'so: {{"text":"{plainly(text)}"'
    calls: JsonValue = [{"function": {"name": "look", "arguments": written}} for written in (text, again)]
    whole, broken = (await replied(chat_reply({"tool_calls": calls}).body.decode())).calls
    assert whole.arguments == text.replace(escape(KEY), "***")
    assert json.loads(whole.arguments)["path"] == "C:\\dir\\the ***\n"
    assert broken.arguments == again.replace(plainly(escape(KEY)), "***")


async def test_arguments_sent_as_an_object_do_not_hold_the_key() -> None:
    call: JsonValue = {"function": {"name": "look", "arguments": {"x": [f"Bearer {KEY}"]}}}
    (raw,) = (await replied(chat_reply({"tool_calls": [call]}).body.decode())).calls
    assert raw.arguments == '{"x":["Bearer ***"]}'


async def test_a_key_in_pieces_of_the_text_is_found_where_they_are_joined() -> None:
    parts: JsonValue = [{"type": "text", "text": KEY[:8]}, {"type": "text", "text": KEY[8:]}]
    assert (await replied(chat_reply({"content": parts}).body.decode())).text == "***"


async def test_argument_text_without_the_key_arrives_byte_for_byte() -> None:
    text = '{ "a":"\\u002f\\/ \\\\u0073k-TEST \\ud83d\\ude00", "b" : 1.50, "b2":1E2,}  '
    call: JsonValue = {"function": {"name": "look", "arguments": text}}
    (raw,) = (await replied(chat_reply({"tool_calls": [call]}).body.decode())).calls
    assert raw.arguments == text


async def test_the_placeholder_of_a_local_server_is_left_in_a_reply() -> None:
    assert (await replied(chat_reply({"content": "I am ollama."}).body.decode(), "ollama")).text == "I am ollama."


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("status", [200, 400, 401, 500])
async def test_no_error_holds_the_key(escape: Callable[[str], str], status: int) -> None:
    for body in (
        f'{{"error":{{"message":"Bad key {escape(KEY)}"}}}}',
        f'{{"error":{{"message":"Bad key {escape(escape(KEY)) if escape is plainly else plainly(escape(KEY))}"}}}}',
        f'{{"error":{{"message":"Bad key {escape(KEY)}"',
        f'{{"error":{{"code":400,"why":{{"{escape(KEY)}":1}}}}}}',
    ):
        async with ModelServer([Response(status, {}, body.encode())]) as server, loopback_client() as http:
            with pytest.raises(ModelFailure) as caught:
                await HttpModel(http, ChatCompletions(), server.base_url, KEY).complete(asked())
        assert "TOKEN" not in str(caught.value)
        assert escape("TOKEN") not in str(caught.value)


@pytest.mark.parametrize("escape", ESCAPES[:3])
@pytest.mark.parametrize("key", [KEY, '"quoted"/key+', "back\\slash\\\\key", "/begins-with"])
def test_the_key_is_found_at_any_level_and_legal_json_stays_legal(key: str, escape: Callable[[str], str]) -> None:
    text = written = f'before \\ "{key}\n after'
    for level in range(5):
        hidden = Secret(key).hidden(written)
        for _ in range(level):
            hidden = json.loads(f'"{hidden}"')
        assert hidden.replace("\\", "") == text.replace(key, "***").replace("\\", "")
        written = escape(written)


@pytest.mark.parametrize("run", ["\\", "\\u005c", "\\n", "\\u0073", "s", KEY[:-1]])
def test_a_long_reply_made_to_be_searched_slowly_is_not(run: str) -> None:
    # Two million characters: whatever needs the square of that does not come to an end.
    text = run * (2_000_000 // len(run))
    assert Secret(KEY).hidden(text) == text


def test_a_secret_does_not_show_itself() -> None:
    assert "TOKEN" not in repr(Secret(KEY))
