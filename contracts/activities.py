"""The activities as the workflow knows them: names, requests and replies. `activities/` implements them."""

from abc import ABC, abstractmethod

from pydantic import JsonValue
from temporalio import activity

from contracts.agents import AgentSpec
from contracts.context import ExecutionContext
from contracts.effects import ClosedLedger, ReadLedgerRequest
from contracts.hooks import HookName
from contracts.messages import ProposedCall, ToolCall, Usage
from contracts.outcomes import ToolOutcome
from contracts.records import SparseRecord
from contracts.tools import SettleRequest
from contracts.transcripts import TranscriptRef

# What a worker's workflow code does that older code did not, as the number from which on it does so. A run records its
# number at its start, so that a history that was begun by older code is replayed as it was written.
BEHAVIOUR = 1
HAS_A_DEADLINE = 1
LEAVES_BETWEEN_CALLS = 1
LEAVES_THE_OLDEST = 1


class LoadAgentRequest(SparseRecord):
    """Which agent a run asks for, and what its answer must match where the agent itself says nothing of that."""

    agent: str
    output_schema: dict[str, JsonValue] | None = None


class LoadedAgent(AgentSpec):
    """An agent as a run keeps it, and what its worker had at that moment: the hooks of the agent, the search attributes
    that the namespace has, and the `behaviour` of its workflow code: see `BEHAVIOUR`."""

    hooks: tuple[HookName, ...] = ()
    search_attributes: tuple[str, ...] = ()
    behaviour: int = 0

    @property
    def spec(self) -> AgentSpec:
        """The agent by itself."""
        return AgentSpec.model_validate(self.model_dump(exclude={"hooks", "search_attributes", "behaviour"}))


class ModelRequest(SparseRecord):
    """One model call. Agent and transcript travel by digest; the worker asks the run for what it does not hold.

    `next_call` numbers the first tool call of the reply: the ids are `call_<next_call>`, `call_<next_call + 1>`, ...
    `model` is the one of the agent's models to ask (none: its first), `key` names this call over all its attempts and
    is different for every other call of any run, and `round` counts the rounds before it. `tokens_left` and
    `cost_left_usd` are what is left of the run's budgets, None where there is none. `context` is there for an agent
    whose hooks want it.
    """

    agent_digest: str
    transcript: TranscriptRef
    next_call: int
    model: str = ""
    key: str = ""
    round: int = 0
    tokens_left: int | None = None
    cost_left_usd: float | None = None
    context: ExecutionContext | None = None


class ModelReply(SparseRecord):
    """A model's parsed reply. `finish_reason` is the provider's own word and only a hint: what to do follows from
    `calls` and `text`. `truncated` means that the reply was cut off: none of its calls may run. `paused` means that the
    provider wants to go on with this turn when asked again.

    `opaque` is as in `Message`. `output` is the answer as JSON where the agent has an output_schema, and
    `output_issues` says why it does not match. `usage` counts all attempts that were billed, as far as the provider
    told; `usage_estimated` means that it told nothing of this one. `replaced_characters` counts U+FFFD in what the
    model said: it stands for what could not be encoded, such as half of an emoji.
    """

    text: str = ""
    calls: tuple[ProposedCall, ...] = ()
    finish_reason: str | None = None
    truncated: bool = False
    paused: bool = False
    opaque: tuple[JsonValue, ...] = ()
    output: JsonValue = None
    output_issues: tuple[str, ...] = ()
    usage: Usage = Usage()
    usage_estimated: bool = False
    replaced_characters: int = 0


class ModelCallFailure(SparseRecord):
    """The detail of a model call that failed for good: what was billed all the same, and how long the provider asked to
    wait, in seconds, where that is longer than an activity waits by itself."""

    usage: Usage = Usage()
    wait_seconds: float | None = None


class ReviewRequest(SparseRecord):
    """Calls with valid arguments, to be looked at by the agent's `hooks` before anybody is asked to approve them, and
    the text that the model said with them."""

    agent_digest: str
    calls: tuple[ToolCall, ...]
    context: ExecutionContext
    text: str = ""
    hooks: tuple[HookName, ...] = ("prepare_tool_call",)


class ReviewedCalls(SparseRecord):
    """The calls as they are to run, in the order of the request; a denied one is invalid with the reason `denied`.
    `stop` says why the run is to end before them; then they are as they were."""

    calls: tuple[ProposedCall, ...]
    stop: str | None = None


class AgentActivities(ABC):
    """Resolves names to agents."""

    @abstractmethod
    @activity.defn(name="load_agent")
    async def load_agent(self, request: LoadAgentRequest) -> LoadedAgent:
        """The agent of this name, with its tool contracts. Fails as `UnknownAgent`, or as `InvalidInput` for an output
        schema that cannot be enforced; neither is retryable."""


class ToolActivities(ABC):
    """What the runtime does about tools. The tools themselves are activities by their own names."""

    @abstractmethod
    @activity.defn(name="settle_outcome")
    async def settle_outcome(self, request: SettleRequest) -> ToolOutcome:
        """A raw outcome from outside as one of ours: validated, bounded, projected. Whatever came, it is an outcome."""


class ModelActivities(ABC):
    """Calls the models of agents."""

    @abstractmethod
    @activity.defn(name="call_model")
    async def call_model(self, request: ModelRequest) -> ModelReply:
        """One request to the agent's model. Fails with one of the Model* error types, ContextWindowExceeded,
        TokenBudgetExceeded, CostBudgetExceeded or PayloadTooLarge, with a `ModelCallFailure` as its detail; the
        retryable ones carry the delay the provider asked for."""


class ReviewActivities(ABC):
    """Asks an agent's hooks about its calls."""

    @abstractmethod
    @activity.defn(name="review_calls")
    async def review_calls(self, request: ReviewRequest) -> ReviewedCalls:
        """What the hook makes of the calls. Fails as InternalError, which is retried: the hook may work again."""


class CancelActivities(ABC):
    """What only the server can do to a run: a workflow cannot end itself as cancelled."""

    @abstractmethod
    @activity.defn(name="request_cancel")
    async def request_cancel(self) -> None:
        """Ask the server to cancel the execution that this activity belongs to."""


class LedgerActivities(ABC):
    """Reads what closed runs left behind."""

    @abstractmethod
    @activity.defn(name="read_ledger")
    async def read_ledger(self, request: ReadLedgerRequest) -> ClosedLedger:
        """A page of the effects of a closed run that can still be undone. Fails as `InvalidInput`, for good, where
        there is no such run, it is still running, or it was continued by another execution."""
