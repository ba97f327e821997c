"""The agents and tools a worker has, and `load_agent`, which freezes one of them into a run."""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TypeVar

from pydantic import JsonValue, ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.delta_sinks import DeltaSink
from activities.hooks import Hooks
from activities.model_table import ModelTable
from activities.plain_patterns import check_patterns
from activities.schemas import SchemaRefused, check_schema
from activities.token_counts import TokenCounter
from activities.tool_provider import ToolProvider
from activities.tooling import Tool
from contracts.activities import BEHAVIOUR, AgentActivities, LoadAgentRequest, LoadedAgent
from contracts.agents import AgentSpec
from contracts.records import describe

N = TypeVar("N", AgentSpec, Tool)

# An agent enters each run's history once and is asked for by query: well below the 2 MiB of one payload.
AGENT_MAX_BYTES = 1_048_576
# The provider whole, and as much of the name as the models of a counter share.
_MODELS = re.compile(r"[a-z0-9_]+:(\S.*)?")


class CatalogError(ValueError):
    """Why a worker must not start with these agents and tools, in one line."""


class Catalog:
    """Agents by name, the tools that fulfil their contracts by name, the providers that those tools come from, and the
    sink for deltas, if there is one."""

    def __init__(
        self,
        agents: Iterable[AgentSpec],
        tools: Iterable[Tool] = (),
        providers: Iterable[ToolProvider] = (),
        hooks: Iterable[Hooks] = (),
        counters: Iterable[TokenCounter] = (),
        sinks: Iterable[DeltaSink] = (),
    ) -> None:
        """Raises `CatalogError` on a name that is taken, a contract that nobody fulfils or that its tool cannot keep,
        a schema that is refused, a token counter that is for no models or for those of another, or a second sink."""
        self.agents: Mapping[str, AgentSpec] = _by_name("agent", agents)
        self.providers = tuple(dict.fromkeys(providers))
        for provider in self.providers:
            if not isinstance(provider, ToolProvider):
                raise CatalogError(f"{provider!r} is no ToolProvider")
        provided = [tool for provider in self.providers for tool in provider.tools()]
        self.tools: Mapping[str, Tool] = _by_name("tool", [*tools, *provided, *_tools_of(self.agents.values())])
        for tool in self.tools.values():
            if promise := tool.broken_promise():
                raise CatalogError(f"tool {tool.name!r} ({tool.source}): {promise}")
        self.counters = _one_for_each_models(counters)
        self.hooks = _hooks_by_agent(hooks, self.agents)
        self.sink = _only_sink(sinks)
        for agent in self.agents.values():
            try:
                # A contract changed by `model_copy` has never been checked, and no run could read it.
                AgentSpec.model_validate_json(agent.model_dump_json(warnings=False))
            except ValidationError as error:
                raise CatalogError(f"agent {agent.name!r}: {describe(error)}") from None
        for agent in self.agents.values():
            if agent.output_schema is not None:
                try:
                    check_schema(agent.output_schema)
                except SchemaRefused as refusal:
                    raise CatalogError(f"agent {agent.name!r}: output_schema: {refusal}") from None
        for contract in (contract for agent in self.agents.values() for contract in agent.tools):
            for schema in filter(None, (contract.input_schema, contract.output_schema)):
                try:
                    check_schema(schema)
                except SchemaRefused as refusal:
                    raise CatalogError(f"tool {contract.name!r}: {refusal}") from None
        for agent in self.agents.values():
            size = len(agent.model_dump_json().encode())
            if size > AGENT_MAX_BYTES:
                raise CatalogError(f"agent {agent.name!r} has {size} bytes as JSON, at most {AGENT_MAX_BYTES} fit")

    @classmethod
    def from_modules(cls, modules: Sequence[ModuleType], model: str | None = None) -> "Catalog":
        """What the modules' public variables hold. `model` replaces the model of every agent. Raises `CatalogError` as
        the catalog itself does, and where there is no agent."""
        values = [value for module in modules for name, value in vars(module).items() if not name.startswith("_")]
        agents = [value for value in values if isinstance(value, AgentSpec)]
        if not agents:
            raise CatalogError(f"no AgentSpec in {', '.join(module.__name__ for module in modules)}")
        if model is not None:
            agents = [agent.model_copy(update={"model": model}) for agent in _by_name("agent", agents).values()]
        return cls(
            agents,
            [value for value in values if isinstance(value, Tool)],
            [value for value in values if isinstance(value, ToolProvider)],
            [value for value in values if isinstance(value, Hooks)],
            [value for value in values if isinstance(value, TokenCounter)],
            [value for value in values if isinstance(value, DeltaSink)],
        )

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that the tools name, each with the tool that names it."""
        return {name: tool.name for tool in self.tools.values() for name in tool.settings}


class AgentCatalog(AgentActivities):
    """Resolves agents for the runs of this worker."""

    def __init__(self, catalog: Catalog, models: ModelTable, search_attributes: Iterable[str] = ()) -> None:
        self._agents = catalog.agents
        self._models = models
        self._hooks = catalog.hooks
        self._search_attributes = tuple(sorted(search_attributes))

    @activity.defn(name="load_agent")
    async def load_agent(self, request: LoadAgentRequest) -> LoadedAgent:
        """The agent as this worker knows it now, with what its table knows of the agent's models."""
        agent = self._agents.get(request.agent)
        if agent is None:
            known = ", ".join(sorted(self._agents))
            reason = f"no agent is named {request.agent!r}; this worker serves: {known}"
            raise ApplicationError(reason, type="UnknownAgent", non_retryable=True)
        if request.output_schema is not None:
            agent = _answering_by(request.output_schema, agent)
        agent = self._models.completed(agent)
        hooks = self._hooks[agent.name].names if agent.name in self._hooks else ()
        return LoadedAgent(
            **agent.model_dump(), hooks=hooks, search_attributes=self._search_attributes, behaviour=BEHAVIOUR
        )


