"""The run's transcript: append-only messages whose digests chain, handed out by reference."""

from collections.abc import Iterable

from contracts.messages import Message
from contracts.transcripts import (
    EMPTY_DIGEST,
    TAIL_MAX_BYTES,
    TranscriptPage,
    TranscriptQuery,
    TranscriptRef,
    extend_digest,
    message_text,
)


class Transcript:
    """Every message a model may see, in order."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = []
        self._sizes: list[int] = []
        self._size = 0
        self._digest = EMPTY_DIGEST
        self._referred = 0
        for message in messages:
            self.append(message)

    def append(self, message: Message) -> None:
        """Add a message. None is ever changed or removed."""
        text = message_text(message)
        self._messages.append(message)
        self._sizes.append(len(text.encode()))
        self._size += self._sizes[-1]
        self._digest = extend_digest(self._digest, text)

    def ref(self) -> TranscriptRef:
        """Names the transcript as it is now, with what came since the last reference if that is small."""
        tail = self._messages[self._referred :]
        small = sum(self._sizes[self._referred :]) <= TAIL_MAX_BYTES
        self._referred = len(self._messages)
        return TranscriptRef(count=len(self._messages), digest=self._digest, tail=tuple(tail) if small else ())

    def page(self, query: TranscriptQuery) -> TranscriptPage:
        """Messages from `query.start` on, within `query.max_bytes` but at least one."""
        end, size = query.start, 0
        while end < len(self._messages):
            size += self._sizes[end]
            if size > query.max_bytes and end > query.start:
                break
            end += 1
        return TranscriptPage(messages=tuple(self._messages[query.start : end]), next=end, total=len(self._messages))

    @property
    def size(self) -> int:
        """Bytes of all messages as JSON."""
        return self._size

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages held."""
        return tuple(self._messages)
