"""The transcript by reference: a digest chain names exactly one sequence of messages."""

import hashlib
from collections.abc import Iterable

from pydantic import Field

from contracts.canonical import canonical_json
from contracts.messages import Message
from contracts.records import Record, SparseRecord

# The digest of the empty transcript.
EMPTY_DIGEST = "0" * 64
# Pages of a transcript: the SDK warns above 512 KiB a payload.
PAGE_MAX_BYTES = 524_288
# Messages appended since the last model call travel with the reference up to this size; larger ones are asked for.
TAIL_MAX_BYTES = 4_096


def message_text(message: Message) -> str:
    """The canonical JSON of a message: what its digest and its size are taken of."""
    return canonical_json(message.model_dump(mode="json"))


def extend_digest(digest: str, text: str) -> str:
    """The digest of a transcript with one more message, given as its canonical JSON."""
    return hashlib.sha256(f"{digest}{text}".encode()).hexdigest()


def chain(digest: str, messages: Iterable[Message]) -> str:
    """The digest of a transcript with more messages."""
    for message in messages:
        digest = extend_digest(digest, message_text(message))
    return digest


class TranscriptRef(SparseRecord):
    """Names the first `count` messages of a run's transcript by their digest.

    `tail` holds the last of them when they are small: a worker that knows the rest need not ask for them. Of a run that
    has left messages behind, those before number `first` are not meant, and not part of the digest.
    """

    count: int
    digest: str
    tail: tuple[Message, ...] = ()
    first: int = 0


class TranscriptQuery(Record):
    """Argument of the query `transcript`: from message `start` on, about `max_bytes` of JSON, at least one message."""

    start: int = Field(default=0, ge=0)
    max_bytes: int = Field(default=PAGE_MAX_BYTES, ge=1, le=PAGE_MAX_BYTES)


class TranscriptPage(Record):
    """Messages `start` to `next` - 1 of `total`. Those before `first_available` are in an earlier execution of the run,
    whose id is the state's `previous_run_id`; the first one available is then the prompt once more, in the place of one
    that was left behind."""

    messages: tuple[Message, ...]
    next: int
    total: int
    first_available: int = 0
