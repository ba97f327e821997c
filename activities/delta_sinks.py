"""Where deltas go: nowhere, to a function in this process, or to a URL."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import httpx

from activities.in_flight import InFlight
from activities.providers.secrecy import checked_key
from contracts.deltas import DeltaBatch, DeltaEvent

DELTAS_TOKEN = "STEADYHAND_DELTAS_TOKEN"  # noqa: S105 - the name of a setting

# A batch that its receiver did not take is posted again after each of these pauses, in seconds.
_PAUSES = (0.1, 0.4)


@dataclass(frozen=True)
class Delivery:
    """How the events of one attempt reach a sink: serially, in order, at most `batch_limit` at once, and together with
    what comes within `gather_seconds`.

    At most `queue_limit` of them wait. A full queue lets the model call wait, or merges pieces of one kind, so that
    nothing is lost either way. An attempt waits for its sink at most `patience_seconds` in all, and one `publish` may
    take as long. Raises ValueError for a limit that lets nothing pass.
    """

    queue_limit: int = 256
    batch_limit: int = 64
    gather_seconds: float = 0.0
    when_full: Literal["wait", "merge"] = "wait"
    patience_seconds: float = 5.0

    def __post_init__(self) -> None:
        if min(self.queue_limit, self.batch_limit) < 1 or self.patience_seconds <= 0 or self.gather_seconds < 0:
            raise ValueError("queue_limit and batch_limit must be at least 1, patience_seconds more than 0")


class DeltaSink(ABC):
    """Where deltas go. Make one in your module, as a public variable; a worker has at most one.

    One that raises, or takes longer than `delivery` says, is logged by the class of the exception and not called again
    for that attempt: no run is harmed by it.
    """

    delivery = Delivery()

    @abstractmethod
    async def publish(self, events: Sequence[DeltaEvent]) -> None:
        """Take events of one attempt, in order. Called serially for one attempt, and at the same time for others."""

    async def start(self) -> None:  # noqa: B027 - there may be nothing to open
        """Open what it needs. Called once, before the worker takes any work; an exception stops the worker."""

    async def close(self) -> None:  # noqa: B027 - there may be nothing to close
        """Close it. Called once, after the worker has let its last call go."""


class Dropped(DeltaSink):
    """Drops everything: no event is even made for it."""

    async def publish(self, events: Sequence[DeltaEvent]) -> None:
        """Drop what is given."""


class Callback(DeltaSink):
    """Calls a function for each event, one after the other for one model call. A plain function runs in a thread.

    A slow function slows the model call down, for `patience_seconds` in all; then the attempt goes on unseen. Raises
    ValueError as `Delivery` does.
    """

    def __init__(
        self, function: Callable[[DeltaEvent], object], *, queue_limit: int = 256, patience_seconds: float = 5.0
    ) -> None:
        # One at a time, so that nothing is left to be told when the run is cancelled.
        self.delivery = Delivery(queue_limit=queue_limit, batch_limit=1, patience_seconds=patience_seconds)
        self._function = function
        self._in_flight = InFlight()

    async def publish(self, events: Sequence[DeltaEvent]) -> None:
        """Call the function for each of them. Raises what it raises."""
        for event in events:
            result = await self._in_flight.run("delta callback", self._function, event, self.delivery.patience_seconds)
            if isinstance(result, Awaitable):
                await result


class Posted(DeltaSink):
    """Posts events to a URL, as JSON `{"events": [...]}` (see `DeltaBatch`), with `authorization: Bearer <token>`.

    Neighbouring pieces of one kind become one event, so that a slow receiver gets fewer events and no less text; the
    model call does not wait for it, but for the last batch. A receiver answers with any 2xx. Where it cannot be
    reached, or answers 429 or 5xx, a batch is posted twice more: the same events may come again. Raises ValueError for
    a URL or a token that cannot be used, never showing either, and as `Delivery` does.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        token_name: str = DELTAS_TOKEN,
        *,
        queue_limit: int = 256,
        batch_limit: int = 64,
        gather_seconds: float = 0.1,
        patience_seconds: float = 5.0,
    ) -> None:
        self.delivery = Delivery(queue_limit, batch_limit, gather_seconds, "merge", patience_seconds)
        self._url = _checked_url(url)
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {checked_key(token, token_name)}"
        self._http: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Open the HTTP client."""
        self._http = httpx.AsyncClient(headers=self._headers, timeout=self.delivery.patience_seconds)

    async def close(self) -> None:
        """Close the HTTP client."""
        if self._http is not None:
            await self._http.aclose()

    async def publish(self, events: Sequence[DeltaEvent]) -> None:
        """Post them as one batch. Raises `httpx.HTTPError` when it was not taken."""
        body = DeltaBatch(events=tuple(events)).model_dump_json().encode()
        for pause in _PAUSES:
            if await self._taken(body):
                return
            await asyncio.sleep(pause)
        (await self._post(body)).raise_for_status()

    async def _taken(self, body: bytes) -> bool:
        try:
            response = await self._post(body)
        except httpx.TransportError:
            return False
        if response.status_code == 429 or response.status_code >= 500:
            return False
        response.raise_for_status()
        return True

    async def _post(self, body: bytes) -> httpx.Response:
        assert self._http is not None, "a sink is started before it is used"
        return await self._http.post(self._url, content=body)


def _checked_url(url: str) -> httpx.URL:
    try:
        checked = httpx.URL(url.strip())
    except httpx.InvalidURL:
        checked = httpx.URL("")
    if checked.scheme not in ("http", "https") or not checked.host or checked.userinfo:
        raise ValueError("the URL for deltas must look like https://host/path, without credentials")
    return checked
