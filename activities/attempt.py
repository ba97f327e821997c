"""One running attempt of a tool: whether it still counts, what it reports, what it may know."""

import math
import time
from collections.abc import Mapping

from temporalio import activity

from contracts.text import cut, encodable
from contracts.tools import ToolContract

MESSAGE_MAX_BYTES = 500


class Attempt:
    """The runtime's side of a `ToolInvocation`. A tool may use it from any thread."""

    def __init__(self, contract: ToolContract, settings: Mapping[str, str]) -> None:
        self._contract = contract
        self._settings = settings
        self._over = False
        self._reported_at = time.monotonic()
        self._details: tuple[float | None, str] | None = None
        self._token = activity.info().task_token

    def end(self) -> None:
        """The attempt has its outcome: whatever still runs of it must not write any more."""
        self._over = True

    def still_mine(self) -> bool:
        """See `ToolInvocation.still_mine`."""
        return not self._over

    def heartbeat(self, progress: float | None, message: str) -> None:
        """See `ToolInvocation.heartbeat`. Progress outside 0 to 1 counts as a sign of life and is not shown."""
        self._reported_at = time.monotonic()
        if progress is None or (math.isfinite(progress) and 0 <= progress <= 1):
            self._details = (progress, cut(encodable(message), MESSAGE_MAX_BYTES))

    def setting(self, name: str) -> str:
        """See `ToolInvocation.setting`."""
        if name not in self._contract.settings:
            raise KeyError(f"{self._contract.name} does not name the setting {name} in its contract")
        return self._settings[name]

    def completion_token(self) -> bytes:
        """See `ToolInvocation.completion_token`."""
        return self._token

    @property
    def details(self) -> tuple[float | None, str] | None:
        """What the last heartbeat reported."""
        return self._details

    @property
    def silent_for(self) -> float:
        """Seconds since the last report."""
        return time.monotonic() - self._reported_at
