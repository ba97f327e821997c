"""A provider's key, kept out of everything the provider says."""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pydantic import JsonValue

from activities.providers.interface import Completion, Delta, RawToolCall

# Shorter keys are placeholders of local servers ("ollama") and would garble the replies.
PLACEHOLDER_MAX_CHARACTERS = 11
_MARK = "***"
_NOTHING = re.compile(r"(?!)")
# Beyond the end of any text.
_NOWHERE = (sys.maxsize, sys.maxsize)
# No tool's name is longer, and an API may repeat one with every piece of a call's arguments.
NAME_MAX_CHARACTERS = 200
# So much of a key tells nothing.
FEW_CHARACTERS = 3


class Secret:
    """Keys and the like: printable ASCII with more than backslashes in it. Empty ones count for nothing."""

    def __init__(self, *values: str) -> None:
        self._values = tuple(value for value in values if value)
        self._all = _any_form(self._values)
        self._long = _any_form(value for value in self._values if len(value) > PLACEHOLDER_MAX_CHARACTERS)

    def __repr__(self) -> str:
        return f"Secret({_MARK})"

    def hidden(self, text: str) -> str:
        """The text with `***` for each key, be it as it is or escaped as in JSON, however often: what a text holds now
        may be decoded once more. Not found is a key whose codes have codes for their own letters. Without a key the
        text comes back as it was."""
        return self._all.sub(_MARK, text)

    def hidden_in_reply(self, text: str) -> str:
        """As `hidden`, but only for keys that are long enough to be one."""
        return self._long.sub(_MARK, text)

    def hidden_in_json(self, value: JsonValue) -> JsonValue:
        """As `hidden_in_reply`, for every text in a value."""
        match value:
            case str():
                return self.hidden_in_reply(value)
            case dict():
                return {self.hidden_in_reply(key): self.hidden_in_json(item) for key, item in value.items()}
            case list():
                return [self.hidden_in_json(item) for item in value]
        return value

    def found_in_reply(self, text: str) -> Iterator[tuple[int, int]]:
        """Where each key begins and ends that `hidden_in_reply` takes out."""
        return (found.span() for found in self._long.finditer(text))

    def open_end(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of a key that is long enough to be one."""
        longest = 0
        for value in self._values:
            if len(value) > PLACEHOLDER_MAX_CHARACTERS:
                for length in range(min(len(value) - 1, len(text)), longest, -1):
                    if text.endswith(value[:length]):
                        longest = length
                        break
        return longest


class SecretStream:
    """Hides keys in deltas. A key may be spread over several of them, with other parts of the reply in between, so what
    could become one is held back until it is clear that it does not. Where another part begins, up to FEW_CHARACTERS of
    it are shown all the same: many a text happens to end like that. Escaped forms are found within one delta only: what
    is recorded is searched once more, as a whole."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._latest: _Part | None = None
        self._ends: dict[_Part, _End] = {}

    def add(self, delta: Delta) -> Iterator[Delta]:
        """What may be shown now."""
        part = delta.kind, delta.call
        if self._latest is not None and self._latest != part:
            yield from self._let_go(self._latest, FEW_CHARACTERS)
        self._latest = part
        known = self._ends.get(part, _End(delta))
        text = known.text + delta.text
        end = len(text) - self._secret.open_end(text)
        # Of a key whose first characters were shown, the others are not.
        said = self._secret.hidden_in_reply(text[:end]).removeprefix(text[: known.shown])
        if known.shown > end:
            said = ""
        self._ends[part] = _End(delta, text[end:], max(0, known.shown - end))
        if said or not delta.text:
            yield self._shown(delta, said)

    def rest(self) -> Iterator[Delta]:
        """What was held back and turned out to be no key."""
        for part in self._ends:
            yield from self._let_go(part, sys.maxsize)

    def _let_go(self, part: "_Part", most: int) -> Iterator[Delta]:
        """How a part ends, if that is no longer than this."""
        end = self._ends[part]
        if end.shown < len(end.text) <= most:
            yield self._shown(end.delta, end.text[end.shown :])
            end.shown = len(end.text)

    def _shown(self, delta: Delta, text: str) -> Delta:
        name = self._secret.hidden_in_reply(delta.name) if len(delta.name) <= NAME_MAX_CHARACTERS else ""
        return replace(delta, text=text, name=name)


# The kind of a delta, and of which call it is.
_Part = tuple[str, int]


@dataclass
class _End:
    """How a part of a reply ends, as far as a key may begin there, and how many characters of that were shown."""

    delta: Delta
    text: str = ""
    shown: int = 0


def checked_key(api_key: str, key_name: str) -> str:
    """The key without blanks around it. Raises ValueError, naming the setting and never the key, for one that no
    header can carry."""
    key = api_key.strip()
    if not key:
        raise ValueError(f"{key_name} is empty")
    if not (key.isascii() and key.isprintable() and key.strip("\\")) or " " in key:
        raise ValueError(f"{key_name} holds characters that cannot be part of a key")
    return key


def without_secret(reply: Completion, secret: Secret) -> Completion:
    """The reply without any key in its texts, the arguments' own strings included."""
    hidden = secret.hidden_in_reply
    calls = (
        RawToolCall(
            name=hidden(call.name),
            arguments=hidden(call.arguments),
            provider_call_id=None if call.provider_call_id is None else hidden(call.provider_call_id),
        )
        for call in reply.calls
    )
    opaque = tuple(secret.hidden_in_json(part) for part in reply.opaque)
    text = hidden(reply.text)
    if text != reply.text:
        # The parts count characters of a text that is another one now.
        opaque = _recounted(opaque, reply.text, secret)
    finish_reason = None if reply.finish_reason is None else hidden(reply.finish_reason)
    return replace(reply, text=text, calls=tuple(calls), finish_reason=finish_reason, opaque=opaque)


def _recounted(opaque: Iterable[JsonValue], text: str, secret: Secret) -> tuple[JsonValue, ...]:
    """The parts with the lengths that they have once the keys in the text are hidden: the mark for one that is spread
    over several parts stands in the last of them. Takes linear time, however many parts and keys there are."""
    keys = secret.found_in_reply(text)
    begin, end = next(keys, _NOWHERE)
    written = shown = shift = 0
    parts: list[JsonValue] = []
    for part in opaque:
        match part:
            case {"text": int(length)}:
                written += length
                while end <= written:
                    shift += len(_MARK) - (end - begin)
                    begin, end = next(keys, _NOWHERE)
                until = min(written, begin) + shift
                parts.append({"text": until - shown})
                shown = until
            case _:
                parts.append(part)
    return tuple(parts)


# Each level of quoting doubles the backslashes, or writes them as codes, so between characters they count for nothing.
# Possessive, so that a long run of them is read once.
_BACKSLASHES = r"(?:\\(?:u005[cC])?)*+"


def _any_form(values: Iterable[str]) -> re.Pattern[str]:
    # The longest first: one key may begin with another.
    forms = [_forms(value) for value in sorted(set(values), key=len, reverse=True)]
    return re.compile("|".join(forms)) if forms else _NOTHING


def _forms(value: str) -> str:
    """Every form of the key in JSON. Backslashes before its first character are taken along only where they are a part
    of its escape, so that what is left is still legal JSON."""
    first, *others = list(value.replace("\\", ""))
    escaped_first = f"{re.escape(first)}|{_code(first)}" if first in '"/' else _code(first)
    # An escape begins where its run of backslashes does. The look-behinds come after the first of them, since a pattern
    # that begins with characters is searched many times faster.
    beginning = rf"(?:{re.escape(first)}|\\(?<!\\\\)(?<!\\u005[cC]\\)(?:u005[cC])?{_BACKSLASHES}(?:{escaped_first}))"
    return beginning + "".join(f"{_BACKSLASHES}(?:{re.escape(char)}|{_code(char)})" for char in others)


def _code(char: str) -> str:
    digits = f"{ord(char):02x}"
    return "u00" + "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits)
