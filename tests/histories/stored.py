"""The histories in this directory, read back."""

import hashlib
from pathlib import Path

from temporalio.client import WorkflowHistory

HISTORIES = Path(__file__).parent
FILES = tuple(sorted(HISTORIES.glob("*/*.json")))


def load(file: Path) -> WorkflowHistory:
    """The history in a file, under the workflow id it was written with: approval ids and keys are made from it."""
    events = WorkflowHistory.from_json("", file.read_text()).events
    return WorkflowHistory(events[0].workflow_execution_started_event_attributes.workflow_id, events)


def scenario_of(file: Path) -> str:
    """The name of the scenario that a file was exported from: `<scenario>.json`, or `<scenario>.<execution>.json`."""
    return file.name.split(".")[0]


def digest(directory: Path) -> str:
    """SHA-256, in hex, over the names and contents of all files with a label."""
    sums = (f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in sorted(directory.glob("*.json")))
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()
