"""The shop behind the refund desk: real money in a real SQLite file, so that what an agent did can be counted.

It stands for the systems your own tools would call, and does what a payment API with idempotency keys does. What it
refuses, it refuses in words for the agent: `ToolError`, with "not_found" for an order that does not exist.
"""

import csv
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import date, timedelta
from pathlib import Path

from pydantic import BaseModel

from activities.tooling import ToolError

REFUND_DAYS = 30
REFUND_LIMIT_CENTS = 50_000

_ORDERS = Path(__file__).with_name("orders.csv")
_SCHEMA = """
    CREATE TABLE orders (
        order_id TEXT PRIMARY KEY, customer TEXT NOT NULL, item TEXT NOT NULL, total_cents INTEGER NOT NULL,
        currency TEXT NOT NULL, delivered_on TEXT NOT NULL, reported_on TEXT NOT NULL, condition TEXT NOT NULL,
        state TEXT NOT NULL
    );
    CREATE TABLE payments (
        key TEXT NOT NULL UNIQUE, order_id TEXT NOT NULL REFERENCES orders, amount_cents INTEGER NOT NULL,
        reason TEXT NOT NULL
    );
    CREATE TABLE outbox (
        key TEXT NOT NULL UNIQUE, order_id TEXT NOT NULL REFERENCES orders, recipient TEXT NOT NULL,
        message TEXT NOT NULL
    );
"""


class Order(BaseModel):
    """An order. Amounts are cents; `reported_on` is when the customer reported the problem."""

    order_id: str
    customer: str
    item: str
    total_cents: int
    currency: str
    delivered_on: date
    reported_on: date
    condition: str
    state: str


class Verdict(BaseModel):
    """Whether the refund policy allows a refund, of at most how many cents, and why."""

    allowed: bool
    max_amount_cents: int
    reason: str


class Payment(BaseModel):
    """Money that went back to a customer, in cents."""

    key: str
    order_id: str
    amount_cents: int
    reason: str


class Mail(BaseModel):
    """A message to a customer."""

    key: str
    order_id: str
    recipient: str
    message: str


def reset() -> None:
    """Put the shop back to what orders.csv says: no payments, an empty outbox."""
    with _transaction() as db:
        for table in ("outbox", "payments", "orders"):
            db.execute(f"DELETE FROM {table}")
        _load_orders(db)


def order(order_id: str) -> Order:
    """The order with this id; its state says "refunded" once money went back."""
    with _transaction() as db:
        return _order(db, order_id)


def verdict(order_id: str) -> Verdict:
    """What the refund policy says. It counts days up to the customer's report, so the answer never changes with the
    clock."""
    found = order(order_id)
    days = (found.reported_on - found.delivered_on) // timedelta(days=1)
    if found.state == "refunded":
        return Verdict(allowed=False, max_amount_cents=0, reason="already refunded")
    if days > REFUND_DAYS:
        reason = f"reported {days} days after delivery; refunds end after {REFUND_DAYS}"
        return Verdict(allowed=False, max_amount_cents=0, reason=reason)
    if found.total_cents > REFUND_LIMIT_CENTS:
        reason = f"the refund desk gives back at most {REFUND_LIMIT_CENTS} cents an order"
        return Verdict(allowed=False, max_amount_cents=0, reason=reason)
    return Verdict(allowed=True, max_amount_cents=found.total_cents, reason=f"reported {days} days after delivery")


def refund(key: str, order_id: str, amount_cents: int, reason: str) -> Payment:
    """Send money back. However often it is asked with one key, also at once, money moves once.

    Raises `ToolError`, and nothing has moved then: "invalid_input" for an amount that this order cannot give back,
    "conflict" for an order that another request refunded and for a key that belongs to another refund.
    """
    with _transaction() as db:
        paid = _order(db, order_id)
        if not 0 < amount_cents <= paid.total_cents:
            problem = f"{amount_cents} cents is not between 1 and the order's total of {paid.total_cents}"
            raise ToolError("invalid_input", problem)
        known = db.execute("SELECT 1 FROM payments WHERE key = ?", (key,)).fetchone()
        if paid.state == "refunded" and known is None:
            raise ToolError("conflict", f"order {order_id} is already refunded")
        db.execute(
            "INSERT INTO payments (key, order_id, amount_cents, reason) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (key) DO NOTHING",
            (key, order_id, amount_cents, reason),
        )
        payment = Payment(**db.execute("SELECT * FROM payments WHERE key = ?", (key,)).fetchone())
        if (payment.order_id, payment.amount_cents) != (order_id, amount_cents):
            problem = f"this key refunded {payment.amount_cents} cents of order {payment.order_id}"
            raise ToolError("conflict", problem)
        db.execute("UPDATE orders SET state = 'refunded' WHERE order_id = ?", (order_id,))
        return payment


def notify(key: str, order_id: str, message: str) -> Mail:
    """Write to an order's customer, once for each key."""
    with _transaction() as db:
        db.execute(
            "INSERT INTO outbox (key, order_id, recipient, message) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
            (key, order_id, _order(db, order_id).customer, message),
        )
        return Mail(**db.execute("SELECT * FROM outbox WHERE key = ?", (key,)).fetchone())


def payments() -> list[Payment]:
    """All money that went back, oldest first."""
    with _transaction() as db:
        return [Payment(**row) for row in db.execute("SELECT * FROM payments ORDER BY rowid")]


def outbox() -> list[Mail]:
    """All messages to customers, oldest first."""
    with _transaction() as db:
        return [Mail(**row) for row in db.execute("SELECT * FROM outbox ORDER BY rowid")]


def _order(db: sqlite3.Connection, order_id: str) -> Order:
    row = db.execute("SELECT * FROM orders WHERE order_id = ?", (order_id,)).fetchone()
    if row is None:
        raise ToolError("not_found", f"there is no order {order_id}")
    return Order(**row)


@contextmanager
def _transaction() -> Iterator[sqlite3.Connection]:
    """One write transaction on a connection of its own: what it reads stays true until it commits."""
    path = Path(os.environ.get("REFUND_DESK_DATABASE") or ".steadyhand/refund_desk.db")
    if not path.exists():
        _create(path)
    with closing(_connect(path)) as db:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")


def _create(path: Path) -> None:
    """Make the database aside and link it into place: of several workers that start at once, one wins, and nobody ever
    opens half a database."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="shop-") as directory:
        draft = Path(directory, "draft.db")
        with closing(_connect(draft)) as db:
            db.execute("PRAGMA journal_mode = wal")
            db.executescript(_SCHEMA)
            _load_orders(db)
        with suppress(FileExistsError):
            os.link(draft, path)


def _connect(path: Path) -> sqlite3.Connection:
    # The timeout (seconds) is SQLite's busy timeout; isolation_level None leaves transactions to us.
    db = sqlite3.connect(path, timeout=10, isolation_level=None)
    db.row_factory = _as_dict
    return db


def _as_dict(cursor: sqlite3.Cursor, row: tuple[object, ...]) -> dict[str, object]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def _load_orders(db: sqlite3.Connection) -> None:
    with _ORDERS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            columns = ", ".join(row)
            db.execute(f"INSERT INTO orders ({columns}) VALUES ({', '.join('?' * len(row))})", list(row.values()))
