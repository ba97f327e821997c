"""What gives way where a conversation does not fit: the rule, over numbers of tokens alone.

The conversation is a sequence of units: a message, or an exchange (a turn that calls tools, with all its answers). None
is ever split. Some are protected: the latest request, the latest messages and exchanges, and results that the model
has not read yet. Of the others, in this order and each from the oldest on:

1. The results of exchanges are shortened.
2. Where that is not enough, all of them are, and units are left out as well.

What changes at the beginning of a request makes the API's prompt cache useless, so the cuts are few. Both steps go on
until the conversation is at or below a mark, and by multiples of a step, counted from the conversation's beginning: the
next cut comes when it has grown by a step, not with the next message. Marks go up by a quarter each (..., 51, 63, 78,
97, ...); the mark is the highest that the room reaches, and the step its distance to the one below, which is about a
fifth of it. So more room never keeps less. What an earlier request of the conversation had to leave out stays left out.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Unit:
    """A part of a conversation that stays or goes as a whole. `tokens` is its size, and `shortened` its size with its
    results shortened: the same where there is nothing to shorten."""

    kind: Literal["request", "hint", "answer", "exchange"]
    tokens: int
    shortened: int


@dataclass(frozen=True)
class Reduction:
    """Positions of the units whose results are shortened, and of those that are left out."""

    shortened: frozenset[int] = frozenset()
    left_out: frozenset[int] = frozenset()


def reduction(units: Sequence[Unit], room: int, marker: int, recent_messages: int, recent_exchanges: int) -> Reduction:
    """What gives way in units that do not fit into `room` tokens, `marker` of which are for a word about what was left
    out. Where nothing would do, all that may: whether it is enough is for the caller to see. Takes linear time."""
    step, mark = _step_and_mark(room - marker)
    conversation = _Growing(recent_messages, recent_exchanges)
    for unit in units:
        conversation.add(unit)
        if conversation.size > room - marker:
            conversation.leave_out(_multiple(step, conversation.size - mark))
    yielding = [index for index in range(len(units)) if not conversation.protects(index)]
    left_out = frozenset(index for index in yielding if index < conversation.cut)
    shortable = [index for index in yielding if units[index].tokens > units[index].shortened]
    if left_out:
        return Reduction(frozenset(shortable) - left_out, left_out)
    whole = sum(unit.tokens for unit in units)
    return Reduction(frozenset(_enough(units, shortable, _multiple(step, whole - mark))))


class _Growing:
    """A conversation as it grows: what is protected in it, how large it is with all else shortened, and up to where
    its unprotected units are left out."""

    def __init__(self, recent_messages: int, recent_exchanges: int) -> None:
        self.size = 0
        self.cut = 0
        self._units: list[Unit] = []
        self._left_out = 0
        # How many reasons each unit has to stay. A reason may go, and never comes back.
        self._reasons: list[int] = []
        self._latest_yielding = -1
        self._messages = _Latest(recent_messages)
        self._exchanges = _Latest(recent_exchanges)
        self._request = _Latest(1)
        self._unread = _Latest(1)

    def add(self, unit: Unit) -> None:
        """The next unit. It is protected; others may cease to be."""
        index = len(self._units)
        self._units.append(unit)
        self._reasons.append(0)
        self.size += unit.tokens
        if unit.kind == "exchange":
            # One that nothing else protects: the model has not read its results.
            self._hold(self._unread, index)
            self._hold(self._exchanges, index)
            return
        self._hold(self._messages, index)
        if unit.kind == "request":
            self._hold(self._request, index)
        elif unit.kind == "answer":
            for released in self._unread.clear():
                self._release(released)

    def protects(self, index: int) -> bool:
        """Whether this unit must stay as it is."""
        return self._reasons[index] > 0

    def leave_out(self, tokens: int) -> None:
        """Move the cut on until so many tokens are left out in all, or until nothing else may be."""
        while self._left_out < tokens and self.cut <= self._latest_yielding:
            if not self.protects(self.cut):
                self._left_out += self._units[self.cut].shortened
            self.cut += 1

    def _hold(self, latest: "_Latest", index: int) -> None:
        self._reasons[index] += 1
        for released in latest.add(index):
            self._release(released)

    def _release(self, index: int) -> None:
        self._reasons[index] -= 1
        if self.protects(index):
            return
        unit = self._units[index]
        self.size += unit.shortened - unit.tokens
        self._latest_yielding = max(self._latest_yielding, index)
        if index < self.cut:
            self._left_out += unit.shortened


class _Latest:
    """The latest few positions of one sort."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: deque[int] = deque()

    def add(self, index: int) -> list[int]:
        """One more; returns those that are no longer among the latest."""
        self._held.append(index)
        return [self._held.popleft() for _ in range(len(self._held) - self._most)]

    def clear(self) -> list[int]:
        """None any more; returns those that were."""
        held = list(self._held)
        self._held.clear()
        return held


def _enough(units: Sequence[Unit], shortable: Sequence[int], tokens: int) -> Iterator[int]:
    """The first of these units whose shortening saves so many tokens together; all, where they save less."""
    saved = 0
    for index in shortable:
        if saved >= tokens:
            return
        saved += units[index].tokens - units[index].shortened
        yield index


def _step_and_mark(room: int) -> tuple[int, int]:
    below, mark = 0, 1
    while (above := mark + max(1, mark // 4)) <= room:
        below, mark = mark, above
    return mark - below, mark


def _multiple(step: int, tokens: int) -> int:
    """The smallest multiple of the step that is at least so many tokens."""
    return -(-tokens // step) * step
