"""How servers of Chat Completions differ in what they take."""

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit


@dataclass(frozen=True)
class ServerRules:
    """What a server calls the bound of a reply and the seed, and whether it must be asked for the usage of a stream."""

    output_limit: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    seed: Literal["seed", "random_seed"] = "seed"
    usage_on_request: bool = True


# Its reasoning models refuse `max_tokens` (API reference, "Create chat completion": deprecated).
OPENAI = ServerRules()
# Every server knows the older name, while some do not know the newer one, or drop it without a word.
COMPATIBLE = ServerRules(output_limit="max_tokens")
# Refuses what it does not know, with a 422, and tells the usage unasked (API reference, "Chat completion").
MISTRAL = ServerRules(output_limit="max_tokens", seed="random_seed", usage_on_request=False)

_OPENAI_HOSTS = ("openai.com", "azure.com")
_MISTRAL_HOSTS = ("mistral.ai",)


def rules_for(base_url: str) -> ServerRules:
    """The rules of the server at a base address, by its host: OpenAI's own and Azure, Mistral's own, and all others."""
    host = (urlsplit(base_url.strip()).hostname or "").lower()
    if _within(host, _OPENAI_HOSTS):
        return OPENAI
    return MISTRAL if _within(host, _MISTRAL_HOSTS) else COMPATIBLE


def _within(host: str, domains: tuple[str, ...]) -> bool:
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)
