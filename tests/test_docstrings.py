"""What `help()` tells of the names that tools and clients are written with: something, units and errors included."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.tooling import Tool, ToolError, tool
from contracts.agents import AgentSpec
from contracts.policies import CompensationRule, HeartbeatRule, OutputLimits, ResourceVersionRule, RetryRule
from contracts.runs import ToolResultRecord
from contracts.tools import ToolContract, ToolInvocation

CHECKOUT = Path(__file__).resolve().parents[1]
PUBLIC = [
    *sorted((CHECKOUT / "contracts").glob("*.py")),
    *sorted((CHECKOUT / "runtime").glob("*.py")),
    *(CHECKOUT / "activities" / f"{name}.py" for name in ("tooling", "tool_ends", "tool_provider")),
    *(CHECKOUT / "activities" / f"{name}.py" for name in ("schemas", "derivation", "arguments", "returned")),
    *(CHECKOUT / "activities" / f"{name}.py" for name in ("settling", "catalog", "delta_sinks", "deltas")),
    *(CHECKOUT / "activities" / f"{name}.py" for name in ("window", "reduction", "token_counts")),
    CHECKOUT / "worker.py",
]
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    for item in node.body:
        if isinstance(item, Definition) and not item.name.startswith("_"):
            yield f"{prefix}{item.name}", item
            if isinstance(item, ast.ClassDef):
                yield from definitions(item, f"{item.name}.")


def raised(function: ast.AST) -> set[str]:
    """What a function raises by name; what it catches itself and what nested functions raise is left out."""
    names: set[str] = set()
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.Try):
            names |= {name for part in (*node.handlers, *node.orelse, *node.finalbody) for name in raised(part)}
            continue
        if isinstance(node, Definition | ast.Lambda):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            names.add(node.exc.func.id)
        names |= raised(node)
    return names


@pytest.mark.parametrize("file", PUBLIC, ids=lambda file: str(file.relative_to(CHECKOUT)))
def test_every_public_name_says_what_it_is_and_what_it_raises(file: Path) -> None:
    module = ast.parse(file.read_text())
    assert ast.get_docstring(module)
    silent = []
    for name, definition in definitions(module):
        told = ast.get_docstring(definition) or ""
        if len(told.split()) < 3:
            silent.append(f"{name} has no docstring")
        if not isinstance(definition, ast.ClassDef):
            # An assertion is a bug of ours, and what Temporal needs to be told is told by the error's type.
            unsaid = raised(definition) - {"AssertionError", "ApplicationError"}
            silent += [f"{name} raises {error} and does not say so" for error in unsaid if error not in told]
    assert silent == []


@pytest.mark.parametrize(
    ("public", "words"),
    [
        (ToolContract, "seconds"),
        (RetryRule, "seconds"),
        (HeartbeatRule, "seconds"),
        (CompensationRule, "seconds"),
        (ToolError, "seconds"),
        (tool, "seconds"),
        (tool, "ToolRefused"),
        (Tool.undo, "UndoOutcome"),
        (Tool.reconcile, "Reconciliation"),
        (Tool.prepare_result, "None, and an"),
        (OutputLimits, "bytes of UTF-8"),
        (ResourceVersionRule, "JSON Pointer"),
        (ToolResultRecord, "milliseconds"),
        (AgentSpec, "MaxToolCallsExceeded"),
        (ToolInvocation, "UTC"),
        (ToolInvocation.setting, "KeyError"),
        (ToolInvocation.completion_token, "RuntimeError"),
        (ToolInvocation.still_mine, "timed out"),
        (ToolInvocation.heartbeat, "from 0 to 1"),
    ],
)
def test_units_errors_and_what_to_return_are_said(public: object, words: str) -> None:
    assert words in " ".join((public.__doc__ or "").split())
