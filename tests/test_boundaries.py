"""Who may import whom, as DESIGN says; read from the code, and seen in a process of its own."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
OUTSIDE = {"os", "random", "socket", "subprocess", "threading", "time", "uuid", "httpx", "jsonschema", "opentelemetry"}
FORBIDDEN = {
    "contracts": OUTSIDE | {"workflows", "activities", "runtime", "worker", "examples", "tests"},
    "workflows": OUTSIDE | {"activities", "runtime", "worker", "examples", "tests"},
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


def test_workflow_code_reads_no_clock_and_prints_nothing() -> None:
    wrong = []
    for file in sorted((CHECKOUT / "workflows").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and (ast.unparse(node) in ("datetime.now", "datetime.utcnow")):
                wrong.append(f"{file.name}: {ast.unparse(node)}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "open"):
                wrong.append(f"{file.name}: {node.func.id}")
    assert wrong == []


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
