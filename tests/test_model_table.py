"""What a worker knows of models: from the file that comes along, or from the operator's own."""

import json
from pathlib import Path

import pytest
from pydantic import JsonValue

from activities.catalog import Catalog
from activities.model_table import BUILT_IN, ModelTable
from contracts.agents import AgentSpec
from contracts.messages import Usage
from contracts.models import ContextBudget, ModelFacts, Price
from runtime.models import model_table
from runtime.settings import Settings, StartupError
from tests.support.providers import agent_with

SMALL = ModelFacts(context_window=8_000, price=Price(input=1, output=2))
LARGE = ModelFacts(context_window=200_000, price=Price(input=3, output=15, cached_input=0.3, cache_write=3.75))
TABLE = ModelTable({"acme:small": SMALL, "acme:large": LARGE, "acme:windowless": ModelFacts(price=SMALL.price)})


def loaded(path: Path | None, *agents: AgentSpec) -> ModelTable:
    """The table that a worker would have with `STEADYHAND_MODELS` set to this path."""
    environment = {} if path is None else {"STEADYHAND_MODELS": str(path)}
    return model_table(Settings.from_environment(environment), Catalog(agents or [agent_with("acme:small")]))


def test_the_file_that_comes_along_is_readable_and_plausible() -> None:
    models = json.loads(BUILT_IN.read_text())
    table = loaded(None)
    assert len(models) >= 12
    for model in models:
        facts = table.facts(model)
        assert facts.price is not None
        assert facts.context_window is not None
        assert 8_000 <= facts.context_window <= 10_000_000
        # Dollars for a million tokens: a price for one or for a thousand would be far outside.
        assert 0.01 <= facts.price.input < facts.price.output <= 200
        assert 0 < (facts.price.cached_input or 0) < facts.price.input
    spent = Usage(input_tokens=1_000_000, output_tokens=1_000_000, cached_input_tokens=500_000)
    price = table.facts("openai:gpt-4.1-mini").price
    assert price is not None
    assert price.cost(spent).total == pytest.approx(0.5 * 0.4 + 0.5 * 0.1 + 1.6)


def test_both_apis_of_openai_know_the_same_models() -> None:
    models: dict[str, JsonValue] = json.loads(BUILT_IN.read_text())
    chat = {name: facts for name, facts in models.items() if name.startswith("openai:")}
    assert {name.replace("openai:", "openai_responses:"): facts for name, facts in chat.items()} == {
        name: facts for name, facts in models.items() if name.startswith("openai_responses:")
    }


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        ("acme:small", SMALL),
        ("acme:small-2025-04-14", SMALL),
        ("acme:small-20251001", SMALL),
        ("acme:smal", ModelFacts()),
        ("acme:small-latest", ModelFacts()),
        ("acme:small-2025-04", ModelFacts()),
        ("acme:small-2025", ModelFacts()),
        ("acme:small-20251001-x", ModelFacts()),
        ("acme:SMALL", ModelFacts()),
        ("other:small", ModelFacts()),
        ("small", ModelFacts()),
        ("", ModelFacts()),
    ],
)
def test_a_model_is_known_by_its_name_or_without_the_date_at_its_end(model: str, facts: ModelFacts) -> None:
    assert TABLE.facts(model) == facts


def test_a_dated_model_may_have_an_entry_of_its_own() -> None:
    table = ModelTable({"acme:small": SMALL, "acme:small-20251001": LARGE})
    assert table.facts("acme:small-20251001") == LARGE
    assert table.facts("acme:small-20251002") == SMALL


def test_an_agent_gets_the_prices_and_the_window_that_it_does_not_name() -> None:
    completed = TABLE.completed(agent_with("acme:large-20251001", "acme:small", "other:unknown"))
    assert completed.prices == {"acme:large-20251001": LARGE.price, "acme:small": SMALL.price}
    # The main model's, also with a fallback that holds less.
    assert completed.context == ContextBudget(window=200_000)
    assert AgentSpec.model_validate_json(completed.model_dump_json()) == completed


def test_what_an_agent_names_stays() -> None:
    own, other = Price(input=7, output=8), Price(input=1, output=1)
    context = ContextBudget(window=4_000, reserved_output=500, recent_messages=7)
    agent = agent_with("acme:large", "acme:small").model_copy(
        update={"prices": {"acme:large": own, "acme:elsewhere": other}, "context": context}
    )
    completed = TABLE.completed(agent)
    assert completed.prices == {"acme:large": own, "acme:elsewhere": other, "acme:small": SMALL.price}
    assert completed.context == context
    reserving = agent.model_copy(update={"context": ContextBudget(reserved_output=500, recent_messages=7)})
    assert TABLE.completed(reserving).context == ContextBudget(window=200_000, reserved_output=500, recent_messages=7)


