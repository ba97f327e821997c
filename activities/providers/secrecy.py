"""A provider's key, kept out of everything the provider says."""

import re

# Shorter keys are placeholders of local servers ("ollama") and would garble the replies.
PLACEHOLDER_MAX_CHARACTERS = 11
_MARK = "***"


class Secret:
    """A key: printable ASCII with more than backslashes in it. It shows itself only as `value`."""

    def __init__(self, value: str) -> None:
        self.value = value
        self._forms = _forms(value)

    def __repr__(self) -> str:
        return f"Secret({_MARK})"

    def hidden(self, text: str) -> str:
        """The text with `***` for the key, be it as it is or escaped as in JSON, however often: what a text holds now
        may be decoded once more. Not found is a key whose codes have codes for their own letters. Without the key the
        text comes back as it was."""
        return self._forms.sub(_MARK, text)

    def hidden_in_reply(self, text: str) -> str:
        """As `hidden`, but only for a key that is long enough to be one."""
        return text if len(self.value) <= PLACEHOLDER_MAX_CHARACTERS else self.hidden(text)


# Each level of quoting doubles the backslashes, or writes them as codes, so between characters they count for nothing.
# Possessive, so that a long run of them is read once.
_BACKSLASHES = r"(?:\\(?:u005[cC])?)*+"


def _forms(value: str) -> re.Pattern[str]:
    """Every form of the key in JSON. Backslashes before its first character are taken along only where they are a part
    of its escape, so that what is left is still legal JSON."""
    first, *others = list(value.replace("\\", ""))
    escaped_first = f"{re.escape(first)}|{_code(first)}" if first in '"/' else _code(first)
    # An escape begins where its run of backslashes does. The look-behinds come after the first of them, since a pattern
    # that begins with characters is searched many times faster.
    beginning = rf"(?:{re.escape(first)}|\\(?<!\\\\)(?<!\\u005[cC]\\)(?:u005[cC])?{_BACKSLASHES}(?:{escaped_first}))"
    return re.compile(beginning + "".join(f"{_BACKSLASHES}(?:{re.escape(char)}|{_code(char)})" for char in others))


def _code(char: str) -> str:
    digits = f"{ord(char):02x}"
    return "u00" + "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits)
