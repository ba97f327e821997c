"""The formats of JSON Schema that are really checked: those of jsonschema whose libraries are installed, and IRIs.

jsonschema's own library for IRIs builds a grammar while it is imported, which would take most of the time that a worker
needs to start. RFC 3987, section 3.1, maps an IRI to a URI: every character beyond ASCII that it may have becomes a
percent-encoded one. So a text is an IRI exactly if what it maps to is a URI.
"""

import re

from jsonschema import Draft202012Validator, FormatChecker
from rfc3986_validator import validate_rfc3986  # type: ignore[import-untyped]

# RFC 3987, section 2.2: `ucschar`, and `iprivate`, which only a query may have.
_UCSCHAR = re.compile(
    "[\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"
    + "".join(f"{chr(plane << 16)}-{chr((plane << 16) + 0xFFFD)}" for plane in range(1, 14))
    + "\U000e1000-\U000efffd]"
)
_IPRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd]")
_ENCODED = "%20"

FORMAT_CHECKER = FormatChecker(())
FORMAT_CHECKER.checkers.update(Draft202012Validator.FORMAT_CHECKER.checkers)


def _matches(text: object, rule: str) -> bool:
    # The library takes a line's end after a URI for a part of it.
    return not isinstance(text, str) or ("\n" not in text and bool(validate_rfc3986(text, rule=rule)))


def _as_uri(text: object) -> object:
    if not isinstance(text, str):
        return text
    before, mark, query = text.partition("?")
    if "#" not in before:
        query, hash_sign, fragment = query.partition("#")
        text = before + mark + _IPRIVATE.sub(_ENCODED, query) + hash_sign + fragment
    return _UCSCHAR.sub(_ENCODED, text)


@FORMAT_CHECKER.checks("uri")
def is_uri(text: object) -> bool:
    """RFC 3986: `URI`."""
    return _matches(text, "URI")


@FORMAT_CHECKER.checks("uri-reference")
def is_uri_reference(text: object) -> bool:
    """RFC 3986: `URI-reference`."""
    return _matches(text, "URI_reference")


@FORMAT_CHECKER.checks("iri")
def is_iri(text: object) -> bool:
    """RFC 3987: `IRI`."""
    return _matches(_as_uri(text), "URI")


@FORMAT_CHECKER.checks("iri-reference")
def is_iri_reference(text: object) -> bool:
    """RFC 3987: `IRI-reference`."""
    return _matches(_as_uri(text), "URI_reference")


FORMATS = frozenset(FORMAT_CHECKER.checkers)
