"""Replies that an output limit cut off, though the API does not say so."""

import json
from dataclasses import replace

from activities.providers.interface import Completion, CompletionRequest


def marked_if_cut_off(request: CompletionRequest, completion: Completion) -> Completion:
    """The reply, as truncated where it used all tokens that the request allows and its last call breaks off: routers
    relabel the finish reason, and half an instruction must not run."""
    limit, usage = request.settings.max_output_tokens, completion.usage
    if completion.truncated or not completion.calls or limit is None or usage is None or usage.output_tokens < limit:
        return completion
    return completion if _is_whole(completion.calls[-1].arguments) else replace(completion, truncated=True)


def _is_whole(arguments: str) -> bool:
    try:
        json.loads(arguments)
    # Nested too deeply to be read, which the door says better.
    except RecursionError:
        return True
    except ValueError:
        return False
    return True
