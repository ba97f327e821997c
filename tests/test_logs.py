"""What a worker logs: safe to look at, one line for each failed attempt, and no more."""

import logging
import subprocess
import sys

import pytest

from activities.visible import visible
from runtime.dev_server import DevServer
from runtime.logs import VisibleFormatter
from tests.providers.model_server import ModelServer, Response
from tests.support.harness import CHECKOUT, Harness, failure_of
from tests.support.worker_process import worker_process


def formatted(message: str, error: Exception | None = None) -> str:
    exc_info = None if error is None else (type(error), error, None)
    record = logging.LogRecord("steadyhand.tools", logging.ERROR, __file__, 1, message, None, exc_info)
    # As another handler's formatter leaves it.
    logging.Formatter().format(record)
    return VisibleFormatter("%(levelname)s: %(message)s").format(record)


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("\x07\x08\x7f\x9b", "\\x07\\x08\\x7f\\x9b"),
        ("\r\n\t", "\\r\\n\\t"),
        ("\u202e\u2066\u200f", "\\u202e\\u2066\\u200f"),
        ("\u200b\u2060\ufeff\u00ad\u3164\u2800\ufe0f", "\\u200b\\u2060\\ufeff\\xad\\u3164\\u2800\\ufe0f"),
        ("\U000e0041\U000e0100", "\\U000e0041\\U000e0100"),
        ("\u2028\u2029\x85", "\\u2028\\u2029\\x85"),
        ("\ud83d", "\\ud83d"),
        ("plain, é, 漢字, 🙂", "plain, é, 漢字, 🙂"),
    ],
)
def test_what_a_terminal_would_obey_or_hide_is_shown(hidden: str, shown: str) -> None:
    assert visible(hidden) == shown
    assert formatted(f"a{hidden}b") == f"ERROR: a{shown}b"


def test_a_traceback_keeps_its_lines_and_nothing_else() -> None:
    text = formatted("failed\nINFO: fine", ValueError("one\n\ttwo\x1b[31m\u202e\rthree"))
    assert text == "ERROR: failed\\nINFO: fine\nValueError: one\n\ttwo\\x1b[31m\\u202e\\rthree"


def test_after_the_set_up_stderr_is_safe_and_the_sdks_tracebacks_are_left_out() -> None:
    program = """
import logging
from runtime import logs
logs.set_up()
logging.getLogger("temporalio.activity").warning("Completing activity as failed")
logging.getLogger("temporalio.worker").warning("shown")
try:
    raise RuntimeError("\\x1b]0;owned\\x07")
except RuntimeError:
    logging.getLogger("steadyhand.tools").exception("tool \\x1b[31m failed")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stderr
    assert "\x07" not in done.stderr
    assert "Completing" not in done.stderr
    assert "WARNING temporalio.worker: shown\n" in done.stderr
    assert "ERROR steadyhand.tools: tool \\x1b[31m failed\nTraceback" in done.stderr
    assert "RuntimeError: \\x1b]0;owned\\x07\n" in done.stderr


async def test_a_worker_logs_one_line_for_each_failed_model_call(harness: Harness, server: DevServer) -> None:
    limited = Response.of({"error": {"message": "slow\x1b[31m"}}, 429)
    refused = Response.of({"error": {"message": "no \x1b]0;owned\x07"}}, 401)
    limited = Response(429, {**limited.headers, "retry-after-ms": "1"}, limited.body)
    async with ModelServer([limited, refused]) as model:
        settings = {
            "STEADYHAND_MODEL": "openai:any",
            "OPENAI_API_KEY": "any-key-at-all",
            "OPENAI_BASE_URL": model.base_url,
        }
        async with worker_process("tests.apps.payments", harness.task_queue, server.address, settings) as worker:
            run = await harness.start({"agent": "refunder", "prompt": "Go."})
            error, _ = await failure_of(run)
            nobody = await harness.start({"agent": "nobody", "prompt": "Go."})
            assert (await failure_of(nobody))[0].type == "UnknownAgent"
            await worker.terminate()
            lines = worker.log().splitlines()
    assert error.type == "ModelAuthentication"
    first, second = [line.partition(" steadyhand.model: ")[2] for line in lines]
    address = f"{model.base_url}/chat/completions"
    assert first == (
        f"call_model of {run.id}, attempt 1, failed: ModelUnavailable (retryable, delay 1 s): "
        f"{address} answered 429: slow\\x1b[31m"
    )
    assert second == (
        f"call_model of {run.id}, attempt 2, failed: ModelAuthentication (not retryable): "
        f"{address} answered 401: check the key in OPENAI_API_KEY: no \\x1b]0;owned\\x07"
    )
