"""`call_model` at its limits: what a provider sends is paid for once, and judged within bounds."""

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.reply_size import REPLY_MAX_BYTES
from activities.tooling import tool
from tests.providers.model_server import ModelServer, Response, chat_reply
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, failure_of, histories
from tests.support.loopback import loopback_client

KEY = "sk-test/TOKEN+9-do-not-leak"


@tool(side_effect="read")
def look(x: str = "") -> str:
    """Look."""
    return f"seen {x}"


AGENT = scripted_agent(look).model_copy(update={"model": "openai:any"})
ANSWER = chat_reply({"content": "Done."})


def calling(*arguments: JsonValue) -> Response:
    calls: list[JsonValue] = [{"function": {"name": "look", "arguments": each}} for each in arguments]
    return chat_reply({"content": None, "tool_calls": calls})


def nested(depth: int) -> JsonValue:
    value: JsonValue = "x"
    for _ in range(depth):
        value = {"x": value}
    return value


async def test_arguments_sent_as_a_deep_object_are_an_invalid_call_and_the_run_goes_on(harness: Harness) -> None:
    async with ModelServer([calling(nested(700)), ANSWER]) as server, loopback_client() as http:
        async with harness.worker(
            AGENT, providers={"openai": HttpModel(http, ChatCompletions(), server.base_url, KEY)}
        ):
            result = await (await harness.start(PROMPT)).result()
        told = str(server.requests[1].json)
    assert result.text == "Done."
    assert "at most 64 levels" in told


async def test_a_body_nested_thousands_deep_is_paid_for_once(harness: Harness) -> None:
    body = b'{"choices":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001
    async with ModelServer([Response(200, {}, body)]) as server, loopback_client() as http:
        async with harness.worker(
            AGENT, providers={"openai": HttpModel(http, ChatCompletions(), server.base_url, KEY)}
        ):
            error, _ = await failure_of(await harness.start(PROMPT))
        assert len(server.requests) == 1
    assert (error.type, error.non_retryable) == ("ModelBehaviour", True)


@pytest.mark.parametrize(
    "reply",
    [
        # None of them would be large once it is read: white space, text that is cut, calls without anything in them.
        calling("{" + " " * REPLY_MAX_BYTES + "}"),
        calling("no json " * (REPLY_MAX_BYTES // 8)),
        chat_reply({"content": None, "tool_calls": [None] * 30_000}),
        chat_reply({"content": "x" * REPLY_MAX_BYTES}),
    ],
)
async def test_a_reply_too_large_for_history_is_refused_before_it_is_read(harness: Harness, reply: Response) -> None:
    async with ModelServer([reply]) as server, loopback_client() as http:
        async with harness.worker(
            AGENT, providers={"openai": HttpModel(http, ChatCompletions(), server.base_url, KEY)}
        ):
            error, _ = await failure_of(await harness.start(PROMPT))
        assert len(server.requests) == 1
    assert error.type == "PayloadTooLarge"


async def test_a_key_escaped_in_the_arguments_text_is_neither_in_history_nor_with_the_tool(harness: Harness) -> None:
    # In the arguments, and in the body around them, with other escapes than this program would write.
    escaped = KEY.replace("/", "\\/").replace("+", "\\u002B").replace("s", "\\u0073", 1)
    async with (
        ModelServer([calling(f'{{"x": "{escaped}"}}', f'{{"x": "{escaped}'), ANSWER]) as server,
        loopback_client() as http,
        harness.worker(AGENT, providers={"openai": HttpModel(http, ChatCompletions(), server.base_url, KEY)}),
    ):
        run = await harness.start(PROMPT)
        result = await run.result()
        (history,) = await histories(harness.client, run.id)
    assert result.tool_results[0].text == "seen ***"
    written = b"".join(event.SerializeToString() for event in history.events)
    assert b"TOKEN" not in written


class Garbled:
    """A model whose every text has half a character in it."""

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        call = RawToolCall("look", '{"x": "\ud800"}', "id\udfff")
        calls = () if len(request.messages) > 1 else (call,)
        return Completion("Done\ud800.", calls, finish_reason="st\udfffop")


async def test_half_a_character_anywhere_in_a_reply_is_no_bug(harness: Harness) -> None:
    agent = scripted_agent(look).model_copy(update={"model": "garbled:m"})
    async with harness.worker(agent, providers={"garbled": Garbled()}):
        result = await (await harness.start(PROMPT)).result()
    assert (result.text, result.finish_reason) == ("Done\ufffd.", "st\ufffdop")
    assert result.tool_results[0].text == "seen \ufffd"
