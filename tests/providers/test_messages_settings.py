"""Settings of an agent in the terms of the Messages API."""

from dataclasses import replace

import pytest
from pydantic import JsonValue

from activities.providers.interface import CompletionRequest, ModelFailure
from activities.providers.messages import Messages
from contracts.messages import Message, ToolCall
from contracts.models import ModelSettings
from tests.providers.asking_messages import NOOP, USER, asked, body_of, thinking

OLD, NEW = "claude-sonnet-4-5", "claude-sonnet-4-6"
CALLED = Message(role="assistant", tool_calls=(ToolCall(call_id="call_1", tool="noop", arguments={}),))
RESULT = Message(role="tool", call_id="call_1", text="ok")


def with_settings(request: CompletionRequest, settings: dict[str, object]) -> CompletionRequest:
    return replace(request, settings=ModelSettings.model_validate(settings))


def sets(*messages: Message, **settings: object) -> dict[str, JsonValue]:
    """What the settings put into a request with a tool, beyond what every request has."""
    body = body_of(with_settings(asked(*messages, tools=(NOOP,)), settings))
    plain = body_of(asked(*messages, tools=(NOOP,)))
    return {name: value for name, value in body.items() if plain.get(name) != value}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 0.0, "top_p": 0.5}, {"temperature": 0.0, "top_p": 0.5}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"max_output_tokens": 100}, {"max_tokens": 100}),
        ({"stop": ("END", "STOP")}, {"stop_sequences": ["END", "STOP"]}),
        # What the API does not have is left out.
        ({"seed": 7}, {}),
        ({"tool_choice": "auto"}, {}),
        ({"tool_choice": "none"}, {"tool_choice": {"type": "none"}}),
        ({"tool_choice": "required"}, {"tool_choice": {"type": "any"}}),
        ({"tool_choice": "noop"}, {"tool_choice": {"type": "tool", "name": "noop"}}),
        ({"parallel_tool_calls": False}, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
        ({"parallel_tool_calls": True}, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": False}}),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        ),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"tool_choice": {"type": "none"}}),
        ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
        (
            {"reasoning_effort": "xhigh"},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}, "max_tokens": 32_000},
        ),
    ],
)
def test_a_setting_is_said_in_the_apis_own_words(settings: dict[str, object], expected: dict[str, JsonValue]) -> None:
    assert sets(**settings) == expected


def test_a_choice_of_tools_without_tools_is_left_out() -> None:
    assert "tool_choice" not in body_of(asked(tool_choice="none", parallel_tool_calls=True))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"temperature": 1.5}, "temperature"),
        ({"temperature": 0.5, "reasoning_effort": "low"}, "temperature"),
        ({"top_p": 0.9, "reasoning_effort": "low"}, "top_p"),
        ({"reasoning_effort": "gigantic", "model": OLD}, "low, medium, high"),
    ],
)
def test_a_setting_that_the_api_refuses_is_named_before_anything_is_sent(
    settings: dict[str, object], named: str
) -> None:
    model = str(settings.pop("model", NEW))
    with pytest.raises(ModelFailure, match=named) as caught:
        Messages().body(with_settings(asked(model=model), settings), stream=True)
    assert (caught.value.type, caught.value.retryable) == ("ModelBadRequest", False)


@pytest.mark.parametrize(
    ("model", "by_budget"),
    [
        ("claude-3-7-sonnet-20250219", True),
        ("claude-sonnet-4-20250514", True),
        ("claude-opus-4-0", True),
        ("claude-opus-4-1-20250805", True),
        ("claude-opus-4-5", True),
        ("claude-haiku-4-5-20251001", True),
        ("anthropic/claude-sonnet-4.5", True),
        ("us.anthropic.claude-sonnet-4-5-v1:0", True),
        ("deepseek-chat", True),
        ("claude-sonnet-4-6", False),
        ("claude-opus-4-6", False),
        ("claude-opus-4-7-20260401", False),
        ("claude-opus-4-10", False),
        ("claude-haiku-5-5", False),
        ("claude-fable-5", False),
        ("anthropic/claude-opus-5", False),
    ],
)
def test_older_models_think_by_a_budget_and_newer_ones_by_an_effort(model: str, by_budget: bool) -> None:
    body = body_of(asked(model=model, reasoning_effort="medium"))
    budget: JsonValue = {"type": "enabled", "budget_tokens": 8_192}
    assert body["thinking"] == (budget if by_budget else {"type": "adaptive"})
    assert ("output_config" in body) == (not by_budget)


