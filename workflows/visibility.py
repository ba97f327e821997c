"""What a run shows of itself to those who look for it: its search attributes, set when they change."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate

from contracts.context import subject_id
from contracts.search_attributes import (
    AGENT_COST_USD,
    AGENT_NAME,
    AGENT_NEEDS_OPERATOR,
    AGENT_PENDING_APPROVALS,
    AGENT_ROUNDS,
    AGENT_STATUS,
    AGENT_SUBJECT,
    AGENT_TENANT,
    AGENT_TOOL,
)
from contracts.text import head
from workflows.run_state import RunState

# A value longer than this is refused by some visibility stores, in bytes.
KEYWORD_MAX_BYTES = 255
# The server takes a value of at most 2,048 bytes as JSON, and fails the workflow task for ever over a longer one. What
# a name takes there besides itself are quotes and a comma.
LIST_MAX_BYTES = 1_900
_AROUND_A_NAME = 3


class Visibility:
    """The search attributes of one run. Only those are set that the namespace had when the run was started: setting
    another one would fail the workflow task for ever."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._shown: dict[str, object] = {}

    def show(self) -> None:
        """Set what has changed since the last time, each time in one event or none."""
        state = self._state
        if not state.search_attributes:
            return
        changed = [update for update in self._updates() if self._is_news(update)]
        if changed:
            workflow.upsert_search_attributes(changed)
            self._shown.update({update.key.name: update.value for update in changed})

    def _is_news(self, update: SearchAttributeUpdate[Any]) -> bool:
        name = update.key.name
        return name in self._state.search_attributes and self._shown.get(name) != update.value

    def _updates(self) -> list[SearchAttributeUpdate[Any]]:
        state = self._state
        pending = state.approvals.pending
        updates: list[SearchAttributeUpdate[Any]] = [
            AGENT_NAME.value_set(state.agent.name),
            AGENT_STATUS.value_set(state.status),
            AGENT_PENDING_APPROVALS.value_set(len(pending)),
            AGENT_TOOL.value_set(_as_many_as_fit(sorted({request.tool for request in pending}))),
            AGENT_ROUNDS.value_set(state.limits.rounds),
            AGENT_COST_USD.value_set(state.spending.cost.total),
            AGENT_NEEDS_OPERATOR.value_set(state.effects.needs_operator),
        ]
        attributes = state.context.attributes
        for key, value in ((AGENT_TENANT, attributes.get("tenant_id")), (AGENT_SUBJECT, subject_id(attributes))):
            if value is not None:
                # Not every visibility store can keep a NUL.
                updates.append(key.value_set(head(value.replace("\0", "\ufffd"), KEYWORD_MAX_BYTES)))
        return updates


def _as_many_as_fit(names: Sequence[str]) -> list[str]:
    """The first of these ASCII names that fit into one value."""
    ends = accumulate(len(name) + _AROUND_A_NAME for name in names)
    return [name for name, end in zip(names, ends, strict=True) if end <= LIST_MAX_BYTES]
