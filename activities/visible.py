"""Text made safe to look at: what a terminal would obey, turn round or hide is shown as an escape instead."""

import re

# Printable by Unicode's book, and yet nothing is to be seen: joiners, fillers, variation selectors, Braille's blank.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def visible(text: str, keep: str = "") -> str:
    """The text with control, format, bidirectional, invisible and unassigned characters as Python escapes, `\\x1b` for
    ESC. Those in `keep` stay as they are."""
    if text.isprintable() and not _UNSEEN.search(text):
        return text
    return "".join(
        char if char in keep or (char.isprintable() and not _UNSEEN.match(char)) else _escape(char) for char in text
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()
