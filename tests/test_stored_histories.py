"""What earlier versions of the workflow wrote is replayed by today's: a run may wait for weeks while versions change.

A stored history is never changed. Where one does not replay, the workflow is wrong, not the history.
"""

import base64
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import JsonValue
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from contracts.agents import AgentSpec
from runtime.converter import data_converter
from runtime.serving import WORKFLOWS, sandboxed_runner
from tests.histories.export import CHAINS, SCENARIOS
from tests.histories.stored import FILES, HISTORIES, digest, load, scenario_of
from tests.support.tool_worker import texts_in
from workflows.carry import Carry

# Over all files with a label. A new label brings a new line; a line that is here never changes.
DIGESTS = {
    "2026-11-30": "37a63593fbbca74cd28170d2cfa5953c22e5928bb7f99c08d751a2171d2e5d1b",
    "2026-12-01": "6efc28269b0ba19c1662fa93a386adc6b493a74ee90a2d278696eda503352741",
}
# How a process and its machine are named, and where files are on one.
SOMEBODYS = re.compile(r"\d@\S|127\.0\.0\.1|localhost|site-packages|(?<![\w.])/(tmp|work|home|root|usr|opt|var|Users)/")
CLOSED = "WORKFLOW_EXECUTION_(COMPLETED|FAILED|CANCELED|CONTINUED_AS_NEW)"


def name_of(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


async def replay(history: WorkflowHistory) -> None:
    replayer = Replayer(workflows=WORKFLOWS, workflow_runner=sandboxed_runner(), data_converter=data_converter)
    await replayer.replay_workflow(history)


@pytest.mark.parametrize("file", FILES, ids=name_of)
async def test_todays_workflow_replays_what_is_stored(file: Path) -> None:
    await replay(load(file))


@pytest.mark.parametrize("play", [*SCENARIOS, *CHAINS], ids=lambda play: play.__name__)
def test_every_scenario_is_stored_open_where_its_name_says_so(play: Callable[..., object]) -> None:
    stored = [file for file in FILES if scenario_of(file) == play.__name__]
    assert stored
    latest = {file.parent: load(file) for file in stored}.values()
    ends = {re.search(CLOSED, history.to_json()) is not None for history in latest}
    assert ends == {not play.__name__.startswith("open_")}
    if play in CHAINS:
        assert len(stored) > len(latest)


def test_what_is_stored_is_never_changed() -> None:
    labels = sorted(path.name for path in HISTORIES.iterdir() if path.is_dir() and path.name != "__pycache__")
    assert labels
    assert {label: digest(HISTORIES / label) for label in labels} == DIGESTS


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_nothing_stored_names_a_process_a_machine_or_a_path_on_one(file: Path) -> None:
    history = load(file)
    found = {text for event in history.events for text in texts_in(event) if SOMEBODYS.search(text)}
    assert found == set()
    # texts_in reads all but what a run packs for its next execution.
    if (carried := carried_by(history)) is not None:
        assert SOMEBODYS.search(json.dumps(carried)) is None


# -- R-x10: a version whose state has a new required field is deployed while a run waits for approval


def carried_by(history: WorkflowHistory) -> dict[str, JsonValue] | None:
    """The state that a run took along into this execution."""
    (payload,) = history.events[0].workflow_execution_started_event_attributes.input.payloads
    packed = json.loads(payload.data).get("carried")
    carried: dict[str, JsonValue] | None = packed and json.loads(zlib.decompress(base64.b64decode(packed)))
    return carried


def required(record: type[AgentSpec] | type[Carry]) -> list[str]:
    return [name for name, field in record.model_fields.items() if field.is_required()]


def open_approval(scenario: str) -> WorkflowHistory:
    """The latest execution of a run that waits, as the first version left it."""
    return load([file for file in FILES if file.parent.name == min(DIGESTS) and scenario_of(file) == scenario][-1])


@pytest.mark.parametrize("field", required(Carry))
async def test_a_waiting_run_that_did_not_carry_a_field_that_is_required_now_is_noticed(field: str) -> None:
    history = open_approval("open_approval_continued")
    carried = carried_by(history)
    assert carried is not None
    assert carried["pending_approvals"]
    del carried[field]
    packed = base64.b64encode(zlib.compress(json.dumps(carried).encode())).decode()
    (payload,) = history.events[0].workflow_execution_started_event_attributes.input.payloads
    payload.data = json.dumps({**json.loads(payload.data), "carried": packed}).encode()
    with pytest.raises(NondeterminismError):
        await replay(history)


@pytest.mark.parametrize("field", required(AgentSpec))
async def test_a_waiting_run_whose_agent_lacks_a_field_that_is_required_now_is_noticed(field: str) -> None:
    history = open_approval("open_approval")
    results = (event.activity_task_completed_event_attributes.result.payloads for event in history.events)
    (payload,) = next(payloads for payloads in results if payloads)
    agent = json.loads(payload.data)
    del agent[field]
    payload.data = json.dumps(agent).encode()
    with pytest.raises(NondeterminismError):
        await replay(history)
