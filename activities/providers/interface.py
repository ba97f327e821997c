"""What the runtime asks of a model API, and what it gets back. Nothing here is recorded in history."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from contracts.messages import Message, Usage
from contracts.tools import ToolContract

ModelErrorType = Literal[
    "ModelUnavailable",
    "ModelAuthentication",
    "ModelBadRequest",
    "ModelRefused",
    "ModelBehaviour",
    "ContextWindowExceeded",
]


@dataclass(frozen=True)
class CompletionRequest:
    """One request. `messages` is legal: every tool call in it is answered, in order, exactly once."""

    model: str
    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[ToolContract, ...]


@dataclass(frozen=True)
class RawToolCall:
    """A tool call as the API delivered it: nothing parsed, nothing checked."""

    name: str
    arguments: str
    provider_call_id: str | None = None


@dataclass(frozen=True)
class Completion:
    """A reply. `finish_reason` is the API's own word; `truncated` means that an output limit cut the reply off."""

    text: str
    calls: tuple[RawToolCall, ...] = ()
    finish_reason: str | None = None
    truncated: bool = False
    usage: Usage = field(default_factory=Usage)


class ModelFailure(Exception):
    """A request that brought no usable reply, classified once.

    `type` is the name the run fails with when nothing helps; `retry_after` (seconds) is what the API asked for. The
    message is short, names what to do where that is known, and holds no secret.
    """

    def __init__(
        self, type: ModelErrorType, message: str, *, retryable: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.type = type
        self.retryable = retryable
        self.retry_after = retry_after


class ModelProvider(Protocol):
    """A model API. Implementations send one HTTP request a call: retries belong to Temporal."""

    async def complete(self, request: CompletionRequest) -> Completion:
        """The model's reply. Raises `ModelFailure`; lets cancellation through."""
        ...
