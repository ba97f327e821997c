"""The demo, as a reader runs it: a process of its own, with its own server, files and run."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
DEADLINE_SECONDS = 90.0


class Demo:
    """A demo in a directory of its own, as the leader of its own session."""

    def __init__(self, directory: Path, terminal: int | None = None, **variables: str) -> None:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("STEADYHAND_", "OPENAI_"))
        }
        self.directory = directory
        self.process = subprocess.Popen(
            [sys.executable, "-m", "examples.refund_desk.demo"],
            cwd=directory,
            env={**inherited, "PYTHONPATH": str(CHECKOUT), **variables},
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=subprocess.PIPE if terminal is None else terminal,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )

    def finish(self) -> list[str]:
        """The lines it printed until its end."""
        output, _ = self.process.communicate(timeout=DEADLINE_SECONDS)
        return output.splitlines()

    def counts(self) -> tuple[int, int]:
        """Payments and messages in the shop."""
        with closing(connect(self.directory / ".steadyhand" / "refund_desk.db")) as db:
            (payments,), (mails,) = (
                db.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("payments", "outbox")
            )
            return payments, mails

    def members(self) -> list[int]:
        """Live processes of its session: itself, its server, and what either of them started."""
        listed = subprocess.run(["ps", "-e", "-o", "sid=,pid=,stat="], capture_output=True, text=True, check=True)
        rows = [line.split() for line in listed.stdout.splitlines()]
        return [int(pid) for session, pid, state in rows if int(session) == self.process.pid and state[0] != "Z"]


class Terminal:
    """The other end of a terminal that a demo runs on."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self.seen = ""

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read until this appears. Fails after DEADLINE_SECONDS."""
        os.set_blocking(self._ours, False)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (found := re.search(pattern, self.seen)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.seen}"
            try:
                self.seen += os.read(self._ours, 65_536).decode().replace("\r\n", "\n")
            except BlockingIOError:
                time.sleep(0.02)
        return found

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def close(self) -> None:
        os.close(self._ours)
        os.close(self.theirs)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with closing(Terminal()) as opened:
        yield opened


def assert_nothing_is_left(demo: Demo) -> None:
    deadline = time.monotonic() + 10
    while left := demo.members():
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("decision", "last_line", "effects"),
    [
        ("approved", "RESULT status=completed rounds=4 tool_calls=4 refunds=1", (1, 1)),
        ("denied", "RESULT status=completed rounds=3 tool_calls=3 refunds=0", (0, 0)),
    ],
)
def test_the_demo_does_what_was_decided(
    tmp_path: Path, decision: str, last_line: str, effects: tuple[int, int]
) -> None:
    demo = Demo(tmp_path, DEMO_DECISION=decision)
    lines = demo.finish()
    assert (demo.process.returncode, lines[-1]) == (0, last_line), "\n".join(lines)
    assert demo.counts() == effects
    assert_nothing_is_left(demo)
    assert not any("Traceback" in line or "WARN" in line for line in lines)


def test_a_second_demo_starts_afresh(tmp_path: Path) -> None:
    for _ in range(2):
        demo = Demo(tmp_path, DEMO_DECISION="approved")
        assert demo.finish()[-1] == "RESULT status=completed rounds=4 tool_calls=4 refunds=1"
        assert demo.counts() == (1, 1)


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"DEMO_DECISION": ""}, "demo: there is no terminal to ask on: set DEMO_DECISION to approved or denied"),
        ({"DEMO_DECISION": "yes"}, "demo: DEMO_DECISION is 'yes': set it to approved or denied"),
        (
            {"DEMO_DECISION": "denied", "STEADYHAND_MODEL": "acme:large"},
            "demo: agent refund_desk: STEADYHAND_MODEL is 'acme:large': "
            "there is no such provider, only openai, scripted",
        ),
    ],
)
def test_a_demo_that_cannot_start_says_why(tmp_path: Path, variables: dict[str, str], line: str) -> None:
    demo = Demo(tmp_path, None, **variables)
    assert demo.finish() == [line]
    assert demo.process.returncode == 2


def test_a_failed_run_is_told_with_its_type(tmp_path: Path) -> None:
    demo = Demo(tmp_path, DEMO_DECISION="approved", STEADYHAND_MODEL="scripted:examples/no_such_script.json")
    lines = demo.finish()
    assert demo.process.returncode == 1
    assert any(line.startswith("The run failed: ModelBadRequest: ") for line in lines), "\n".join(lines)
    assert lines[-1] == "RESULT status=failed rounds=0 tool_calls=0 refunds=0"
    assert_nothing_is_left(demo)


@pytest.mark.parametrize(("answer", "refunds"), [("y\n", 1), ("n\n", 0), ("\n", 0), ("\x04", 0)])
def test_a_person_decides_on_the_terminal(tmp_path: Path, terminal: Terminal, answer: str, refunds: int) -> None:
    demo = Demo(tmp_path, terminal.theirs, DEMO_DECISION="")
    terminal.wait_for(r"Approve\? \[y/N\] ")
    assert demo.counts() == (0, 0)
    terminal.type(answer)
    terminal.wait_for("Press Enter")
    terminal.type("\n")
    terminal.wait_for(rf"RESULT status=completed rounds=\d tool_calls=\d refunds={refunds}\n")
    assert demo.process.wait(DEADLINE_SECONDS) == 0
    assert_nothing_is_left(demo)


def test_the_printed_command_decides_too(tmp_path: Path, terminal: Terminal) -> None:
    demo = Demo(tmp_path, terminal.theirs, DEMO_DECISION="")
    command = terminal.wait_for(r"(?m)^  (\S*temporal workflow signal .*)$")[1]
    terminal.wait_for(r"Approve\? \[y/N\] ")
    subprocess.run(command, shell=True, cwd=tmp_path, check=True, capture_output=True, timeout=DEADLINE_SECONDS)
    terminal.wait_for("Decided elsewhere")
    terminal.wait_for("refund_order: approved by me")
    terminal.wait_for("Press Enter")
    terminal.type("\n")
    terminal.wait_for("RESULT status=completed rounds=4 tool_calls=4 refunds=1\n")
    assert demo.process.wait(DEADLINE_SECONDS) == 0


@pytest.mark.parametrize("moment", ["Temporal server at", "asking the model", r"Approve\? \[y/N\] "])
def test_ctrl_c_leaves_no_traceback_and_no_process(tmp_path: Path, terminal: Terminal, moment: str) -> None:
    demo = Demo(tmp_path, terminal.theirs, DEMO_DECISION="")
    terminal.wait_for(moment)
    os.killpg(demo.process.pid, signal.SIGINT)
    terminal.wait_for("demo: interrupted\n")
    assert demo.process.wait(DEADLINE_SECONDS) == 130
    assert "Traceback" not in terminal.seen
    assert_nothing_is_left(demo)


def test_a_demo_that_is_killed_takes_its_server_along(tmp_path: Path, terminal: Terminal) -> None:
    demo = Demo(tmp_path, terminal.theirs, DEMO_DECISION="")
    terminal.wait_for(r"Approve\? \[y/N\] ")
    assert len(demo.members()) > 1
    demo.process.kill()
    demo.process.wait(DEADLINE_SECONDS)
    assert_nothing_is_left(demo)
