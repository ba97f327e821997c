"""How servers of Chat Completions differ in what they take."""

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit


@dataclass(frozen=True)
class ServerRules:
    """What a server calls the bound of a reply and the seed, whether it must be asked for the usage of a stream, and
    whether a turn that called tools must have its reasoning, be it empty."""

    output_limit: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    seed: Literal["seed", "random_seed"] = "seed"
    usage_on_request: bool = True
    reasoning_with_calls: bool = False


# Its reasoning models refuse `max_tokens` (API reference, "Create chat completion": deprecated).
OPENAI = ServerRules()
# Every server knows the older name, while some do not know the newer one, or drop it without a word.
COMPATIBLE = ServerRules(output_limit="max_tokens")
# Refuses what it does not know, with a 422, and tells the usage unasked (API reference, "Chat completion").
MISTRAL = ServerRules(output_limit="max_tokens", seed="random_seed", usage_on_request=False)
# A turn that called tools, but was given by another model, has no reasoning to send back ("Thinking mode").
DEEPSEEK = ServerRules(output_limit="max_tokens", reasoning_with_calls=True)

_BY_DOMAIN = {"openai.com": OPENAI, "azure.com": OPENAI, "mistral.ai": MISTRAL, "deepseek.com": DEEPSEEK}


def rules_for(base_url: str) -> ServerRules:
    """The rules of the server at a base address, by its host: OpenAI's own and Azure, Mistral's own, DeepSeek's own,
    and those that hold for all others."""
    host = (urlsplit(base_url.strip()).hostname or "").lower()
    known = (rules for domain, rules in _BY_DOMAIN.items() if host == domain or host.endswith(f".{domain}"))
    return next(known, COMPATIBLE)
