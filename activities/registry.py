"""All activities of one worker, and the life of what they share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from activities.cancelling import Cancelling
from activities.catalog import AgentCatalog, Catalog
from activities.delta_sinks import DeltaSink, Dropped
from activities.foreign_tools import ForeignTools
from activities.hook_calls import HookCalls
from activities.in_flight import InFlight
from activities.ledgers import Ledgers
from activities.loop_watch import watched_loop
from activities.model import ModelCalls
from activities.model_table import ModelTable
from activities.providers.interface import ModelProvider
from activities.requests import Requests
from activities.reviews import CallReviews
from activities.runs import HeldRuns
from activities.tool_calls import ToolCalls
from activities.tool_effects import ToolEffects


class Activities:
    """The runtime's own activities and those of the catalog's tools, as an async context manager: the sink for deltas
    and then the tool providers are started in order on entering and closed in reverse on leaving.

    `settings` holds the values that tool contracts name. `sink` takes the place of the catalog's own,
    `models` that of the built-in table.
    """

    def __init__(
        self,
        catalog: Catalog,
        providers: Mapping[str, ModelProvider],
        settings: Mapping[str, str],
        in_flight: InFlight | None = None,
        search_attributes: Iterable[str] = (),
        sink: DeltaSink | None = None,
        models: ModelTable | None = None,
    ) -> None:
        self._catalog = catalog
        self._providers = providers
        self._settings = settings
        self._in_flight = in_flight or InFlight()
        self._search_attributes = frozenset(search_attributes)
        self._models = models or ModelTable.load()
        self._sink = sink or catalog.sink or Dropped()
        self._life = AsyncExitStack()

    def all(self) -> Sequence[Callable[..., object]]:
        """What a worker registers."""
        runs, tools = HeldRuns(), self._catalog.tools.values()
        hooks = HookCalls(self._catalog.hooks)
        requests = Requests(hooks, self._catalog.counters, self._models)
        return [
            AgentCatalog(self._catalog, self._models, self._search_attributes).load_agent,
            ModelCalls(self._providers, runs, requests, self._sink).call_model,
            CallReviews(hooks, runs).review_calls,
            ForeignTools(runs).settle_outcome,
            Cancelling().request_cancel,
            Ledgers().read_ledger,
            *ToolCalls(tools, self._settings, self._in_flight).activities(),
            *ToolEffects(tools, self._settings, self._in_flight).activities(),
        ]

    async def __aenter__(self) -> Self:
        self._life.enter_context(watched_loop())
        try:
            await self._sink.start()
            self._life.push_async_callback(self._sink.close)
            for provider in self._catalog.providers:
                await provider.start()
                self._life.push_async_callback(provider.close)
        except BaseException:
            await self._life.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._life.aclose()
