"""What an application decides about an agent's model calls and tool calls while it runs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import get_args

from activities.providers.interface import CompletionRequest
from contracts.context import ExecutionContext
from contracts.hooks import HookName
from contracts.messages import ToolCall

PrepareModelRequest = Callable[
    [CompletionRequest, ExecutionContext], CompletionRequest | Awaitable[CompletionRequest | None] | None
]


@dataclass(frozen=True)
class Denied:
    """What `prepare_tool_call` returns for a call that must not run. The model reads the reason."""

    reason: str


@dataclass(frozen=True)
class Proposed:
    """A reply that calls tools, as `should_stop` is asked about it."""

    text: str
    calls: tuple[ToolCall, ...]


ShouldStop = Callable[[Proposed, ExecutionContext], bool | str | Awaitable[bool | str]]

PrepareToolCall = Callable[[ToolCall, ExecutionContext], ToolCall | Denied | Awaitable[ToolCall | Denied]]


@dataclass(frozen=True)
class Hooks:
    """The hooks of one agent, as a public variable of a module that is served. Each may be sync, and is then called in
    a thread, or async; one that raises, or has not answered after `timeout_seconds`, is called again within the
    activity's retry policy, and then fails the run. What they are given is theirs: changing it changes nothing else.

    `prepare_model_request` is given each request before it is sent. It may return another one, with other instructions,
    messages or settings, fewer tools or no web search, or None to end the run as ModelRefused before the model is paid.
    A tool that it takes away cannot be called by the reply. The run's context, its transcript and its frozen agent stay
    what they are.

    `prepare_tool_call` is given each call with valid arguments, before anybody is asked to approve it. It may return
    the call with other arguments, which are validated again and are then the ones that are shown, approved, run and
    kept, or a `Denied`. Nothing it returns takes an approval away.

    `should_stop` is asked after each reply that calls tools, before the calls are prepared, approved or run. It is
    given the calls with valid arguments and the text that the model said with them, and returns whether the run is to
    complete here, without them: False or an empty text, True, or a text that says why.

    A run keeps the hooks that its agent had when it began: a worker that lacks one leaves the step to other workers.
    Raises ValueError for a timeout that leaves no time.
    """

    agent: str
    prepare_model_request: PrepareModelRequest | None = None
    prepare_tool_call: PrepareToolCall | None = None
    should_stop: ShouldStop | None = None
    timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not self.timeout_seconds > 0:
            raise ValueError("timeout_seconds must be more than 0")

    @property
    def names(self) -> tuple[HookName, ...]:
        """Those that there are."""
        return tuple(name for name in get_args(HookName) if getattr(self, name) is not None)
