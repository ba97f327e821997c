"""One running attempt of a tool: whether it still counts, what it reports, what it may know."""

import math
import time
from collections.abc import Mapping

from temporalio import activity

from activities.tool_secrets import ToolSecrets
from contracts.text import cut, encodable
from contracts.tools import ToolContract

MESSAGE_MAX_BYTES = 500


class Attempt:
    """The runtime's side of a `ToolInvocation`. A tool may use it from any thread."""

    def __init__(self, contract: ToolContract, settings: Mapping[str, str]) -> None:
        self._contract = contract
        self._settings = settings
        self._secrets = ToolSecrets.of(contract, settings)
        self._over = False
        self._reported_at = time.monotonic()
        self._latest: tuple[float | None, str] | None = None
        self._shown: tuple[float | None, str] | None = None
        self._shown_at = -math.inf
        self._token = activity.info().task_token

    def begin(self) -> None:
        """The tool's code starts to run: what it waited for before was no silence."""
        self._reported_at = time.monotonic()

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
            self._latest = (progress, cut(encodable(self._secrets.hidden(message)), MESSAGE_MAX_BYTES))

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
        """What to show of the reports: the latest, but another one only after the contract's `minimum_interval`."""
        rule = self._contract.heartbeat
        if rule is None or time.monotonic() - self._shown_at >= rule.minimum_interval:
            if self._latest != self._shown:
                self._shown_at = time.monotonic()
            self._shown = self._latest
        return self._shown

    @property
    def silent_for(self) -> float:
        """Seconds since the last report."""
        return time.monotonic() - self._reported_at
