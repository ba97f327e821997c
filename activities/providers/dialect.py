"""What tells one model API from another: how a request is written and how a reply is read."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from pydantic import JsonValue

from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, CompletionRequest, Delta
from contracts.messages import Usage


class ReplyStream(Protocol):
    """Folds the events of one stream into the reply that the API would have sent at once. Lives for one request."""

    def add(self, event: str, data: str) -> Iterable[Delta]:
        """Take one server-sent event: its type, empty where the server named none, and its data. Returns what it brings
        for people who watch. Raises `ModelFailure` for an error that the event tells of, or data that cannot be read.
        """
        ...

    @property
    def ended(self) -> bool:
        """Whether the API's own end marker was seen: nothing is read after it."""
        ...

    @property
    def may_end(self) -> bool:
        """Whether the reply is whole if the server closes the connection now, in good order, without an end marker."""
        ...

    @property
    def usage(self) -> Usage | None:
        """What the API has told so far that it billed, should the stream break off."""
        ...

    def reply(self) -> dict[str, JsonValue]:
        """The whole reply, as `Dialect.completion` reads it."""
        ...


class Dialect(Protocol):
    """A model API. Has no state of its own."""

    # What follows the version in an address, for example "/chat/completions".
    path: str

    def headers(self, key: str) -> Mapping[str, str]:
        """The headers that carry the key, and those that every request needs. `key` may be empty."""
        ...

    def body(self, request: CompletionRequest, stream: bool) -> dict[str, JsonValue]:
        """The request. Equal transcripts have equal beginnings, which is what prompt caches go by."""
        ...

    def reply_stream(self, endpoint: Endpoint) -> ReplyStream:
        """What takes the events of one streamed reply."""
        ...

    def completion(self, reply: dict[str, JsonValue], endpoint: Endpoint) -> Completion:
        """What a whole reply says. Raises `ModelFailure` if it holds an error, a refusal, or no reply at all."""
        ...
