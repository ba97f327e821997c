"""Model providers as a worker would have them in an environment."""

from collections.abc import Mapping

import httpx

from activities.catalog import Catalog
from activities.providers.interface import Completion, CompletionRequest, ModelProvider
from contracts.agents import AgentSpec
from contracts.messages import Message
from runtime.model_providers import model_providers
from runtime.settings import Settings, StartupError
from tests.providers import asking_messages, asking_responses, chat_chunks
from tests.providers.model_server import Response, Streamed, chat_reply
from tests.support.agents import scripted_agent
from tests.support.loopback import loopback_client

# What each API calls the last part of its address.
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}

# Asks nobody. Without certificates, which take longest to load.
_IDLE = loopback_client()


def agent_with(model: str, *fallback_models: str) -> AgentSpec:
    """The agent `tester` with these models."""
    return scripted_agent().model_copy(update={"model": model, "fallback_models": fallback_models})


def providers_in(
    environment: Mapping[str, str], http: httpx.AsyncClient, *agents: AgentSpec
) -> Mapping[str, ModelProvider]:
    """The providers of a worker that serves these agents, else one that has a script."""
    catalog = Catalog(agents or [agent_with("scripted:examples/refund_desk/script.json")])
    return model_providers(Settings.from_environment(environment), catalog, http)


def problems_in(environment: Mapping[str, str], *agents: AgentSpec) -> tuple[str, ...]:
    """Why such a worker does not start; empty where it does."""
    try:
        providers_in(environment, _IDLE, *agents)
    except StartupError as error:
        return error.problems
    return ()


async def asked(environment: Mapping[str, str], model: str) -> Completion:
    """What the model that an agent names replies."""
    provider, _, name = model.partition(":")
    async with loopback_client() as http:
        providers = providers_in(environment, http, agent_with(model))
        request = CompletionRequest(name, "Be brief.", (Message(role="user", text="Hello"),), ())
        return await providers[provider].complete(request)


def saying(api: str, text: str, stream: bool = False) -> Response:
    """The reply of an API in these words."""
    if api == "messages":
        message = asking_messages.reply(asking_messages.text(text))
        return asking_messages.streamed(message) if stream else Response.of(message)
    if api == "responses":
        body = asking_responses.body(asking_responses.message(text))
        return Streamed.of_events({"type": "response.completed", "response": body}) if stream else Response.of(body)
    whole = chat_reply({"role": "assistant", "content": text})
    return chat_chunks.streamed(whole) if stream else whole
