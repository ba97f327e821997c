"""Who may import whom, as DESIGN says; read from the code, and seen in a process of its own."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
FORBIDDEN = {
    "contracts": {"workflows", "activities", "runtime", "worker", "examples", "tests"},
    "workflows": {"activities", "runtime", "worker", "examples", "tests"},
    "activities": {"os", "workflows", "runtime", "worker", "examples", "tests"},
    "runtime": {"worker", "examples", "tests"},
    "examples": {"worker", "tests"},
}


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    files = sorted((CHECKOUT / package).rglob("*.py"))
    assert files
    wrong = [
        f"{file.relative_to(CHECKOUT)} imports {name}"
        for file in files
        for name in imports(file)
        if name.split(".")[0] in FORBIDDEN[package]
    ]
    assert wrong == []


# What workflow code and the data it works on may use: none of it has a clock, chance or a world outside, but for what
# UNSAFE names. The sandbox imports most of our modules once for all runs, and so looks at none of their calls.
SAFE = {
    *("abc", "asyncio", "base64", "bisect", "collections", "contextlib", "dataclasses", "datetime", "decimal", "enum"),
    *("functools", "hashlib", "itertools", "json", "math", "operator", "re", "types", "typing", "unicodedata", "zlib"),
    *("pydantic", "pydantic_core", "temporalio", "contracts", "workflows"),
}
UNSAFE_ATTRIBUTES = {
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today", "datetime.datetime.now"),
    # In an order of their own, in another thread, or after another loop's time.
    *("asyncio.wait", "asyncio.as_completed", "asyncio.to_thread", "asyncio.get_event_loop", "asyncio.run"),
    *("asyncio.get_running_loop", "asyncio.create_subprocess_exec", "asyncio.open_connection"),
}
UNSAFE_NAMES = {"open", "print", "input", "eval", "exec", "hash", "id", "globals", "__import__", "breakpoint"}
MUTABLE = {"list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict", "count", "cycle"}
PURE = sorted(file for package in ("contracts", "workflows") for file in (CHECKOUT / package).rglob("*.py"))


@pytest.mark.parametrize("file", PURE, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_workflow_code_reaches_for_nothing_outside(file: Path) -> None:
    wrong = [name for name in imports(file) if name.split(".")[0] not in SAFE]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in UNSAFE_ATTRIBUTES:
            wrong.append(ast.unparse(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in UNSAFE_NAMES:
            wrong.append(node.func.id)
    assert wrong == []


@pytest.mark.parametrize("file", PURE, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_no_run_can_leave_anything_behind_for_another(file: Path) -> None:
    """Nothing at the top of a module, or of a class, that could be changed; and nobody who changes it."""
    tree = ast.parse(file.read_text())
    values = [each.value for each in tree.body if isinstance(each, ast.Assign | ast.AnnAssign)]
    # Fields are annotated, and pydantic copies what is their default.
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    values += [each.value for top in classes for each in top.body if isinstance(each, ast.Assign)]
    wrong = [ast.unparse(value) for value in values if value is not None and is_mutable(value)]
    wrong += [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Global | ast.Nonlocal)]
    assert wrong == []


def is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).split(".")[-1] in MUTABLE
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def test_importing_the_workflow_leaves_the_world_outside() -> None:
    outside = ["httpx", "jsonschema", "opentelemetry"]
    program = f"import sys, workflows.agent_run; print([name for name in {outside} if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[]"


def test_the_story_of_a_run_fits_one_screen() -> None:
    tree = ast.parse((CHECKOUT / "workflows" / "agent_run.py").read_text())
    (run,) = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef) and node.name == "run"]
    assert run.end_lineno is not None
    assert run.end_lineno - run.lineno < 40


@pytest.mark.parametrize("package", ["contracts", "workflows", "activities", "runtime", "examples"])
def test_no_file_is_longer_than_three_hundred_lines(package: str) -> None:
    long = [file.name for file in (CHECKOUT / package).rglob("*.py") if len(file.read_text().splitlines()) > 300]
    assert long == []
