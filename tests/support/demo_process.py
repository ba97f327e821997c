"""Demos as processes of their own, with or without a terminal."""

import os
import pty
import re
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

from runtime.dev_server import Ports, free_ports
from tests.support.harness import CHECKOUT

DEADLINE_SECONDS = 90.0

# Ctrl-C works as on a terminal, even where whoever started the tests has it ignored.
_PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from examples.refund_desk.demo import main
from runtime.dev_server import Ports
sys.exit(main(Ports(int(sys.argv[1]), int(sys.argv[2]))))
"""


class Demo:
    """A running demo, the leader of its own session."""

    def __init__(self, directory: Path, process: subprocess.Popen[str]) -> None:
        self.directory = directory
        self.process = process

    def finish(self) -> list[str]:
        """The lines it printed until its end, where it has no terminal."""
        output, _ = self.process.communicate(timeout=DEADLINE_SECONDS)
        return output.splitlines()

    def counts(self) -> tuple[int, int]:
        """Payments and messages in its shop."""
        with closing(connect(self.directory / ".steadyhand" / "demo" / "refund_desk.db")) as db:
            (payments,), (mails,) = (
                db.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("payments", "outbox")
            )
            return payments, mails

    def members(self) -> list[int]:
        """Live processes of its session: itself, its server, and what either of them started."""
        listed = subprocess.run(["ps", "-e", "-o", "sid=,pid=,stat="], capture_output=True, text=True, check=True)
        rows = [line.split() for line in listed.stdout.splitlines()]
        return [int(pid) for session, pid, state in rows if int(session) == self.process.pid and state[0] != "Z"]


class Demos:
    """Starts demos in a directory. When it is closed, those that still run are killed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[subprocess.Popen[str]] = []

    def start(self, terminal: "Terminal | None" = None, ports: Ports | None = None, **variables: str) -> Demo:
        """A demo whose server listens on these ports, by default on any that are free."""
        ports = ports or free_ports()
        inherited = {name: text for name, text in os.environ.items() if not name.startswith(("STEADYHAND_", "OPENAI_"))}
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(ports.grpc), str(ports.ui)],
            cwd=self._directory,
            env={**inherited, "PYTHONPATH": str(CHECKOUT), "DEMO_DECISION": "", **variables},
            stdin=terminal.theirs if terminal else subprocess.DEVNULL,
            stdout=terminal.theirs if terminal else subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        self._started.append(process)
        return Demo(self._directory, process)

    def close(self) -> None:
        """Kill and wait. A demo's server ends with it."""
        for process in self._started:
            with process:
                process.kill()


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
        """Type this on its keyboard."""
        os.write(self._ours, text.encode())

    def close(self) -> None:
        """Hang up."""
        os.close(self._ours)
        os.close(self.theirs)
