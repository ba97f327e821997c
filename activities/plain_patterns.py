"""Patterns whose search is bounded, whatever the text: the only ones that the caller of a run may bring along.

The author of a tool or an agent is trusted not to write (a+)+$; a caller is not, for a search cannot be interrupted and
would stop all other runs of the worker, and of the next one that takes the call.
"""

import re

from pydantic import JsonValue

from activities.schemas import SchemaRefused, patterns_in
from activities.verdicts import shown

# One character of the text: an escape, a class, or a character that means itself or any one.
_ATOM = r"(?:\\[^0-9]|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[\](){}|*+?])"
_STEP = re.compile(rf"{_ATOM}(?:\{{[0-9]+\}}|(?P<varies>(?:[*+?]|\{{[0-9]*,[0-9]*\}})\??))?", re.DOTALL)


def check_patterns(schema: dict[str, JsonValue]) -> None:
    """Raise `SchemaRefused` for a pattern that may take more than the square of a text's length: one with groups or
    alternatives, or with more than one repetition that varies (two where it begins with ^)."""
    for place, pattern in patterns_in(schema):
        if not _is_plain(pattern):
            raise SchemaRefused(
                f"{place}: pattern {shown(pattern)}: in a run's own schema a pattern has no groups, no alternatives, "
                "and one repetition that varies (two after ^); let the agent have this schema, or leave it out"
            )


def _is_plain(pattern: str) -> bool:
    varying, position = 0, 0
    while position < len(pattern):
        step = _STEP.match(pattern, position)
        if step is None:
            return False
        varying += step["varies"] is not None
        position = step.end()
    return varying <= (2 if pattern.startswith("^") else 1)
