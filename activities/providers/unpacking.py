"""The body of a response, unpacked piece by piece: what is a few bytes on the wire may be gigabytes."""

import zlib
from collections.abc import AsyncIterator

import httpx

# What requests ask for. Two layers of packing are never asked for: a thousandth of a thousandth would fit in one piece.
ACCEPTED = "gzip"
PIECE_MAX_BYTES = 65_536

_UNPACKED = ("", "identity")
_PACKED = ("gzip", "x-gzip", "deflate")
# Finds out by itself whether gzip or zlib packed it (zlib manual, inflateInit2).
_EITHER = zlib.MAX_WBITS | 32


async def unpacked(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body in pieces of about PIECE_MAX_BYTES at most. Raises `httpx.RequestError`: `DecodingError` for a body that
    is packed in another way than the one that was asked for, or broken."""
    coding = response.headers.get("content-encoding", "").strip().lower()
    if coding in _UNPACKED:
        async for piece in response.aiter_raw():
            yield piece
        return
    if coding not in _PACKED:
        raise httpx.DecodingError(f"a body packed as {coding!r}", request=response.request)
    unpacking = zlib.decompressobj(_EITHER)
    async for packed in response.aiter_raw():
        more = True
        while more:
            try:
                piece = unpacking.decompress(packed, PIECE_MAX_BYTES)
            except zlib.error as error:
                raise httpx.DecodingError(str(error), request=response.request) from error
            if piece:
                yield piece
            packed = unpacking.unconsumed_tail
            # A full piece may not have been all that this input makes.
            more = bool(packed) or len(piece) == PIECE_MAX_BYTES
