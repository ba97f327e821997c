"""From settings to the model APIs that a worker calls."""

from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from types import MappingProxyType

import httpx

from activities.catalog import Catalog
from activities.providers.http_model import HttpModel
from activities.providers.interface import ModelFailure, ModelProvider
from activities.providers.scripted import Scripted
from runtime.provider_settings import ProviderSettings
from runtime.settings import Settings, StartupError

# Paths in `scripted:<path>` are relative to the checkout, wherever the worker is started.
_CHECKOUT = Path(__file__).resolve().parents[1]


def model_client() -> httpx.AsyncClient:
    """What model APIs are asked through. It goes by the environment's HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY,
    SSL_CERT_FILE and SSL_CERT_DIR (HTTPX, "Environment variables"), and keeps no cookies: they would carry something
    from one run to another, and grow until a server refuses them. Raises `StartupError` where these variables cannot be
    used."""
    try:
        return httpx.AsyncClient(cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())))
    except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
        # The class only: a proxy's address may hold a password.
        variables = "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE or SSLKEYLOGFILE"
        raise StartupError(f"check {variables}: {type(error).__name__}; socks proxies need httpx[socks]") from None


def model_providers(settings: Settings, catalog: Catalog, http: httpx.AsyncClient) -> Mapping[str, ModelProvider]:
    """The model APIs that these settings allow, by the name that stands before the colon in `AgentSpec.model`.

    One that no served agent uses is included when it can be: a run started earlier may still need it. Raises
    `StartupError`, a line for each model of a served agent, fallbacks included, whose provider is unknown, cannot be
    used or lacks its key, or whose script cannot be played.
    """
    scripted = Scripted(_CHECKOUT)
    providers: dict[str, ModelProvider] = {"scripted": scripted}
    unusable: dict[str, tuple[str, ...]] = {}
    for name, reached in settings.providers.items():
        if problems := _problems_of(reached):
            unusable[name] = problems
        else:
            providers[name] = _http_model(reached, http)
    lines = []
    for name, agent in catalog.agents.items():
        # The override may be what is wrong, so it is named where there is one.
        source = "STEADYHAND_MODEL" if settings.model else "its model"
        sources = {agent.model: source, **dict.fromkeys(agent.fallback_models, "a fallback model")}
        for model, said in sources.items():
            provider, _, model_name = model.partition(":")
            if provider == "scripted":
                problems = _flaws_of(scripted, model_name)
            elif provider in providers:
                problems = ()
            else:
                problems = unusable.get(provider) or (_unknown(provider, sorted({*providers, *unusable})),)
            lines += [f"agent {name}: {said} is {model!r}: {problem}" for problem in problems]
    if lines:
        raise StartupError(*lines)
    return MappingProxyType(providers)


def _problems_of(reached: ProviderSettings) -> tuple[str, ...]:
    if reached.needs_key and reached.api_key is None and not reached.mistakes:
        own = f"(to any word if the server at {reached.prefix}_BASE_URL wants no key)"
        return (f"set {reached.key_name} {own}",)
    return reached.mistakes


def _http_model(reached: ProviderSettings, http: httpx.AsyncClient) -> HttpModel:
    return HttpModel(
        http,
        reached.dialect(),
        reached.base_url,
        reached.api_key,
        reached.key_name,
        headers=reached.headers,
        streaming=reached.streaming,
    )


def _unknown(provider: str, known: list[str]) -> str:
    return (
        f"there is no such provider, only {', '.join(known)}; for a server of your own set {provider.upper()}_BASE_URL"
    )


def _flaws_of(scripted: Scripted, name: str) -> tuple[str, ...]:
    try:
        scripted.script(name)
    except ModelFailure as failure:
        return (str(failure),)
    return ()
