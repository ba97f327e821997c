"""At the door: from the text a model wrote to a call that may run, or to one that must not and why."""

import json

import pytest
from pydantic import JsonValue, TypeAdapter

from activities.arguments import RAW_MAX_BYTES, UnreadableArguments, propose, read_arguments
from activities.providers.interface import RawToolCall
from contracts.canonical import canonical_json
from contracts.messages import InvalidToolCall, Message, ProposedCall, ToolCall, illegality
from contracts.tools import ToolContract

ORDER: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "amount": {"type": "integer"},
        "ratio": {"type": "number"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "note": {},
    },
    "additionalProperties": False,
    "$defs": {"line": {"type": "object", "properties": {"count": {"type": "integer"}}}},
}
TOOLS = {
    name: ToolContract(name=name, description="d", input_schema=ORDER, side_effect="write")
    for name in ("refund_order", "find_order")
}


def verdict(arguments: str, tool: str = "refund_order", truncated: bool = False) -> ToolCall | InvalidToolCall:
    return propose(RawToolCall(tool, arguments, "p1"), "call_1", TOOLS, truncated)


def refusal(arguments: str, tool: str = "refund_order", truncated: bool = False) -> InvalidToolCall:
    call = verdict(arguments, tool, truncated)
    assert isinstance(call, InvalidToolCall)
    return call


def accepted(arguments: str) -> dict[str, JsonValue]:
    call = verdict(arguments)
    assert isinstance(call, ToolCall)
    return call.arguments


def test_a_valid_call_keeps_both_ids_and_its_tools_name_in_lower_case() -> None:
    assert verdict('{"order_id":"o"}', "Refund_Order") == ToolCall(
        call_id="call_1", tool="refund_order", arguments={"order_id": "o"}, provider_call_id="p1"
    )


@pytest.mark.parametrize("text", ["", " \n\t", "{}"])
def test_no_text_means_no_arguments(text: str) -> None:
    assert accepted(text) == {}


@pytest.mark.parametrize(
    "text",
    [
        '{"order_id": "o"}',
        '\n```json\n{"order_id": "o"}\n```\n',
        'Sure, here you go:\n```\n{"order_id": "o"}```\nAnything else?',
        'Here {"order_id": "o"} see [2] and {placeholder}',
        '\ufeff{"order_id": "o"}',
    ],
)
def test_prose_and_fences_around_one_object_are_left_out(text: str) -> None:
    assert accepted(text) == {"order_id": "o"}


@pytest.mark.parametrize("inner", ["}", '{"a": 1}', '```json\n{"a": 1}\n```', '\\" } {'])
def test_braces_and_fences_inside_a_string_are_text(inner: str) -> None:
    assert accepted(f"```json\n{json.dumps({'order_id': inner})}\n```") == {"order_id": inner}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("not json", "not valid JSON"),
        ("[]", "not an array"),
        ('[{"order_id": "o"}]', "not an array"),
        ('"{}"', "not a string"),
        ("null", "not null"),
        ("5", "not a number"),
        ("true", "not a boolean"),
        ('{"order_id": "a"} {"order_id": "b"}', "more than one"),
        ('{"order_id": "a"}{"order_id": "a"}', "more than one"),
        ('{"order_id": "a"', "not valid JSON: Expecting ',' delimiter at character 16"),
        ('{"order_id": "a"}}', "not valid JSON"),
        ('{"order_id": "a"} {"amount": ', "not valid JSON"),
        ('{"note": {"order_id": "a"}', "not valid JSON"),
        ('[{"order_id": "a"},', "not valid JSON"),
        ('{\'note\': {"order_id": "a"}}', "not valid JSON"),
        ("{'order_id': 'a'} {\"order_id\": \"b\"}", "not valid JSON"),
        ('{note: {"order_id": "a"}}', "not valid JSON"),
        ('{// why\n"order_id": "a"}', "not valid JSON"),
        ('{"order_id": "a",}', "not valid JSON"),
        ('{"order_id": "line\nbreak"}', "not valid JSON"),
        ('{"order_id": "a", "order_id": "b"}', 'the key "order_id" is there twice'),
        ('so: {"note": {"a": 1, "a": 1}}', "twice"),
        ('{"ratio": NaN}', "JSON has no NaN"),
        ('{"ratio": -Infinity}', "JSON has no -Infinity"),
        ('{"ratio": 1e400}', "too large"),
        ('{"amount": ' + "9" * 5_000 + "}", "not valid JSON"),
        ('{"note": ' + "[" * 64 + "]" * 64 + "}", "at most 64 levels"),
        ('{"note": ' + "[" * 100_000, "at most 64 levels"),
        ("so: " + '{"a":' * 100_000, "at most 64 levels"),
    ],
)
def test_text_that_is_not_exactly_one_object_is_refused_in_words(text: str, told: str) -> None:
    call = refusal(text)
    assert call.reason == "invalid_arguments"
    assert len(call.issues) == 1
    assert told in call.issues[0].message
    assert call.issues[0].pointer == "/"
    assert call.arguments == {}


