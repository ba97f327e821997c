"""docs/conformance.md: every test it names exists, and every item of the sections that are done has one row."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
TABLES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (CHECKOUT / "docs" / "conformance.md").read_text().splitlines()
    if line.startswith("|")
]
ROWS = [row for row in TABLES if row[0].isdecimal()]
# Those of no item, without the heads of the tables.
OTHER_ROWS = [row for row in TABLES if not row[0].isdecimal() and row[0] not in ("item", "what", "---")]
# Sections A to G, I, J and L, of K what concerns tools and models: without 54, 55, 114 and 159 to 162, which this
# version leaves out.
ITEMS = [
    *(item for item in range(1, 128) if item not in (54, 55, 114)),
    *(item for item in range(145, 174) if item not in range(159, 163)),
    *range(174, 186),
    *range(205, 225),
]


@cache
def names_in(file: str) -> frozenset[str]:
    path = CHECKOUT / file
    if not path.is_file():
        return frozenset()
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def test_every_item_has_one_row_in_order() -> None:
    assert [int(row[0]) for row in ROWS] == ITEMS


@pytest.mark.parametrize("row", [*ROWS, *OTHER_ROWS], ids=lambda row: row[0])
def test_every_row_is_whole_and_names_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 5
    assert all(row)
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", row[3])
    assert named
    assert [f"{file}::{test}" for file, test in named if test not in names_in(file)] == []


def test_every_row_says_what_was_broken() -> None:
    placeholder = re.compile(r"(pending|todo|tbd|none|n/a|not broken by)\b|[^a-z]*$", re.IGNORECASE)
    assert [row[0] for row in (*ROWS, *OTHER_ROWS) if placeholder.match(row[4])] == []
