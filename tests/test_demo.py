"""The demo, as a reader runs it: a process of its own, with its own server, files and run."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from contracts.events import Event
from examples.refund_desk import shop
from examples.refund_desk.narration import event_line
from examples.refund_desk.watching import resolution_of
from runtime.dev_server import Ports, free_ports
from tests.support.demo_process import DEADLINE_SECONDS, Demo, Demos, Terminal
from tests.support.harness import CHECKOUT

CAN_BE_SEEN_AGAIN = "The server has stopped; `make worker` shows the run again at the same address."


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[Demos]:
    with closing(Demos(tmp_path)) as started:
        yield started


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with closing(Terminal()) as opened:
        yield opened


def assert_nothing_is_left(demo: Demo) -> None:
    deadline = time.monotonic() + 10
    while left := demo.members():
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.05)


def the_line_after(line: str, lines: list[str]) -> str:
    assert line in lines, "\n".join(lines)
    return lines[lines.index(line) + 1]


def test_each_demo_starts_afresh_and_does_what_was_decided(
    demos: Demos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a_worker = str(tmp_path / ".steadyhand" / "refund_desk.db")
    monkeypatch.setenv("REFUND_DESK_DATABASE", of_a_worker)
    paid = shop.refund("key", "ord_1042", 8990, "broken")
    for decision, last_line, effects in (
        ("approved", "RESULT status=completed rounds=4 tool_calls=4 refunds=1", (1, 1)),
        ("denied", "RESULT status=completed rounds=3 tool_calls=3 refunds=0", (0, 0)),
    ):
        demo = demos.start(DEMO_DECISION=decision, REFUND_DESK_DATABASE=of_a_worker)
        lines = demo.finish()
        assert (demo.process.returncode, lines[-2:]) == (0, [CAN_BE_SEEN_AGAIN, last_line]), "\n".join(lines)
        assert demo.counts() == effects
        assert_nothing_is_left(demo)
        assert f'"resolution": "{decision}"' in the_line_after("The same from any terminal:", lines)
        assert len([line for line in lines if line.endswith(f"refund_order: {decision} by demo")]) == 1
        assert not any(f"{decision} by demo, " in line for line in lines), "told once"
        assert not any("Traceback" in line or "WARN" in line for line in lines)
    assert shop.payments() == [paid], "the shop of a worker is not the demo's"


def test_a_demo_without_a_terminal_wants_the_decision(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "examples.refund_desk.demo"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "DEMO_DECISION": ""}
    ended = subprocess.run(program, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    assert ended.stderr.decode() == ("demo: there is no terminal to ask on: set DEMO_DECISION to approved or denied\n")
    assert (ended.returncode, ended.stdout) == (2, b"")


def test_a_demo_that_cannot_start_says_why(demos: Demos) -> None:
    undecided = demos.start(DEMO_DECISION="yes")
    without_provider = demos.start(DEMO_DECISION="denied", STEADYHAND_MODEL="acme:large")
    assert undecided.finish() == ["demo: DEMO_DECISION is 'yes': set it to approved or denied"]
    assert without_provider.finish() == [
        "demo: agent refund_desk: STEADYHAND_MODEL is 'acme:large': there is no such provider, only anthropic, "
        "llamacpp, ollama, openai, openai_responses, openrouter, scripted, vllm; for a server of your own set "
        "ACME_BASE_URL"
    ]
    assert (undecided.process.returncode, without_provider.process.returncode) == (2, 2)


def test_a_failed_run_is_told_with_its_type(demos: Demos) -> None:
    demo = demos.start(DEMO_DECISION="approved", STEADYHAND_MODEL="scripted:tests/apps/unfinished.json")
    lines = demo.finish()
    assert demo.process.returncode == 1
    assert any(line.startswith("The run failed: ModelBehaviour: ") for line in lines), "\n".join(lines)
    assert lines[-1] == "RESULT status=failed rounds=1 tool_calls=1 refunds=0"
    assert_nothing_is_left(demo)


def test_a_person_decides_on_the_terminal(demos: Demos, terminal: Terminal) -> None:
    demo = demos.start(terminal)
    terminal.wait_for("To approve from another terminal:\n")
    terminal.wait_for(r"\n\nApprove\? \[y/N\] ")
    terminal.type("maybe\n")
    terminal.wait_for(r"\nPlease answer y or n\. Approve\? \[y/N\] ")
    assert demo.counts() == (0, 0)
    terminal.type("y\n")
    terminal.wait_for("Press Enter")
    terminal.type("\n")
    terminal.wait_for("RESULT status=completed rounds=4 tool_calls=4 refunds=1\n")
    assert demo.process.wait(DEADLINE_SECONDS) == 0
    assert_nothing_is_left(demo)


@pytest.mark.parametrize(
    ("answer", "resolution"),
    [
        *[(yes, "approved") for yes in ("y", "Y\n", "yes", " YES \r\n")],
        *[(no, "denied") for no in ("n", "No\n", "", "\n")],
        *[(neither, None) for neither in ("maybe\n", "yn", "approve", "1", "\x1b[A\n")],
    ],
)
def test_only_yes_and_no_and_nothing_are_answers(answer: str, resolution: str | None) -> None:
    assert resolution_of(answer) == resolution


def test_the_printed_command_decides_on_whatever_port_the_server_found(
    demos: Demos, terminal: Terminal, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        demo = demos.start(terminal, Ports(taken, free_ports().ui))
        terminal.wait_for(f"port {taken} for Temporal is taken; starting elsewhere")
        command = terminal.wait_for(r"(?m)^  (\S*temporal workflow signal .*)$")[1]
    terminal.wait_for(r"Approve\? \[y/N\] ")
    subprocess.run(command, shell=True, cwd=tmp_path, check=True, capture_output=True, timeout=DEADLINE_SECONDS)
    terminal.wait_for("Decided elsewhere")
    terminal.wait_for("refund_order: approved by me")
    terminal.wait_for("Press Enter")
    terminal.type("\n")
    terminal.wait_for(r"The server has stopped\.\nRESULT status=completed rounds=4 tool_calls=4 refunds=1\n")
    assert demo.process.wait(DEADLINE_SECONDS) == 0


@pytest.mark.parametrize("moment", ["Temporal server at", "asking the model", r"Approve\? \[y/N\] "])
def test_ctrl_c_leaves_no_traceback_and_no_process(demos: Demos, terminal: Terminal, moment: str) -> None:
    demo = demos.start(terminal)
    terminal.wait_for(moment)
    os.killpg(demo.process.pid, signal.SIGINT)
    terminal.wait_for("demo: interrupted\n")
    assert demo.process.wait(DEADLINE_SECONDS) == 130
    assert "Traceback" not in terminal.seen
    assert_nothing_is_left(demo)


def test_a_demo_that_is_killed_takes_its_server_along(demos: Demos, terminal: Terminal) -> None:
    demo = demos.start(terminal)
    terminal.wait_for(r"Approve\? \[y/N\] ")
    assert len(demo.members()) > 1
    demo.process.kill()
    demo.process.wait(DEADLINE_SECONDS)
    assert_nothing_is_left(demo)


def test_one_is_no_plural() -> None:
    at = datetime(2026, 11, 2, 9, 30, tzinfo=UTC)
    asking = [Event(sequence=1, type="model_started", at=at, data={"messages": number}) for number in (1, 3)]
    assert [event_line(event).split("  ")[-1] for event in asking] == [
        "asking the model (1 message)",
        "asking the model (3 messages)",
    ]
    over = [Event(sequence=1, type="run_completed", at=at, data={"rounds": number}) for number in (0, 1)]
    assert [event_line(event).split("  ")[-1] for event in over] == [
        "run completed after 0 rounds",
        "run completed after 1 round",
    ]
