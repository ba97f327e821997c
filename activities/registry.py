"""All activities of one worker, ready to be registered."""

from collections.abc import Callable, Mapping, Sequence

from activities.catalog import AgentCatalog, Catalog
from activities.model import ModelCalls
from activities.providers.interface import ModelProvider
from activities.runs import HeldRuns
from activities.tool_calls import ToolCalls


def activities_for(catalog: Catalog, providers: Mapping[str, ModelProvider]) -> Sequence[Callable[..., object]]:
    """The runtime's own activities and one for each tool of the catalog."""
    return [
        AgentCatalog(catalog).load_agent,
        ModelCalls(providers, HeldRuns()).call_model,
        *ToolCalls(catalog.tools.values()).activities(),
    ]
