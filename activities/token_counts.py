from collections.abc import Callable

from contracts.projection import estimate_tokens

Count = Callable[[str], int]


class TokenCounter: ...


def counter_for(model: str, counters: tuple[TokenCounter, ...]) -> Count:
    return estimate_tokens
