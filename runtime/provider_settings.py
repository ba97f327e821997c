"""How the environment says that model providers are reached."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from activities.providers.addresses import endpoint
from activities.providers.chat_completions import ChatCompletions
from activities.providers.chat_servers import rules_for
from activities.providers.dialect import Dialect
from activities.providers.messages import Messages
from activities.providers.request_headers import checked_header
from activities.providers.responses import Responses
from activities.providers.secrecy import checked_key

Api = Literal["chat", "responses", "messages"]
APIS: Mapping[Api, type[Dialect]] = MappingProxyType(
    {"chat": ChatCompletions, "responses": Responses, "messages": Messages}
)

_ON_OR_OFF = {"on": True, "off": False}
# Another program's variable may well end like this, so what is wrong with one counts only once an agent needs it.
_BASE_URL_OF = re.compile(r"([A-Z0-9_]+)_BASE_URL")
_SETTING = re.compile(r"[A-Z][A-Z0-9_]*")
# Takes its name before the colon, and is no server.
_NO_SERVER = "scripted"


@dataclass(frozen=True)
class Preset:
    """A provider that is known by name. Its settings begin with `prefix`; `needs_key` where no request works without.

    Presets that share a prefix are two APIs of one server. There the name alone tells which is meant, so the API is not
    `api_is_settable`.
    """

    prefix: str
    api: Api
    base_url: str
    needs_key: bool = False
    api_is_settable: bool = True


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "openai": Preset("OPENAI", "chat", "https://api.openai.com/v1", needs_key=True, api_is_settable=False),
        "openai_responses": Preset(
            "OPENAI", "responses", "https://api.openai.com/v1", needs_key=True, api_is_settable=False
        ),
        "anthropic": Preset("ANTHROPIC", "messages", "https://api.anthropic.com/v1", needs_key=True),
        "openrouter": Preset("OPENROUTER", "chat", "https://openrouter.ai/api/v1", needs_key=True),
        "vllm": Preset("VLLM", "chat", "http://127.0.0.1:8000/v1"),
        "ollama": Preset("OLLAMA", "chat", "http://127.0.0.1:11434/v1"),
        "llamacpp": Preset("LLAMACPP", "chat", "http://127.0.0.1:8080/v1"),
    }
)


@dataclass(frozen=True)
class ProviderSettings:
    """How one provider is reached. The names of settings all begin with `prefix`, an underscore follows.

    `headers` are the operator's own, by name in lower case. `mistakes` say why it cannot be used, one line each, and
    never show a value that may be secret; the other fields are of use only without any. Without `api_key` it may still
    need one: see `needs_key`.
    """

    prefix: str
    api: Api = "chat"
    base_url: str = ""
    needs_key: bool = False
    streaming: bool = True
    # Left out of repr: settings end up in logs and tracebacks.
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    mistakes: tuple[str, ...] = ()

    @property
    def key_name(self) -> str:
        """What the setting with the key is called."""
        return f"{self.prefix}_API_KEY"

    def dialect(self) -> Dialect:
        """How the API is spoken at this address."""
        return ChatCompletions(rules_for(self.base_url)) if self.api == "chat" else APIS[self.api]()


def provider_settings(environment: Mapping[str, str]) -> Mapping[str, ProviderSettings]:
    """How each provider is reached, by the name before the colon in `AgentSpec.model`: every preset, and every other
    name that has a `<NAME>_BASE_URL`. A variable that is set to nothing counts as not set."""
    found = {name: _read(preset, environment) for name, preset in PRESETS.items()}
    for variable in sorted(environment):
        match = _BASE_URL_OF.fullmatch(variable)
        name = match[1].lower() if match else _NO_SERVER
        if match and environment[variable] and name not in found and name != _NO_SERVER:
            found[name] = _read(Preset(match[1], "chat", ""), environment)
    return MappingProxyType(found)


def preset_mistakes(providers: Mapping[str, ProviderSettings]) -> list[str]:
    """What is wrong with the settings of the presets, one line each, whichever of them are used. Where two presets
    share their settings, what is right for one of them is no mistake."""
    by_prefix: dict[str, list[tuple[str, ...]]] = {}
    for name in PRESETS:
        if name in providers:
            by_prefix.setdefault(providers[name].prefix, []).append(providers[name].mistakes)
    return [
        mistake for first, *others in by_prefix.values() for mistake in first if all(mistake in each for each in others)
    ]


def _read(preset: Preset, environment: Mapping[str, str]) -> ProviderSettings:
    prefix, mistakes = preset.prefix, list[str]()

    def value(setting: str) -> str | None:
        return environment.get(f"{prefix}_{setting}") or None

    wanted = (value("API") or preset.api).strip().lower() if preset.api_is_settable else preset.api
    api = next((known for known in APIS if known == wanted), preset.api)
    if api != wanted:
        mistakes.append(f"{prefix}_API must be one of {', '.join(APIS)}")
    base_url = value("BASE_URL") or preset.base_url
    try:
        endpoint(base_url, APIS[api].path)
    except ValueError as error:
        # Not shown: a URL may carry a password.
        mistakes.append(f"{prefix}_BASE_URL: {error}")
    api_key = value("API_KEY")
    if api_key is not None:
        try:
            api_key = checked_key(api_key, f"{prefix}_API_KEY")
        except ValueError as error:
            mistakes.append(str(error))
            api_key = None
    streaming = (value("STREAMING") or "on").strip().lower()
    if streaming not in _ON_OR_OFF:
        mistakes.append(f"{prefix}_STREAMING must be on or off")
    headers, wrong = _headers(value("HEADERS") or "", environment)
    mistakes += [f"{prefix}_HEADERS: {each}" for each in wrong]
    return ProviderSettings(
        prefix=prefix,
        api=api,
        base_url=base_url,
        needs_key=preset.needs_key,
        streaming=_ON_OR_OFF.get(streaming, True),
        api_key=api_key,
        headers=headers,
        mistakes=tuple(mistakes),
    )


def _headers(written: str, environment: Mapping[str, str]) -> tuple[Mapping[str, str], list[str]]:
    """The headers of `Header-Name=SETTING_NAME, ...`, and what is wrong with them."""
    headers, mistakes = dict[str, str](), list[str]()
    entries = filter(None, (entry.strip() for entry in written.split(",")))
    for number, entry in enumerate(entries, start=1):
        name, _, setting = (part.strip() for part in entry.partition("="))
        value = environment.get(setting)
        if not (name and _SETTING.fullmatch(setting)):
            # Not shown: whoever writes it wrong may have written the secret itself.
            mistakes.append(f"write entry {number} as Header-Name=SETTING_NAME, and the value into that setting")
        elif name.lower() in headers:
            mistakes.append(f"the header {name} comes twice")
        elif not value:
            mistakes.append(f"set {setting}, which the header {name} takes its value from")
        else:
            try:
                headers.update([checked_header(name, value, setting)])
            except ValueError as error:
                mistakes.append(str(error))
    return MappingProxyType(headers), mistakes
