"""What users say while the run works: kept in order until it may join the conversation, each message once."""

from collections.abc import Iterable

from contracts.messages import Message
from contracts.records import MalformedPayload
from contracts.runs import UserMessage
from contracts.text import encodable
from workflows.journal import Journal
from workflows.opening import MESSAGE_MAX_BYTES, over
from workflows.transcript import Transcript

# Ids are remembered for the rest of the run, and waiting messages travel along when it continues as new.
MOST_MESSAGES = 5_000
WAITING_MAX_BYTES = 2 * MESSAGE_MAX_BYTES


class MessageRefused(Exception):
    """A message that is not taken. The exception says why."""


class Inbox:
    """Messages of the signal `add_message`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: list[UserMessage] = []
        self._seen: dict[str, None] = {}
        self._bytes = 0

    def resume(self, waiting: Iterable[UserMessage], seen: Iterable[str]) -> None:
        """Go on where the previous execution stopped."""
        self._waiting = list(waiting)
        self._seen = dict.fromkeys(seen)
        self._bytes = sum(len(message.text.encode()) for message in self._waiting)

    def take(self, payload: bytes) -> None:
        """Take one message, given as JSON. One whose id was taken before changes nothing. Raises `MessageRefused`."""
        try:
            message = UserMessage.from_wire(payload)
        except MalformedPayload as malformed:
            raise MessageRefused(str(malformed)) from None
        if message.id in self._seen:
            return
        if not message.text.strip():
            raise MessageRefused("text is empty")
        if size := over(MESSAGE_MAX_BYTES, message):
            raise MessageRefused(f"the message has {size} bytes as JSON, at most {MESSAGE_MAX_BYTES} fit")
        self._bytes += len(message.text.encode())
        if len(self._seen) >= MOST_MESSAGES or self._bytes > WAITING_MAX_BYTES:
            self._bytes -= len(message.text.encode())
            raise MessageRefused("this run has taken as many messages as it can hold")
        self._seen[message.id] = None
        self._waiting.append(message)
        self._journal.record("message_added", id=message.id)

    def join(self, transcript: Transcript) -> None:
        """Add what waits to the conversation, in the order of arrival. Every call of it must be answered."""
        for message in self._waiting:
            transcript.append(Message(role="user", text=encodable(message.text)))
        self._waiting = []
        self._bytes = 0

    @property
    def waiting(self) -> tuple[UserMessage, ...]:
        """What has not joined yet."""
        return tuple(self._waiting)

    @property
    def seen(self) -> tuple[str, ...]:
        """The ids of all messages so far."""
        return tuple(self._seen)
