"""Starts of a worker that end by themselves, of which there are many."""

import os
import re
import runpy
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

from tests.support.forked import FORKED
from tests.support.harness import CHECKOUT

_PROGRAM = str(CHECKOUT / "worker.py")
_TIMEOUT_SECONDS = 60
# What a worker reads, and whoever runs the tests may have set.
_SETTINGS = re.compile(r"(TEMPORAL|STEADYHAND|OPENAI|ANTHROPIC|OPENROUTER)_.*|.*_BASE_URL|PYTHONPATH")


def start_worker(
    *arguments: str, cwd: Path = CHECKOUT, environment: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """`python worker.py` with these arguments and variables, once it has ended.

    A process of its own with its own output, directory and environment. Only the imports were made before.
    """
    own = {name: value for name, value in os.environ.items() if not _SETTINGS.fullmatch(name)}
    variables = {**own, **(environment or {})}
    with tempfile.TemporaryDirectory() as kept:
        stdout, stderr = Path(kept) / "stdout", Path(kept) / "stderr"
        process = FORKED.Process(target=_run, args=(arguments, cwd, variables, stdout, stderr))
        process.start()
        process.join(_TIMEOUT_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode is not None
        return CompletedProcess([_PROGRAM, *arguments], process.exitcode, stdout.read_text(), stderr.read_text())


def _run(arguments: tuple[str, ...], cwd: Path, variables: Mapping[str, str], stdout: Path, stderr: Path) -> None:
    for path, descriptor in ((stdout, 1), (stderr, 2)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), descriptor)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(cwd)
    sys.path[:0] = [str(CHECKOUT), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [_PROGRAM, *arguments]
    runpy.run_path(_PROGRAM, run_name="__main__")
