"""The rules of the test server itself: each refuses what it is there for, and nothing else."""

import pytest
from pydantic import JsonValue

from tests.providers.asking_messages import text, thinking, tool_use
from tests.providers.legality_messages import WhatItGave, request_illegality

SEARCH: JsonValue = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
FOUND: JsonValue = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}


def user(*blocks: JsonValue) -> JsonValue:
    return {"role": "user", "content": list(blocks) or "Hello"}


def said(*blocks: JsonValue) -> JsonValue:
    return {"role": "assistant", "content": list(blocks)}


def result(call: str, **more: JsonValue) -> JsonValue:
    return {"type": "tool_result", "tool_use_id": call, **more}


NOOP: JsonValue = {"name": "noop", "input_schema": {"type": "object"}}


def request(*messages: JsonValue, **more: JsonValue) -> dict[str, JsonValue]:
    return {"model": "m", "max_tokens": 2_000, "tools": [NOOP], "messages": list(messages), **more}


THINKS: JsonValue = {"type": "enabled", "budget_tokens": 1_024}


@pytest.mark.parametrize(
    "legal",
    [
        request(user()),
        request(user(), user(), said(text("Hi")), said(text("there")), user()),
        request(user(), said(tool_use("a"), tool_use("b")), user(result("b"), result("a", content="x"), text("More?"))),
        request(user(), said(SEARCH)),
        request(user(), said(SEARCH), said(FOUND, text("Hi")), user()),
        request(user(), said(thinking("", "s"), tool_use("a")), user(result("a")), thinking=THINKS),
        request(user(), said(tool_use("a")), user(result("a")), thinking={"type": "adaptive"}),
    ],
)
def test_legal_requests_are_accepted(legal: dict[str, JsonValue]) -> None:
    assert request_illegality(legal) is None


@pytest.mark.parametrize(
    ("illegal", "reason"),
    [
        (request(user(), said(tool_use("a")), user(result("a")), tools=[]), "no tools are defined"),
        (request(), "messages is missing"),
        (request(said(text("Hi")), user()), "first message"),
        (request(user(), said(text("Hi"))), "prefill"),
        (request(user(text(" "))), "non-whitespace"),
        (request({"role": "user", "content": ""}), "non-whitespace"),
        (request({"role": "user", "content": []}), "is empty"),
        (request({"role": "system", "content": "x"}), "no legal role"),
        (request(user(), said(tool_use("a")), user()), "open are"),
        (request(user(), said(tool_use("a"))), "is not answered"),
        (request(user(), said(tool_use("a")), user(result("a"), result("a"))), "open are"),
        (request(user(result("a"))), "open are"),
        (request(user(), said(tool_use("a")), user(text("x"), result("a"))), "must come first"),
        (request(user(), said(tool_use("a"), tool_use("a")), user(result("a"))), "unique"),
        (request(user(), said(tool_use("a:1")), user(result("a:1"))), "the id"),
        (request(user(), said(tool_use("a", "no op")), user(result("a"))), "the name"),
        (request(user(), said(tool_use("a") | {"input": "{}"}), user(result("a"))), "must be an object"),  # type: ignore[operator]  # an object
        (request(user(), said(tool_use("a")), user(result("a", content=""))), "blank text"),
        (request(user(), said(thinking("t", "")), user()), "without a signature"),
        (request(user(), said(SEARCH, text("x ")), user()), "have no result"),
        (request(user(), said(FOUND), user()), "never called"),
        (request(user(), said(SEARCH, text("x "))), "trailing whitespace"),
        (request(user(), said(tool_use("a")), user(result("a")), thinking=THINKS), "must start with a thinking"),
        (request(user(), thinking={"type": "enabled", "budget_tokens": 2_000}), "below max_tokens"),
        (request(user(), thinking=THINKS, temperature=0.5), "temperature"),
        (request(user(), thinking=THINKS, tools=[{"name": "x", "type": "y_1"}], tool_choice={"type": "any"}), "forces"),
        (request(user(), temperature=1.2), "from 0 to 1"),
        (request(user(), seed=1), "extra inputs"),
        (request(user(), system=" "), "system"),
        (request(user(), tools=[{"name": "x y", "input_schema": {"type": "object"}}]), "a tool is named"),
        (request(user(), tools=[{"name": "x", "input_schema": {"anyOf": []}}]), "plain object"),
        (request(user(), tools=[], tool_choice={"type": "none"}), "without tools"),
        (request(user(*(text(str(n), cache_control={"type": "ephemeral"}) for n in range(5)))), "cache breakpoints"),
        (request(user(), output_config={"format": {"schema": {"type": "object"}}}), "not closed"),
        ({"model": "m", "messages": [user()]}, "max_tokens"),
    ],
)
def test_illegal_requests_are_told_apart(illegal: dict[str, JsonValue], reason: str) -> None:
    assert reason in (request_illegality(illegal) or "")


@pytest.mark.parametrize(
    ("turn", "legal"),
    [
        ([thinking("t", "s"), tool_use("a")], True),
        ([text("x"), thinking("t", "s"), text("y"), tool_use("a")], True),
        ([thinking("T", "s"), tool_use("a")], False),
        ([tool_use("a")], False),
        ([tool_use("a"), thinking("t", "s")], False),
    ],
)
def test_a_server_knows_the_blocks_that_it_gave(turn: list[JsonValue], legal: bool) -> None:
    memory = WhatItGave([[thinking("t", "s"), tool_use("a")]])
    assert (memory.request_illegality(request(user(), said(*turn), user(result("a")))) is None) == legal