def _answering_by(schema: dict[str, JsonValue], agent: AgentSpec) -> AgentSpec:
    """The agent with the output schema that a run asks for."""
    reason = None
    if agent.output_schema is not None and agent.output_schema != schema:
        reason = f"agent {agent.name} has an output_schema of its own: leave out options.output_schema"
    else:
        try:
            check_schema(schema)
            if schema != agent.output_schema:
                check_patterns(schema)
        except SchemaRefused as refusal:
            reason = f"options.output_schema: {refusal}"
    if reason is not None:
        raise ApplicationError(reason, type="InvalidInput", non_retryable=True)
    return agent.model_copy(update={"output_schema": schema})


def _hooks_by_agent(hooks: Iterable[Hooks], agents: Mapping[str, AgentSpec]) -> Mapping[str, Hooks]:
    """One `Hooks` an agent. The same object may come twice, as an import does."""
    named: dict[str, Hooks] = {}
    for each in hooks:
        if each.agent not in agents:
            raise CatalogError(f"hooks for agent {each.agent!r}: there is no such agent, only {', '.join(agents)}")
        if named.setdefault(each.agent, each) is not each:
            raise CatalogError(f"agent {each.agent!r} has two Hooks: put both functions into one")
    return named


def _one_for_each_models(counters: Iterable[TokenCounter]) -> tuple[TokenCounter, ...]:
    """One counter for a beginning of models' names. The same object may come twice, as an import does."""
    by_models: dict[str, TokenCounter] = {}
    for counter in counters:
        if not isinstance(counter.models, str) or not _MODELS.fullmatch(counter.models):
            raise CatalogError(
                f"token counter {counter.source}: models is {counter.models!r}, but no model's name begins so: write "
                "the provider, a colon, and as much of the name as its models share"
            )
        if not callable(counter.count):
            raise CatalogError(f"token counter for models {counter.models!r}: count is no function")
        if (other := by_models.setdefault(counter.models, counter)) is not counter:
            sources = f"{other.source} and {counter.source}"
            raise CatalogError(f"two token counters are for models {counter.models!r}: {sources}; remove one of them")
    return tuple(by_models.values())


def _only_sink(sinks: Iterable[DeltaSink]) -> DeltaSink | None:
    """The same object may come twice, as an import does."""
    found = tuple(dict.fromkeys(sinks))
    if len(found) > 1:
        kinds = " and ".join(type(sink).__name__ for sink in found)
        raise CatalogError(f"{len(found)} sinks for deltas, {kinds}: a worker has at most one")
    return found[0] if found else None


def _tools_of(agents: Iterable[AgentSpec]) -> Iterable[Tool]:
    for agent in agents:
        for contract in agent.tools:
            if isinstance(contract, Tool):
                yield contract
            elif contract.task_queue is None:
                raise CatalogError(
                    f"agent {agent.name!r}: nothing fulfils the contract of tool {contract.name!r}; for one in another "
                    "process name its task_queue"
                )


def _by_name(kind: str, items: Iterable[N]) -> dict[str, N]:
    """One item a name. The same object may come twice, as an import does."""
    named: dict[str, N] = {}
    for item in items:
        if named.setdefault(item.name, item) is not item:
            sources = f"{_source(named[item.name])} and {_source(item)}"
            raise CatalogError(f"two {kind}s are named {item.name!r}: {sources}; rename one of them")
    return named


def _source(item: AgentSpec | Tool) -> str:
    return item.source if isinstance(item, Tool) else f"one with model {item.model}"
