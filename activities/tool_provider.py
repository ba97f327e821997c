"""Tools that share state: a client, a pool, a session."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from activities.tooling import Tool


class ToolProvider(ABC):
    """Groups tools over something that is opened once a worker starts and closed when it stops.

    Make one in your module; `tools` makes each tool from a bound method, once, for example in `__init__`:
    `self.balance = tool(side_effect="read")(self._balance)`. Several may be composed: their order is kept, two tools of
    one name are refused, and undo and reconciliation go to the provider that owns the tool.
    """

    @abstractmethod
    def tools(self) -> Sequence[Tool]:
        """The same tools at every call."""

    async def start(self) -> None:  # noqa: B027 - there may be nothing to open
        """Open what the tools share. Called once, before the worker takes any work; an exception stops the worker."""

    async def close(self) -> None:  # noqa: B027 - there may be nothing to close
        """Close it. Called once, after the worker has let its last call go."""
