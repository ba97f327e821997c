"""Replies that the output limit cut off, while the finish reason says something else."""

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.providers.interface import CompletionRequest
from contracts.messages import Message
from contracts.models import ModelSettings
from tests.providers.asking import KEY
from tests.providers.chat_chunks import streamed
from tests.providers.model_server import ModelServer, chat_reply
from tests.support.loopback import loopback_client

HALF = '{"path":"README.md","content":"# T\\nPart 1'
WHOLE = '{"path":"README.md"}'


async def truncated(limit: int | None, output: int | None, *arguments: str, stream: bool = False) -> bool:
    calls: list[JsonValue] = [
        {"id": f"c{n}", "type": "function", "function": {"name": "write", "arguments": each}}
        for n, each in enumerate(arguments)
    ]
    usage: JsonValue = None if output is None else {"prompt_tokens": 5, "completion_tokens": output}
    reply = chat_reply({"role": "assistant", "content": "x", "tool_calls": calls}, "tool_calls", usage=usage)
    settings = ModelSettings(max_output_tokens=limit)
    request = CompletionRequest("m", "Be brief.", (Message(role="user", text="Hello"),), (), settings)
    async with ModelServer([streamed(reply) if stream else reply]) as server, loopback_client() as http:
        return (await HttpModel(http, ChatCompletions(), server.base_url, KEY).complete(request)).truncated


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_breaks_off_at_the_output_limit_was_cut_off(stream: bool) -> None:
    assert await truncated(16, 16, HALF, stream=stream)
    assert await truncated(16, 17, WHOLE, HALF, stream=stream)
    assert await truncated(16, 16, "", stream=stream)


@pytest.mark.parametrize(
    ("limit", "output", "arguments"),
    [
        (16, 15, (HALF,)),
        (None, 16, (HALF,)),
        (16, None, (HALF,)),
        (16, 16, (WHOLE,)),
        (16, 16, (HALF, WHOLE)),
        (16, 16, ()),
        (16, 16, ('{"a":' * 100_000,)),
    ],
)
async def test_any_other_reply_is_what_its_finish_reason_says(
    limit: int | None, output: int | None, arguments: tuple[str, ...]
) -> None:
    assert not await truncated(limit, output, *arguments)
