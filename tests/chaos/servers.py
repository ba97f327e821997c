"""Servers that continue runs as new all the time, and that may be killed."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from temporalio.client import Client

from runtime.dev_server import DevServer, dev_server, free_ports
from runtime.settings import StartupError

# A run of the courier has about 110 events.
_SETTINGS: Mapping[str, str] = {"limit.historyCount.suggestContinueAsNew": "40"}


class MortalServer:
    """A server on a database file, which it is started on again after it was killed. Its address stays the same."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._ports = free_ports()
        self._running = AsyncExitStack()
        self._first: DevServer | None = None
        self.pid = 0

    async def __aenter__(self) -> Self:
        for attempt in range(1, 6):
            try:
                await self._start()
                break
            except StartupError:
                # Somebody took a port that was free a moment ago.
                if attempt == 5:
                    raise
                self._ports = free_ports()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._running.aclose()

    async def start_again(self) -> None:
        """Start it on its database, after it was killed."""
        await self._running.aclose()
        await self._start()

    @property
    def client(self) -> Client:
        """A client that outlives the server's processes."""
        assert self._first is not None
        return self._first.client

    @property
    def address(self) -> str:
        """Host and port."""
        assert self._first is not None
        return self._first.address

    async def _start(self) -> None:
        self._running = AsyncExitStack()
        server = await self._running.enter_async_context(dev_server(self._database, self._ports, _SETTINGS))
        self._first = self._first or server
        self.pid = server.pid