@pytest.mark.parametrize(
    ("effort", "max_output_tokens", "budget"),
    [
        ("low", None, 2_048),
        ("high", None, 16_000),
        ("max", None, 16_000),
        ("max", 60_000, 30_000),
        ("high", 4_000, 2_000),
        ("low", 2_048, 1_024),
    ],
)
def test_a_budget_leaves_half_of_what_may_be_said_for_the_answer(
    effort: str, max_output_tokens: int | None, budget: int
) -> None:
    body = body_of(asked(model=OLD, reasoning_effort=effort, max_output_tokens=max_output_tokens))
    assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}


def thought_first(signature: str) -> Message:
    block: JsonValue = {"from": f"anthropic:{OLD}", "block": thinking("Hm.", signature)}
    return CALLED.model_copy(update={"opaque": (block, {"call": 0})})


@pytest.mark.parametrize(
    ("messages", "thinks"),
    [
        ((USER,), True),
        ((USER, thought_first("s1"), RESULT), True),
        # Another model began the exchange: the API would want thinking first.
        ((USER, CALLED, RESULT), False),
        ((USER, thought_first(""), RESULT), False),
        # The exchange is over, and a new one begins.
        ((USER, CALLED, RESULT, Message(role="assistant", text="Done."), USER), True),
    ],
)
def test_a_budget_of_thinking_stays_away_from_an_exchange_that_began_without(
    messages: tuple[Message, ...], thinks: bool
) -> None:
    assert ("thinking" in body_of(asked(*messages, tools=(NOOP,), model=OLD, reasoning_effort="low"))) == thinks


@pytest.mark.parametrize("settings", [{"tool_choice": "required"}, {"tool_choice": "noop"}, {"max_output_tokens": 100}])
def test_a_budget_of_thinking_stays_away_where_it_would_be_refused(settings: dict[str, object]) -> None:
    assert "thinking" not in body_of(
        with_settings(asked(tools=(NOOP,), model=OLD), {"reasoning_effort": "low", **settings})
    )


def test_adaptive_thinking_goes_with_a_forced_choice_and_with_any_exchange() -> None:
    assert sets(USER, CALLED, RESULT, reasoning_effort="low")["thinking"] == {"type": "adaptive"}
    assert sets(tool_choice="required", reasoning_effort="low")["thinking"] == {"type": "adaptive"}


def test_web_search_is_the_apis_own_tool() -> None:
    body = body_of(CompletionRequest(NEW, "", (USER,), (NOOP,), web_search=True))
    tools = body["tools"]
    assert isinstance(tools, list)
    assert tools[1:] == [{"type": "web_search_20250305", "name": "web_search"}]


DOG: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20, "description": "What it is called."},
        # A property may be called what a bound is called.
        "minimum": {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]},
        "toys": {"type": "array", "minItems": 2, "items": {"type": "object", "properties": {}}},
        "home": {"$ref": "#/$defs/home"},
    },
    "required": ["name"],
    "$defs": {"home": {"type": "object", "properties": {"city": {"const": {"type": "object"}}}}},
}


def answering(native: bool, **settings: object) -> dict[str, JsonValue]:
    settings_of = ModelSettings.model_validate({"native_output": native, **settings})
    return body_of(CompletionRequest(NEW, "Invent a dog.", (USER,), (), settings_of, output_schema=DOG))


def test_an_output_schema_is_sent_closed_and_with_its_bounds_in_words() -> None:
    assert answering(native=True)["output_config"] == {
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": 'What it is called. Must match: {"maxLength":20}'},
                    "minimum": {
                        "anyOf": [{"type": "integer", "description": 'Must match: {"minimum":3}'}, {"type": "null"}]
                    },
                    "toys": {
                        "type": "array",
                        "items": {"type": "object", "properties": {}, "additionalProperties": False},
                        "description": 'Must match: {"minItems":2}',
                    },
                    "home": {"$ref": "#/$defs/home"},
                },
                "required": ["name"],
                "$defs": {
                    "home": {
                        "type": "object",
                        "properties": {"city": {"const": {"type": "object"}}},
                        "additionalProperties": False,
                    }
                },
                "additionalProperties": False,
            },
        }
    }


def test_an_effort_and_an_output_schema_share_their_field() -> None:
    output = answering(native=True, reasoning_effort="low")["output_config"]
    assert isinstance(output, dict)
    assert (output["effort"], "format" in output) == ("low", True)


def test_a_server_without_schemas_is_asked_in_words() -> None:
    body = answering(native=False)
    assert "output_config" not in body
    assert '"maxLength":20' in str(body["system"])
