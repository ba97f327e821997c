"""The one address that requests of an API go to, from what an operator set as its base."""

import re
from urllib.parse import urlsplit

import httpx

# What the paths of the model APIs end in, and the half of one.
_ENDPOINT = re.compile(r"/(chat|chat/completions|completions|responses|messages|embeddings|models)$")
_VERSION = re.compile(r"/v[0-9]+[a-z0-9]*(?=/|$)")
_VERSION_TWICE = re.compile(rf"({_VERSION.pattern})\1(/|$)")
_DOTS = re.compile(r"/\.\.?(/|$)")
# Anthropic's own clients are given a base without the version ("Client SDKs", ANTHROPIC_BASE_URL), and whoever offers
# this API documents such a base, for example https://host/anthropic. Bases of the other APIs are complete: some
# servers have no version at all.
_VERSION_LEFT_OUT = frozenset({"/messages"})


def endpoint(base_url: str, path: str) -> str:
    """`<base><path>`, where a base without a path gets `/v1`. `path` is the API's own, such as `/chat/completions`; a
    base that already ends in it stays as it is. For `/messages` a base with a path but without a version gets `/v1` as
    well.

    Raises ValueError with the reason for a base that is no plain http(s) address, or the endpoint of another API. The
    reason never shows the base: it may hold a password.
    """
    text = base_url.strip()
    if not text.isprintable() or " " in text or "\\" in text:
        raise ValueError("the base address holds blanks, backslashes or control characters")
    if "?" in text or "#" in text:
        raise ValueError("the base address must not have a query or a fragment")
    try:
        parts = urlsplit(text)
        legal = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # The host is decoded here: one that cannot be is found out by nobody before the first request.
        legal = legal and bool(httpx.URL(text).host)
    except (ValueError, httpx.InvalidURL):
        legal = False
    if not legal:
        raise ValueError("the base address must look like https://host/v1: a scheme, http or https, and a host")
    if "@" in parts.netloc:
        raise ValueError("the base address must not hold credentials")
    base = re.sub("/+", "/", parts.path).rstrip("/")
    if _DOTS.search(base):
        raise ValueError("the base address must not have . or .. in its path")
    if _VERSION_TWICE.search(base):
        raise ValueError("the base address has the version twice")
    if not base.endswith(path):
        if _ENDPOINT.search(base):
            raise ValueError("the base address is the endpoint of another API: leave out its last part")
        if not base or (path in _VERSION_LEFT_OUT and not _VERSION.search(base)):
            base = f"{base}/v1"
        base = f"{base}{path}"
    return f"{parts.scheme}://{parts.netloc}{base}"
