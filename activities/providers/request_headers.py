"""Headers that an operator adds to every request of a provider."""

import re

# A token (RFC 9110, 5.6.2).
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# The dialect, the key and the HTTP client write these.
_RESERVED = frozenset(
    {
        "authorization",
        "x-api-key",
        "content-type",
        "accept-encoding",
        "content-length",
        "host",
        "connection",
        "transfer-encoding",
    }
)
VALUE_MAX_CHARACTERS = 8_192


def checked_header(name: str, value: str, source: str = "") -> tuple[str, str]:
    """The header as it is sent: its name in lower case, its value without blanks around it.

    Values are printable ASCII (RFC 9110, 5.5 advises against more). Raises ValueError, naming the header and the
    `source` of its value, never the value, for one that cannot be sent or that is not the operator's to set.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a header")
    if name.lower() in _RESERVED:
        raise ValueError(f"the header {name} is set by the provider itself")
    said = f"the value of the header {name}{f', which {source} holds,' if source else ''}"
    text = value.strip()
    if not text:
        raise ValueError(f"{said} is empty")
    if not (text.isascii() and text.isprintable() and text.strip("\\ ")):
        raise ValueError(f"{said} holds characters that cannot be part of a header")
    if len(text) > VALUE_MAX_CHARACTERS:
        raise ValueError(f"{said} is longer than {VALUE_MAX_CHARACTERS} characters")
    return name.lower(), text
