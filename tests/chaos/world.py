"""The world outside the runs, in one SQLite file: what was done there, and where somebody is to be killed.

A row in `kills` ends a process by SIGKILL when the program passes that point of that step: the process itself, or the
one whose id the row names. Rows are used up, so that two of them kill two attempts.
"""

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Point = Literal["scheduled", "streaming", "effect done", "before record", "undo begun", "undo done"]

ITSELF = 0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS effects (
    tool TEXT NOT NULL, run TEXT NOT NULL, step INTEGER NOT NULL, key TEXT NOT NULL, attempt INTEGER NOT NULL,
    undone INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX IF NOT EXISTS paid_once_a_key ON effects (key) WHERE tool = 'pay';
CREATE TABLE IF NOT EXISTS faults (step INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS kills (point TEXT NOT NULL, step INTEGER NOT NULL, victim INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS killed (victim INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class Effect:
    """One thing that was done and not undone."""

    tool: str
    step: int
    key: str


class World:
    """Opens the file for each question: whoever holds it may be killed at any moment."""

    def __init__(self, path: str) -> None:
        self.path = path

    def do(self, tool: str, run: str, step: int, key: str, attempt: int) -> None:
        """Have an effect. Payments are made once for each key; the other systems know no keys."""
        with self._opened() as database:
            database.execute(
                "INSERT INTO effects (tool, run, step, key, attempt) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (tool, run, step, key, attempt),
            )

    def undo(self, key: str, attempt: int) -> bool:
        """Take back what one attempt did. Whether there was anything."""
        with self._opened() as database:
            wanted = "UPDATE effects SET undone = 1 WHERE key = ? AND attempt = ? AND NOT undone"
            return database.execute(wanted, (key, attempt)).rowcount > 0

    def effects(self, run: str) -> list[Effect]:
        """What a run did and did not undo."""
        with self._opened() as database:
            rows = database.execute("SELECT tool, step, key FROM effects WHERE run = ? AND NOT undone", (run,))
            return [Effect(*row) for row in rows]

    def plan_fault(self, step: int) -> None:
        """Have the next attempt of this step fail half way."""
        with self._opened() as database:
            database.execute("INSERT INTO faults VALUES (?)", (step,))

    def faulty(self, step: int) -> bool:
        """Whether this attempt is to fail; asked once for each planned fault."""
        with self._opened() as database:
            first = "SELECT min(rowid) FROM faults WHERE step = ?"
            return database.execute(f"DELETE FROM faults WHERE rowid = ({first})", (step,)).rowcount > 0

    def plan_kill(self, point: Point, step: int, victim: int = ITSELF) -> None:
        """Have a process killed when the program gets there."""
        with self._opened() as database:
            database.execute("INSERT INTO kills VALUES (?, ?, ?)", (point, step, victim))

    def pass_point(self, point: Point, step: int) -> None:
        """Go on, or not."""
        with self._opened() as database:
            database.execute("BEGIN IMMEDIATE")
            row = database.execute(
                "SELECT rowid, victim FROM kills WHERE point = ? AND step = ? ORDER BY rowid", (point, step)
            ).fetchone()
            if row is not None:
                database.execute("DELETE FROM kills WHERE rowid = ?", (row[0],))
                database.execute("INSERT INTO killed VALUES (?)", (row[1],))
            database.execute("COMMIT")
        if row is not None:
            os.kill(row[1] or os.getpid(), signal.SIGKILL)

    def killed(self) -> int:
        """How many processes were killed by a planned kill."""
        with self._opened() as database:
            (count,) = database.execute("SELECT count(*) FROM killed").fetchone()
            return int(count)

    async def plans_are_done(self) -> bool:
        """Whether every planned kill was done."""
        with self._opened() as database:
            (left,) = database.execute("SELECT count(*) FROM kills").fetchone()
            return not left

    def forget_plans(self) -> None:
        """Let nobody be killed any more."""
        with self._opened() as database:
            database.execute("DELETE FROM kills")
            database.execute("DELETE FROM faults")

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=normal")
            connection.executescript(_SCHEMA)
            yield connection
        finally:
            connection.close()
