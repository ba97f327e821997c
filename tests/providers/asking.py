"""Asking a `ChatCompletions` that talks to a `ModelServer` with canned answers."""

import pytest

from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.providers.interface import Completion, CompletionRequest, ModelFailure
from contracts.messages import Message
from contracts.tools import ToolContract
from tests.providers.model_server import Canned, ModelServer
from tests.support.loopback import loopback_client

KEY = "sk-TEST-TOKEN-9"


def asked(*messages: Message, tools: tuple[ToolContract, ...] = ()) -> CompletionRequest:
    return CompletionRequest("m", "Be brief.", messages or (Message(role="user", text="Hello"),), tools)


async def answered(*answers: Canned, request: CompletionRequest | None = None) -> Completion:
    async with ModelServer(answers) as server, loopback_client() as http:
        return await HttpModel(http, ChatCompletions(), server.base_url, KEY).complete(request or asked())


async def failed(*answers: Canned) -> ModelFailure:
    with pytest.raises(ModelFailure) as caught:
        await answered(*answers)
    assert KEY not in str(caught.value)
    assert len(str(caught.value)) <= 500
    return caught.value
