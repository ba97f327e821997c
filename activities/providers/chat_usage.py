"""The tokens that a reply of Chat Completions says were used."""

from pydantic import JsonValue

from activities.providers.readings import as_object, count
from contracts.messages import Usage


def usage_told(told: JsonValue) -> Usage | None:
    """The tokens, or None where nothing legible is told.

    OpenAI counts cached and written tokens as a part of the prompt's, and reasoning as a part of the completion's (API
    reference, "The chat completion object"). Servers differ: Azure's grok and Magistral report more cached tokens than
    the prompt has, which is clamped. xAI (API reference, "Usage": the total is prompt, completion and reasoning) and
    Vercel's Gemini models count reasoning beside the completion: it is added to the output where it cannot be a part of
    it, or where the total says so.
    """
    fields = as_object(told)
    if not any(_is_count(fields.get(name)) for name in ("prompt_tokens", "completion_tokens")):
        return None
    prompt, completion = count(fields.get("prompt_tokens")), count(fields.get("completion_tokens"))
    of_prompt = as_object(fields.get("prompt_tokens_details"))
    of_completion = as_object(fields.get("completion_tokens_details"))
    # In the details; else as DeepSeek, and as Moonshot and Azure's Kimi tell them.
    cached = _first(of_prompt.get("cached_tokens"), fields.get("prompt_cache_hit_tokens"), fields.get("cached_tokens"))
    reasoning = _first(of_completion.get("reasoning_tokens"), fields.get("reasoning_tokens"))
    beside = reasoning > completion or (
        reasoning and count(fields.get("total_tokens")) == prompt + completion + reasoning
    )
    cached = min(cached, prompt)
    return Usage(
        input_tokens=prompt,
        output_tokens=completion + reasoning if beside else completion,
        cached_input_tokens=cached,
        cache_write_tokens=min(count(of_prompt.get("cache_write_tokens")), prompt - cached),
        reasoning_tokens=reasoning,
    )


def _first(*counts: JsonValue) -> int:
    return next((count(value) for value in counts if _is_count(value)), 0)


def _is_count(value: JsonValue) -> bool:
    return count(value) > 0 or (value == 0 and not isinstance(value, bool))
