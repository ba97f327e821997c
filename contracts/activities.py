"""The activities as the workflow knows them: names, requests and replies. `activities/` implements them."""

from abc import ABC, abstractmethod

from temporalio import activity

from contracts.agents import AgentSpec
from contracts.messages import ProposedCall, Usage
from contracts.outcomes import ToolOutcome
from contracts.records import Record, SparseRecord
from contracts.tools import SettleRequest
from contracts.transcripts import TranscriptRef


class LoadAgentRequest(Record):
    """Which agent a run asks for."""

    agent: str


class ModelRequest(Record):
    """One model call. Agent and transcript travel by digest; the worker asks the run for what it does not hold.

    `next_call` numbers the first tool call of the reply: the ids are `call_<next_call>`, `call_<next_call + 1>`, ...
    """

    agent_digest: str
    transcript: TranscriptRef
    next_call: int


class ModelReply(SparseRecord):
    """A model's parsed reply. `finish_reason` is the provider's own word and only a hint: what to do follows from
    `calls` and `text`. `truncated` means that the reply was cut off: none of its calls may run."""

    text: str = ""
    calls: tuple[ProposedCall, ...] = ()
    finish_reason: str | None = None
    truncated: bool = False
    usage: Usage = Usage()


class AgentActivities(ABC):
    """Resolves names to agents."""

    @abstractmethod
    @activity.defn(name="load_agent")
    async def load_agent(self, request: LoadAgentRequest) -> AgentSpec:
        """The agent of this name, with its tool contracts. Fails as `UnknownAgent`, not retryable."""


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
        """One request to the agent's model. Fails with one of the Model* error types, ContextWindowExceeded or
        PayloadTooLarge; the retryable ones carry the delay the provider asked for."""