def test_sixty_four_levels_are_fine() -> None:
    assert accepted('{"note": ' + "[" * 63 + "]" * 63 + "}")


def test_r06_a_malformed_call_stays_legal_in_the_transcript_and_its_text_is_kept() -> None:
    text = '{"path": "/tmp/a", "content": "abc'
    call = refusal(text)
    assert call.raw == text
    shown = Message(role="assistant", tool_calls=(call.as_call(),))
    answer = Message(role="tool", call_id="call_1", ok=False, text="not valid JSON")
    assert illegality([Message(role="user", text="go"), shown, answer]) is None
    assert TypeAdapter(ProposedCall).validate_json(call.model_dump_json()) == call


@pytest.mark.parametrize(
    "text",
    [
        '{"steps":["make clean","make test"',
        '{"path":"README.md","content":"# T\\nPart 1',
        '{"order_id":"complete"}',
        "",
    ],
)
def test_r08_no_call_of_a_truncated_reply_may_run_not_even_a_complete_one(text: str) -> None:
    call = refusal(text, truncated=True)
    assert call.reason == "truncated_reply"
    assert "cut off by its length limit" in call.issues[0].message
    assert "smaller call" in call.issues[0].message
    assert call.arguments in ({}, {"order_id": "complete"})


def test_an_unknown_tool_is_told_with_the_available_names() -> None:
    call = refusal('{"a": 1}', "nope")
    assert call.reason == "unknown_tool"
    assert call.issues[0].message == 'there is no tool "nope". Available tools: refund_order, find_order'
    assert call.arguments == {"a": 1}


def test_an_unknown_name_becomes_one_that_a_provider_takes_back() -> None:
    assert refusal("{}", "functions.Find order\ud800!").tool == "functions_find_order__"
    assert refusal("{}", "").tool == "_"
    assert len(refusal("{}", "x" * 500).tool) == 64


def test_the_list_of_available_tools_is_bounded() -> None:
    tools = {f"tool_{number}": TOOLS["find_order"] for number in range(200)}
    call = propose(RawToolCall("nope", ""), "call_1", tools, truncated=False)
    assert isinstance(call, InvalidToolCall)
    assert call.issues[0].message.endswith("tool_49 and 150 more")
    none = propose(RawToolCall("nope", ""), "call_1", {}, truncated=False)
    assert isinstance(none, InvalidToolCall)
    assert none.issues[0].message.endswith("Available tools: none")


def test_arguments_that_break_the_schema_are_told_field_by_field_and_kept() -> None:
    call = refusal('{"order_id": 5, "amount": "5", "force": true}')
    assert call.reason == "invalid_arguments"
    assert {issue.pointer for issue in call.issues} == {"/order_id", "/amount", "/force"}
    assert call.arguments == {"order_id": 5, "amount": "5", "force": True}


def test_an_integer_written_with_a_point_is_handed_on_as_an_integer() -> None:
    arguments = accepted('{"amount": 5.0, "ratio": 1.0, "lines": [{"count": 2.0}], "note": 3.0}')
    assert repr(arguments) == "{'amount': 5, 'ratio': 1.0, 'lines': [{'count': 2}], 'note': 3.0}"


def test_large_integers_stay_exact_up_to_the_wire() -> None:
    digits = "9" * 4_000
    call = verdict(f'{{"amount": 9007199254740993, "note": {digits}}}')
    assert isinstance(call, ToolCall)
    assert call.arguments["amount"] == 9007199254740993
    assert TypeAdapter(ProposedCall).validate_json(call.model_dump_json()) == call
    assert digits in canonical_json(call.arguments)


def test_r05_lone_surrogates_become_replacement_characters_everywhere() -> None:
    assert accepted('{"order_id": "hi \\ud83d", "note": {"\\ud83d": "\ud83d"}}') == {
        "order_id": "hi \ufffd",
        "note": {"\ufffd": "\ufffd"},
    }
    assert accepted('{"order_id": "\\ud83d\\ude42"}') == {"order_id": "🙂"}
    call = propose(RawToolCall("nope\ud83d", '{"\ud83d', "id\ud83d"), "call_1", TOOLS, truncated=False)
    assert "\ufffd" in call.model_dump_json()


def test_two_keys_that_only_differ_in_lone_surrogates_are_one_key_twice() -> None:
    with pytest.raises(UnreadableArguments, match="twice"):
        read_arguments('{"\\ud800": 1, "\\ud801": 2}')


def test_kept_text_is_bounded_and_says_so() -> None:
    call = refusal('{"order_id": "' + "é" * 20_000)
    assert len(call.raw.encode()) <= RAW_MAX_BYTES
    assert call.raw.endswith("of 40014 bytes]")


def test_reading_megabytes_of_broken_text_is_quick() -> None:
    assert "not valid JSON" in refusal("{" * 1_000_000).issues[0].message
    assert "not valid JSON" in refusal("{ a" * 300_000).issues[0].message
    assert "not valid JSON" in refusal('so [{"b": {}} ' + "{ " * 500_000).issues[0].message
    assert "not valid JSON" in refusal('{"a": [' + '{"b": 1},' * 200_000).issues[0].message
