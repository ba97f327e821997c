"""An agent whose tools commit to a real SQLite table, and die right after it when they are told to.

PAYMENTS_DATABASE names the file. A row in `kills` makes the next matching attempt end its own process by SIGKILL after
its effect is committed and before its result is recorded: the moment that no program can handle by itself.
"""

import os
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from activities.tooling import tool
from contracts.agents import AgentSpec
from contracts.policies import RetryRule
from contracts.tools import ToolInvocation

SCHEMA = """
CREATE TABLE IF NOT EXISTS payments (key TEXT PRIMARY KEY, amount INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS calls (tool TEXT NOT NULL, key TEXT NOT NULL, attempt INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS kills (tool TEXT NOT NULL, attempt INTEGER NOT NULL);
"""


def connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.executescript(SCHEMA)
    return connection


def _pay(name: str, amount: int, invocation: ToolInvocation) -> None:
    with closing(connect(os.environ["PAYMENTS_DATABASE"])) as database:
        database.execute("INSERT INTO calls VALUES (?, ?, ?)", (name, invocation.idempotency_key, invocation.attempt))
        database.execute(
            "INSERT INTO payments VALUES (?, ?) ON CONFLICT (key) DO NOTHING", (invocation.idempotency_key, amount)
        )
        dies = database.execute(
            "SELECT 1 FROM kills WHERE tool = ? AND attempt = ?", (name, invocation.attempt)
        ).fetchone()
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)


@tool(side_effect="write", idempotency="idempotent_with_key", approval="always", lost_after=2)
def refund(amount: int, invocation: ToolInvocation) -> str:
    """Pay money back, once for each key."""
    _pay("refund", amount, invocation)
    return f"refunded {amount}"


@tool(side_effect="write", lost_after=2)
def wire(amount: int, invocation: ToolInvocation) -> str:
    """Send money by a bank that knows no keys."""
    _pay("wire", amount, invocation)
    return f"wired {amount}"


@tool(side_effect="read", timeout=0.2, retry=RetryRule(max_attempts=1))
def never_return() -> None:
    """Block its thread for ever."""
    threading.Event().wait()


HERE = Path(__file__).parent.relative_to(Path(__file__).parents[2])

refunder = AgentSpec(name="refunder", instructions="Refund.", model=f"scripted:{HERE}/refunder.json", tools=(refund,))
stuck = AgentSpec(name="stuck", instructions="Stick.", model=f"scripted:{HERE}/stuck.json", tools=(never_return,))
wirer = AgentSpec(name="wirer", instructions="Wire.", model=f"scripted:{HERE}/wirer.json", tools=(wire,))
