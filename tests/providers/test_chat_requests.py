"""The settings of a request, as Chat Completions takes them."""

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.chat_servers import COMPATIBLE, DEEPSEEK, MISTRAL, OPENAI, ServerRules, rules_for
from activities.providers.interface import CompletionRequest
from contracts.messages import Message
from contracts.models import ModelSettings
from contracts.tools import ToolContract
from tests.providers.legality import request_illegality

LOOK = ToolContract(name="look", description="Looks.", input_schema={"type": "object"}, side_effect="read")
PLAIN = {"model", "messages", "stream", "stream_options"}
CLOSED: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def body(
    settings: ModelSettings | None = None,
    *,
    tools: tuple[ToolContract, ...] = (),
    rules: ServerRules = OPENAI,
    model: str = "m",
    schema: dict[str, JsonValue] | None = None,
    web_search: bool = False,
    stream: bool = True,
) -> dict[str, JsonValue]:
    """A request, without what every request has."""
    request = CompletionRequest(
        *(model, "Be brief.", (Message(role="user", text="Hello"),), tools, settings or ModelSettings()),
        output_schema=schema,
        web_search=web_search,
    )
    sent = ChatCompletions(rules).body(request, stream)
    assert request_illegality(sent) is None
    return {name: value for name, value in sent.items() if name not in PLAIN - {"stream_options"}}


ALL = ModelSettings(
    temperature=0.0, top_p=0.5, max_output_tokens=100, stop=("END", "."), seed=0, reasoning_effort="low"
)
SENT: dict[str, JsonValue] = {"temperature": 0.0, "top_p": 0.5, "stop": ["END", "."], "reasoning_effort": "low"}
USAGE: dict[str, JsonValue] = {"stream_options": {"include_usage": True}}


def test_settings_that_are_not_set_are_not_named() -> None:
    assert body() == USAGE
    assert body(stream=False) == {}


@pytest.mark.parametrize(
    ("rules", "differs"),
    [
        (OPENAI, {"max_completion_tokens": 100, "seed": 0, **USAGE}),
        (COMPATIBLE, {"max_tokens": 100, "seed": 0, **USAGE}),
        (MISTRAL, {"max_tokens": 100, "random_seed": 0}),
    ],
)
def test_settings_are_called_what_the_server_calls_them(rules: ServerRules, differs: dict[str, JsonValue]) -> None:
    assert body(ALL, rules=rules) == SENT | differs


@pytest.mark.parametrize(
    ("base", "rules"),
    [
        ("https://api.openai.com/v1", OPENAI),
        (" https://EU.API.OPENAI.COM/v1 ", OPENAI),
        ("https://res.openai.azure.com/openai/v1", OPENAI),
        ("https://res.services.ai.azure.com/openai/v1", OPENAI),
        ("https://api.mistral.ai/v1", MISTRAL),
        ("https://api.deepseek.com", DEEPSEEK),
        ("https://openrouter.ai/api/v1", COMPATIBLE),
        ("http://localhost:11434/v1", COMPATIBLE),
        ("http://[::1]:8000", COMPATIBLE),
        ("https://api.openai.com.evil.example/v1", COMPATIBLE),
        ("https://notopenai.com/v1", COMPATIBLE),
        ("", COMPATIBLE),
    ],
)
def test_a_server_is_known_by_its_host(base: str, rules: ServerRules) -> None:
    assert rules_for(base) == rules


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {}),
        ("none", {"tool_choice": "none"}),
        ("required", {"tool_choice": "required"}),
        ("look", {"tool_choice": {"type": "function", "function": {"name": "look"}}}),
    ],
)
def test_the_choice_of_tools_goes_with_tools_only(choice: str, sent: dict[str, JsonValue]) -> None:
    settings = ModelSettings(tool_choice=choice, parallel_tool_calls=False)
    with_tools = body(settings, tools=(LOOK,))
    del with_tools["tools"]
    assert with_tools == sent | USAGE | {"parallel_tool_calls": False}
    assert body(settings) == USAGE


@pytest.mark.parametrize("strict", [True, False])
def test_an_answer_by_a_schema_is_asked_for_strictly_where_that_is_possible(strict: bool) -> None:
    schema: dict[str, JsonValue] = CLOSED if strict else {**CLOSED, "required": []}
    by: JsonValue = {"name": "answer", "schema": schema, "strict": strict}
    assert body(schema=schema) == USAGE | {"response_format": {"type": "json_schema", "json_schema": by}}


def test_an_answer_by_a_schema_can_be_asked_for_in_words() -> None:
    settings = ModelSettings(native_output=False)
    messages = (Message(role="user", text="Hello"),)
    request = CompletionRequest("m", "Be brief.", messages, (), settings, output_schema=CLOSED)
    sent = ChatCompletions().body(request, stream=False)
    assert "response_format" not in sent
    system = str(sent["messages"][0])  # type: ignore[index]  # a list
    assert "Be brief." in system
    assert '"required":["city"]' in system


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        ("gpt-4o-search-preview", True),
        ("gpt-4o-mini-search-preview-2025-03-11", True),
        ("gpt-5-search-api", True),
        ("gpt-4.1", False),
        ("sonar", False),
        ("research-model", False),
    ],
)
def test_only_search_models_are_asked_to_search(model: str, sent: bool) -> None:
    assert body(model=model, web_search=True) == USAGE | ({"web_search_options": {}} if sent else {})
    assert body(model=model) == USAGE
