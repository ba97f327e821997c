"""What a worker refuses to start with, in one line that names the mistake."""

import re
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import ValidationError

from activities.catalog import Catalog, CatalogError
from activities.token_counts import TokenCounter
from activities.tooling import Tool, tool
from contracts.agents import AgentSpec
from contracts.models import ModelSettings
from contracts.tools import ToolContract
from tests.support.agents import scripted_agent
from tests.support.worker_process import ended_worker


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


@tool(side_effect="read", name="Look")
def look_again() -> str:
    """Look again."""
    return "seen again"


def test_two_tools_of_one_name_are_refused_with_both_sources() -> None:
    other = scripted_agent(look_again).model_copy(update={"name": "other"})
    with pytest.raises(CatalogError, match=r"two tools are named 'look': .*look and .*look_again"):
        Catalog([scripted_agent(look), other])


def test_one_tool_may_serve_two_agents() -> None:
    other = scripted_agent(look).model_copy(update={"name": "other"})
    assert list(Catalog([scripted_agent(look), other]).tools) == ["look"]


def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(CatalogError, match="two agents are named 'tester'"):
        Catalog([scripted_agent(look), scripted_agent()])


def test_a_contract_that_nothing_fulfils_is_refused() -> None:
    contract = ToolContract.model_validate(look.model_dump())
    with pytest.raises(CatalogError, match="nothing fulfils the contract of tool 'look'"):
        Catalog([scripted_agent(contract)])


def test_an_agent_too_large_for_history_is_refused() -> None:
    def wordy(number: int) -> Tool:
        @tool(side_effect="read", name=f"t{number}", description="d" * 4_000)
        def say() -> str:
            return ""

        return say

    with pytest.raises(CatalogError, match="at most 1048576 fit"):
        Catalog([AgentSpec(name="large", instructions="x", model="scripted:main", tools=tuple(map(wordy, range(300))))])


def test_modules_are_read_once_even_if_they_import_from_each_other() -> None:
    first, second = ModuleType("first"), ModuleType("second")
    first.__dict__.update(look=look, agent=scripted_agent(look))
    second.__dict__.update(look=look, agent=first.__dict__["agent"])
    catalog = Catalog.from_modules([first, second], model="scripted:other")
    assert catalog.agents["tester"].model == "scripted:other"
    with pytest.raises(CatalogError, match="no AgentSpec in empty"):
        Catalog.from_modules([ModuleType("empty")])


def letters(text: str) -> int:
    return len(text)


def module(name: str, **variables: object) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(variables)
    return made


def test_token_counters_are_picked_up_from_modules() -> None:
    exact = TokenCounter("openai:", letters)
    apps = [module("first", agent=scripted_agent(), exact=exact), module("second", exact=exact)]
    assert Catalog.from_modules(apps).counters == (exact,)
    assert Catalog.from_modules([module("plain", agent=scripted_agent(), _exact=exact)]).counters == ()


def test_two_token_counters_for_the_same_models_are_refused_with_both_sources() -> None:
    apps = [module("first", agent=scripted_agent(), a=TokenCounter("openai:", letters), b=TokenCounter("openai:", len))]
    reason = r"two token counters are for models 'openai:': tests\.test_catalog\.letters and builtins\.len; remove one"
    with pytest.raises(CatalogError, match=reason):
        Catalog.from_modules(apps)


@pytest.mark.parametrize(
    ("counter", "mistake"),
    [
        (TokenCounter("openai", letters), "models is 'openai', but no model's name begins so"),
        (TokenCounter("OpenAI:", letters), "models is 'OpenAI:', but"),
        (TokenCounter("", letters), "models is '', but"),
        (TokenCounter("openai:", 4), "count is no function"),  # type: ignore[arg-type]  # an app's mistake
    ],
)
def test_a_token_counter_that_could_never_count_is_refused(counter: TokenCounter, mistake: str) -> None:
    with pytest.raises(CatalogError, match=mistake):
        Catalog([scripted_agent()], counters=[counter])


TOOL = """from activities.tooling import tool
from contracts.agents import AgentSpec
@tool({})
def f() -> str:
    '''F.'''
    return ""
"""
AGENT = """from contracts.agents import AgentSpec
from contracts.models import ModelSettings
AgentSpec(name='x', instructions='x', {})
"""


@pytest.mark.parametrize(
    ("source", "line", "mistake"),
    [
        (TOOL.format("side_effect='read', name='call_model'"), 3, "tool f: name: .*'call_model' is reserved"),
        (TOOL.format("side_effect='read', name='web_search'"), 3, "reserved"),
        (TOOL.format("side_effect='read', name='a b'"), 3, "tool f: name: String should match"),
        (TOOL.format("side_effect='maybe'"), 3, "tool f: side_effect: Input should be"),
        (TOOL.format("side_effect='read', timeout=0"), 3, "tool f: timeout: Input should be greater than 0"),
        (
            TOOL.format("side_effect='read'") + "AgentSpec(name='x', instructions='', model='m')",
            7,
            "AgentSpec: .*model",
        ),
        (AGENT.format("model='gpt-4.1'"), 3, "AgentSpec: model: write <provider>:<name>, .*openai:gpt-4.1-mini"),
        (AGENT.format("model='OpenAI:gpt-4.1'"), 3, "AgentSpec: model: write .*the provider in small letters"),
        (AGENT.format("model='a:b', max_cost=2, max_round=1"), 3, "AgentSpec: max_cost: there is no such field; max_r"),
        (AGENT.format("model='a:b', settings={'temprature': 1}"), 3, "settings.temprature: there is no such field"),
        (AGENT.format("model='a:b', settings=ModelSettings(stopp=())"), 3, "ModelSettings: stopp: there is no such"),
        (TOOL.format("side_effect='read', retry={'attempts': 2}"), 3, "tool f: retry.attempts: there is no such field"),
        (
            AGENT.format("model='a:b', tools=(print,)"),
            3,
            r"AgentSpec: tools: .*print is no tool: put @tool\(side_effect",
        ),
    ],
)
def test_the_worker_names_file_line_and_mistake_in_one_line(
    tmp_path: Path, source: str, line: int, mistake: str
) -> None:
    (tmp_path / "wrong_app.py").write_text(source)
    finished = ended_worker("--app", "wrong_app", environment={"PYTHONPATH": str(tmp_path)})
    assert finished.returncode == 2
    (complaint,) = finished.stderr.splitlines()
    assert complaint.startswith(f"worker: {tmp_path / 'wrong_app.py'}:{line}: ")
    assert re.search(mistake, complaint)


def test_an_agent_cannot_force_a_tool_that_it_does_not_have() -> None:
    with pytest.raises(ValidationError, match=r"settings\.tool_choice is 'nope', which is no tool of this agent"):
        AgentSpec(name="a", instructions="Test.", model="scripted:m", settings=ModelSettings(tool_choice="nope"))
