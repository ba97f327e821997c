"""What the runtime asks of a model API, and what it gets back. Nothing here is recorded in history."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydantic import JsonValue

from contracts.messages import Message, Usage
from contracts.models import ModelSettings
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
    """One request. `messages` is legal: every tool call in it is answered, in order, exactly once, and `opaque` holds
    only what this provider and model gave. `settings.tool_choice` is what holds for this request.

    `output_schema` is what the answer must match, and `web_search` allows the API's own search where it has one.
    """

    model: str
    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[ToolContract, ...]
    settings: ModelSettings = field(default_factory=ModelSettings)
    output_schema: dict[str, JsonValue] | None = None
    web_search: bool = False


@dataclass(frozen=True)
class RawToolCall:
    """A tool call as the API delivered it: nothing parsed, nothing checked."""

    name: str
    arguments: str
    provider_call_id: str | None = None


@dataclass(frozen=True)
class Completion:
    """A reply. `finish_reason` is the API's own word; `truncated` means that an output limit cut the reply off, and
    `paused` that the API wants to be asked again to go on with this very turn.

    `usage` is None where the API told none. `opaque` is the turn in its parts, as `Message.opaque` has it, but for
    `from`; empty where the turn is just its text and then its calls.
    """

    text: str
    calls: tuple[RawToolCall, ...] = ()
    finish_reason: str | None = None
    truncated: bool = False
    paused: bool = False
    usage: Usage | None = None
    opaque: tuple[JsonValue, ...] = ()


@dataclass(frozen=True)
class Delta:
    """A piece of a reply that is still being written. For "tool_call", `call` is the position of the call in the reply,
    `name` the tool's name as far as it is known, and `text` a piece of the arguments."""

    kind: Literal["text", "reasoning", "refusal", "tool_call"]
    text: str
    call: int = 0
    name: str = ""


Publish = Callable[[Delta], Awaitable[None]]


async def to_nobody(delta: Delta) -> None:
    """A `Publish` that drops what it is given."""


class ModelFailure(Exception):
    """A request that brought no usable reply, classified once.

    `type` is the name the run fails with when nothing helps; `retry_after` (seconds, not bounded) is what the API asked
    for, and `usage` what it billed all the same, as far as it told. The message is short, names what to do where that
    is known, and holds no secret.
    """

    def __init__(
        self,
        type: ModelErrorType,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(message)
        self.type = type
        self.retryable = retryable
        self.retry_after = retry_after
        self.usage = usage


class ModelProvider(Protocol):
    """A model API. Implementations send one HTTP request a call: retries belong to Temporal."""

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        """The model's reply; what it is made of is published while it comes in. Raises `ModelFailure`; lets
        cancellation through."""
        ...
