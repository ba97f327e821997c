"""The run's transcript: append-only messages whose digests chain, handed out by reference."""

from collections.abc import Iterable, Sequence

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
    """Every message a model may see, in order. `first` is the number of the first one held: those before it were left
    behind in an earlier execution. `prompt` is the place, among those held, of what the caller wanted."""

    def __init__(self, messages: Iterable[Message] = (), first: int = 0, prompt: int = 0) -> None:
        self.first = first
        self.prompt = prompt
        self._messages: list[Message] = []
        self._sizes: list[int] = []
        self._size = 0
        self._digest = EMPTY_DIGEST
        self._referred = 0
        for message in messages:
            self.append(message)

    def open(self, messages: Sequence[Message]) -> None:
        """Begin with the caller's conversation, whose last words of a user are the prompt."""
        for message in messages:
            if message.role == "user":
                self.prompt = len(self._messages)
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
        return TranscriptRef(count=self.count, digest=self._digest, tail=tuple(tail) if small else (), first=self.first)

    def page(self, query: TranscriptQuery) -> TranscriptPage:
        """Messages from `query.start` on, within `query.max_bytes` but at least one."""
        start = end = max(0, query.start - self.first)
        size = 0
        while end < len(self._messages):
            size += self._sizes[end]
            if size > query.max_bytes and end > start:
                break
            end += 1
        return TranscriptPage(
            messages=tuple(self._messages[start:end]),
            next=self.first + end,
            total=self.count,
            first_available=self.first,
        )

    def latest(self, max_bytes: int) -> "Transcript":
        """The transcript with its oldest messages left behind: the prompt, in the place of the last of them, and whole
        exchanges after it, about `max_bytes` as JSON in all but at least one. Itself, where nothing can be left."""
        prompt = self.prompt
        start, size = len(self._messages), self._sizes[prompt]
        for at in range(len(self._messages) - 1, prompt + 1, -1):
            size += self._sizes[at]
            if size > max_bytes and start < len(self._messages):
                break
            # An answer does not stand without its call.
            if self._messages[at].role != "tool":
                start = at
        if start == len(self._messages):
            return self
        kept = [self._messages[prompt], *self._messages[start:]]
        return Transcript(kept, self.first + start - 1)

    @property
    def count(self) -> int:
        """How many messages there were, those left behind included."""
        return self.first + len(self._messages)

    @property
    def size(self) -> int:
        """Bytes of all messages held as JSON."""
        return self._size

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages held."""
        return tuple(self._messages)