@pytest.mark.parametrize("model", ["other:unknown", "acme:windowless"])
def test_what_the_table_does_not_know_stays_open(model: str) -> None:
    agent = agent_with(model)
    completed = TABLE.completed(agent)
    assert completed.context.window is None
    if model == "other:unknown":
        assert completed == agent
        assert completed.digest == agent.digest


def test_an_operators_own_file_replaces_the_one_that_comes_along(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_text('{"acme:small": {"context_window": 8000, "price": {"input": 1, "output": 2}}, "acme:free": {}}')
    table = loaded(path)
    assert table.facts("acme:small") == SMALL
    assert table.facts("acme:free") == ModelFacts()
    assert table.facts("openai:gpt-4.1-mini") == ModelFacts()


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        ("", "Invalid JSON"),
        ("{", "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        ("[]", "payload: Input should be"),
        ('{"gpt-4.1": {}}', "gpt-4.1.[key]: write <provider>:<name>, "),
        ('{"acme:m": null}', "acme:m: Input should be an object"),
        ('{"acme:m": {"context_window": 3}}', "acme:m.context_window: Input should be greater than or equal to 64"),
        ('{"acme:m": {"context_window": "8k"}}', "acme:m.context_window: Input should be a valid integer"),
        ('{"acme:m": {"window": 8000}}', "acme:m.window: Extra inputs are not permitted"),
        ('{"acme:m": {"price": {"input": 1}}}', "acme:m.price.output: Field required"),
        ('{"acme:m": {"price": {"input": -1, "output": 1}}}', "acme:m.price.input: Input should be greater than"),
        ('{"acme:m": {"price": {"input": NaN, "output": 1}}}', "acme:m.price.input: Input should be a finite number"),
        ('{"acme:m": {"price": {"input": "1", "output": 1}}}', "acme:m.price.input: Input should be a valid number"),
        ('{"acme:m": {"price": {"input": 1, "output": 1, "cached": 1}}}', "acme:m.price.cached: Extra inputs"),
    ],
)
def test_a_table_that_cannot_be_right_stops_the_worker_with_its_path_and_field(
    tmp_path: Path, content: str | bytes, mistake: str
) -> None:
    path = tmp_path / "models.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(StartupError) as caught:
        loaded(path)
    (problem,) = caught.value.problems
    assert problem.startswith(f"table of models {path}: ")
    assert mistake in problem
    assert problem.endswith("; STEADYHAND_MODELS names it")


@pytest.mark.parametrize(("name", "reason"), [("nothing.json", "No such file"), (".", "Is a directory")])
def test_a_table_that_is_not_there_stops_the_worker(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(StartupError, match=f"table of models {tmp_path / name}: {reason}"):
        loaded(tmp_path / name)


def test_an_agent_that_reserves_more_than_its_models_window_stops_the_worker(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_text('{"acme:m": {"context_window": 8000}}')
    context = ContextBudget(reserved_output=8_000)
    agent = agent_with("acme:m").model_copy(update={"context": context})
    with pytest.raises(StartupError) as caught:
        loaded(path, agent)
    (problem,) = caught.value.problems
    assert problem.startswith("agent 'tester': ")
    assert "context.reserved_output leaves no room in context.window" in problem
    assert problem.endswith("; acme:m has 8000 tokens")


def test_an_agent_whose_budget_needs_a_price_that_nobody_knows_stops_the_worker(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_text('{"acme:m": {"price": {"input": 1, "output": 2}}, "acme:free": {}}')
    agent = agent_with("acme:m", "acme:free", "acme:other").model_copy(update={"max_cost_usd": 1.0})
    with pytest.raises(StartupError) as caught:
        loaded(path, agent)
    first, second = caught.value.problems
    assert first.startswith("agent 'tester': max_cost_usd cannot be kept: no price is known of acme:free; add it to ")
    assert "no price is known of acme:other" in second
    prices = dict.fromkeys(agent.fallback_models, SMALL.price)
    assert loaded(path, agent.model_copy(update={"prices": prices}))
    assert loaded(path, agent.model_copy(update={"max_cost_usd": None}))


def test_a_field_of_a_newer_worker_is_no_mistake() -> None:
    newer = '{"name": "x", "instructions": "x", "model": "a:b", "later": 1, "settings": {"seed": 7, "later": 1}}'
    agent = AgentSpec.model_validate_json(newer)
    assert agent.settings.seed == 7
