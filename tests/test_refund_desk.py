"""The example's shop on a real SQLite file: money moves once."""

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from activities.tooling import ToolError
from contracts.outcomes import ErrorCategory
from examples.refund_desk import shop
from tests.support.worker_process import FORKED


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "shop" / "refund_desk.db"
    monkeypatch.setenv("REFUND_DESK_DATABASE", str(path))
    return path


def use(database: Path) -> None:
    os.environ["REFUND_DESK_DATABASE"] = str(database)


@pytest.fixture(params=["threads", "processes"])
def crowd(request: pytest.FixtureRequest, database: Path) -> Iterator[Executor]:
    if request.param == "threads":
        with ThreadPoolExecutor(16) as threads:
            yield threads
    else:
        with ProcessPoolExecutor(4, FORKED, initializer=use, initargs=(database,)) as processes:
            yield processes


@contextmanager
def refused(category: ErrorCategory, words: str) -> Iterator[None]:
    """The shop tells the agent no: this category, these words."""
    with pytest.raises(ToolError, match=words) as raised:
        yield
    assert raised.value.category == category


def refusal(key: str) -> str:
    """What asking for a refund with this key is answered, in words; nothing when money moved."""
    try:
        shop.refund(key, "ord_1042", 8990, "broken")
    except ToolError as error:
        return f"{error.category}: {error}"
    return ""


def test_an_order_is_what_the_csv_says() -> None:
    order = shop.order("ord_1042")
    assert (order.total_cents, order.currency, order.condition) == (8990, "EUR", "arrived broken")


def test_an_unknown_order_is_refused_everywhere() -> None:
    for call in (
        lambda: shop.order("ord_0"),
        lambda: shop.verdict("ord_0"),
        lambda: shop.refund("key", "ord_0", 1, "reason"),
        lambda: shop.notify("key", "ord_0", "text"),
    ):
        with refused("not_found", "there is no order ord_0"):
            call()
    assert (shop.payments(), shop.outbox()) == ([], [])


@pytest.mark.parametrize(
    ("order_id", "allowed", "reason"),
    [
        ("ord_1042", True, "reported 9 days after delivery"),
        ("ord_1044", False, "reported 57 days after delivery"),
        ("ord_1045", False, "at most 50000 cents"),
        ("ord_1046", False, "already refunded"),
        ("ord_1048", True, "reported 30 days after delivery"),
        ("ord_1049", False, "reported 31 days after delivery"),
    ],
)
def test_the_policy_follows_from_the_order_alone(order_id: str, allowed: bool, reason: str) -> None:
    verdict = shop.verdict(order_id)
    assert verdict.allowed is allowed
    assert reason in verdict.reason
    assert verdict.max_amount_cents == (shop.order(order_id).total_cents if allowed else 0)


def test_money_moves_once_for_one_key(crowd: Executor) -> None:
    asked = [crowd.submit(shop.refund, "key", "ord_1042", 8990, "broken") for _ in range(40)]
    answers = [payment.result() for payment in asked]
    assert len(shop.payments()) == 1
    assert answers == shop.payments() * 40


def test_of_many_keys_at_once_one_refunds_the_order(crowd: Executor) -> None:
    answers = list(crowd.map(refusal, [f"key {number}" for number in range(40)]))
    assert sorted(answers) == ["", *["conflict: order ord_1042 is already refunded"] * 39]
    assert len(shop.payments()) == 1


def test_a_second_key_for_a_refunded_order_is_a_conflict() -> None:
    shop.refund("first", "ord_1042", 100, "scratched")
    with refused("conflict", "already refunded"):
        shop.refund("second", "ord_1042", 100, "scratched")
    with refused("conflict", "already refunded"):
        shop.refund("third", "ord_1046", 100, "refunded before all this")
    assert [payment.key for payment in shop.payments()] == ["first"]


def test_a_key_cannot_be_used_for_another_refund() -> None:
    shop.refund("key", "ord_1042", 100, "scratched")
    with refused("conflict", "this key refunded 100 cents of order ord_1042"):
        shop.refund("key", "ord_1042", 200, "scratched")
    with refused("conflict", "this key refunded 100 cents of order ord_1042"):
        shop.refund("key", "ord_1043", 100, "cracked")
    assert shop.order("ord_1043").state == "delivered"


@pytest.mark.parametrize("amount", [-1, 0, 8991])
def test_an_amount_outside_the_order_moves_nothing(amount: int) -> None:
    with refused("invalid_input", "the order's total of 8990"):
        shop.refund("key", "ord_1042", amount, "broken")
    assert shop.payments() == []
    assert shop.order("ord_1042").state == "delivered"


def test_a_customer_is_told_once_for_one_key(crowd: Executor) -> None:
    sent = [crowd.submit(shop.notify, "key", "ord_1042", "Sorry.") for _ in range(20)]
    assert {mail.result().recipient for mail in sent} == {"ada@example.com"}
    assert len(shop.outbox()) == 1


def test_reset_forgets_payments_and_messages() -> None:
    shop.refund("key", "ord_1042", 8990, "broken")
    shop.notify("key", "ord_1042", "Sorry.")
    shop.reset()
    assert (shop.payments(), shop.outbox()) == ([], [])
    assert shop.order("ord_1042").state == "delivered"


def test_workers_that_start_at_once_find_one_whole_database(database: Path, crowd: Executor) -> None:
    orders = [crowd.submit(shop.order, "ord_1042") for _ in range(40)]
    assert {order.result().total_cents for order in orders} == {8990}
    assert [path.name for path in database.parent.iterdir() if path.suffix not in (".db-wal", ".db-shm")] == [
        database.name
    ]
