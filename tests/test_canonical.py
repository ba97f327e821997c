"""Canonical JSON, digests and the text that may cross a boundary. Pinned: other people's code computes them too."""

import json
from pathlib import Path

import pytest
from pydantic import JsonValue

from contracts.approvals import action_digest
from contracts.canonical import canonical_json
from contracts.context import secret_keys
from contracts.text import cut, encodable, legal_json

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "ä\n"]}, '{"a":[true,null,"ä\\n"],"b":1}'),
        ({"\ue000": 1, "\U0001f600": 2}, '{"\ue000":1,"\U0001f600":2}'),
        (1.0, "1"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (-2.5, "-2.5"),
        (100.0, "100"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.5e-7, "1.5e-7"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (2**53 + 1, "9007199254740993"),
        (10**30, "1" + "0" * 30),
    ],
)
def test_a_value_has_one_text(value: JsonValue, text: str) -> None:
    assert canonical_json(value) == text
    assert json.loads(text) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_what_json_does_not_have_is_refused(value: JsonValue) -> None:
    with pytest.raises(ValueError, match="NaN"):
        canonical_json(value)


def test_the_action_digest_is_what_the_protocol_says() -> None:
    digest = action_digest("refund_order", "1", {"order_id": "ord_1042", "amount_cents": 1800})
    # printf '%s' '{"arguments":{"amount_cents":1800,"order_id":"ord_1042"},"tool":"refund_order","version":"1"}' |
    #   sha256sum
    assert digest == "26b2a4104c1a339d640ab22dfac61a9de4b1032eb4b49aa80af676b4bb103291"


@pytest.mark.parametrize("case", json.loads((CASES / "vectors.json").read_text())["sensitive_keys"])
def test_keys_that_look_like_secrets_are_found(case: dict[str, object]) -> None:
    key = str(case["key"])
    assert secret_keys([key]) == ([key] if case["sensitive"] else [])


def test_text_is_cut_at_a_character_and_says_how_much_there_was() -> None:
    assert cut("ä" * 10, 20) == "ä" * 10
    text = cut("ä" * 100, 60)
    assert len(text.encode()) <= 60
    assert text.endswith(" [cut: this is the beginning of 200 bytes]")
    assert text.startswith("äää")


def test_values_are_made_legal() -> None:
    assert encodable("a\ud83d\ude00b\ud83d") == "a\ufffd\ufffdb\ufffd"
    assert legal_json({"a\ud800": [float("nan"), float("inf"), -float("inf"), 1]}) == {
        "a\ufffd": ["NaN", "Infinity", "-Infinity", 1]
    }
