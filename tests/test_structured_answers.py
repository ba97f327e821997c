"""Answers that must match a schema: checked by the worker whatever the provider promises, asked for again in bounds."""

import json
import time

import pytest
from pydantic import JsonValue

from activities.answers import check_answer
from activities.plain_patterns import check_patterns
from contracts.agents import AgentSpec
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, failure_of, says, script, transcript_of
from workflows.model_calls import PAUSES_IN_A_ROW

SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"total": {"type": "integer", "minimum": 0}, "items": {"type": "array", "items": {"type": "string"}}},
    "required": ["total", "items"],
    "additionalProperties": False,
}
RIGHT = '{"total": 2, "items": ["a", "b"]}'
ANSWERING = AgentSpec.model_validate({**scripted_agent().model_dump(), "output_schema": SCHEMA})


@pytest.mark.parametrize(
    "text", [RIGHT, f"```json\n{RIGHT}\n```", f"Here it is: {RIGHT}", '{"total": 2.0, "items": ["a", "b"]}']
)
def test_an_answer_that_matches_is_read(text: str) -> None:
    assert check_answer(text, SCHEMA) == ({"total": 2, "items": ["a", "b"]}, ())


@pytest.mark.parametrize(
    ("text", "issue"),
    [
        ("two", "the answer are not valid JSON"),
        ('{"total": 2, "items": ["a"', "not valid JSON"),
        (f"{RIGHT} or {RIGHT}", "more than one"),
        ('{"total": -1, "items": []}', "/total"),
        ('{"total": "2", "items": []}', "/total"),
        ('{"total": NaN, "items": []}', "NaN"),
        ('{"total": 2, "items": [], "extra": 1}', "extra"),
    ],
)
def test_an_answer_that_does_not_match_is_neither_repaired_nor_coerced(text: str, issue: str) -> None:
    answer, issues = check_answer(text, SCHEMA)
    assert answer is None
    assert issue in "\n".join(issues)


async def test_the_result_has_the_answer_as_json(harness: Harness) -> None:
    async with harness.worker(ANSWERING, scripts={"main": script(says(RIGHT))}):
        result = await (await harness.start(PROMPT)).result()
    assert result.output == {"total": 2, "items": ["a", "b"]}
    assert result.text == RIGHT


async def test_a_run_may_ask_for_a_schema_where_its_agent_has_none(harness: Harness) -> None:
    async with harness.worker(scripted_agent(), scripts={"main": script(says(RIGHT))}):
        run = await harness.start({**PROMPT, "options": {"output_schema": SCHEMA}})
        assert (await run.result()).output == {"total": 2, "items": ["a", "b"]}
        assert (await run.query("agent", result_type=AgentSpec)).output_schema == SCHEMA


async def test_a_run_may_not_replace_its_agents_schema(harness: Harness) -> None:
    async with harness.worker(ANSWERING, scripts={"main": script(says(RIGHT))}):
        error, _ = await failure_of(await harness.start({**PROMPT, "options": {"output_schema": {"type": "object"}}}))
    assert (error.type, "has an output_schema of its own" in error.message) == ("InvalidInput", True)


async def test_a_wrong_answer_is_asked_for_again_with_what_is_wrong(harness: Harness) -> None:
    replies = script(says('{"total": -1, "items": []}'), says("Sorry: two."), says(RIGHT))
    async with harness.worker(ANSWERING, scripts={"main": replies}):
        run = await harness.start(PROMPT)
        result = await run.result()
        messages = (await transcript_of(run)).messages
    assert result.output == {"total": 2, "items": ["a", "b"]}
    assert [message.role for message in messages] == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert "/total" in messages[2].text
    assert "not valid JSON" in messages[4].text


async def test_answers_that_never_match_are_a_named_failure(harness: Harness) -> None:
    replies = script(*[says(f"No JSON, {n}.") for n in range(5)])
    async with harness.worker(ANSWERING, scripts={"main": replies}):
        run = await harness.start(PROMPT)
        error, _ = await failure_of(run)
        messages = (await transcript_of(run)).messages
    assert error.type == "ModelBehaviour"
    assert "3 unusable replies in a row" in error.message
    assert [message.text for message in messages if message.role == "assistant"] == ["No JSON, 0.", "No JSON, 1."]


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "(a+)+$"},
        {"pattern": "(a|a)(a|a)"},
        {"pattern": "a*a*b"},
        {"pattern": "^a*a*a*b"},
        {"pattern": "a{1,9}a{1,9}"},
        {"pattern": "a{,9}?b+?"},
        {"pattern": "a?a?"},
        {"pattern": r"\[(a+)+]"},
        {"pattern": "[](](a+)+"},
        {"pattern": "a{2}{3}*"},
        {"patternProperties": {"(a+)+$": {}}},
        {"items": {"anyOf": [{"propertyNames": {"pattern": "(a+)+$"}}]}},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"enum": ["x" * 70_000]},
    ],
)
async def test_a_run_may_not_ask_for_what_could_be_checked_for_ever(
    harness: Harness, schema: dict[str, JsonValue]
) -> None:
    wanted: JsonValue = {"type": "object", "properties": {"x": schema}}
    async with harness.worker(scripted_agent(), scripts={"main": script(says("never asked for"))}):
        error, _ = await failure_of(await harness.start({**PROMPT, "options": {"output_schema": wanted}}))
    assert (error.type, "options.output_schema: /" in error.message) == ("InvalidInput", True)


@pytest.mark.parametrize(
    "pattern",
    ["", "^[A-Z]{2}-[0-9]{4}$", "^[^@]+@[^@]+$", "x+", r"^\d{1,3}\.\d?$", "[])(|*+?{]+", r"\(\|\)\*", "^a.b$", "a{2,}"],
)
def test_a_plain_pattern_may_be_asked_for(pattern: str) -> None:
    check_patterns({"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}})


@pytest.mark.parametrize("pattern", ["^[a]*[a]*b", "a*b", "a{4000}b", "a{4000}a*b"])
def test_the_worst_of_plain_patterns_takes_moments(pattern: str) -> None:
    schema: dict[str, JsonValue] = {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}}
    check_patterns(schema)
    began = time.perf_counter()
    answer, issues = check_answer(json.dumps({"x": "a" * 4_096}), schema)
    assert (answer, len(issues)) == (None, 1)
    assert time.perf_counter() - began < 5


def test_a_schema_that_cannot_be_enforced_is_refused_at_the_start_of_the_worker() -> None:
    from activities.catalog import Catalog, CatalogError

    wrong = ANSWERING.model_copy(update={"output_schema": {"type": "array"}})
    with pytest.raises(CatalogError, match="'tester': output_schema: /: the root must have"):
        Catalog([wrong])


async def test_a_paused_turn_is_no_answer_where_one_must_match(harness: Harness) -> None:
    """After so many pauses the last turn counts as the answer: then it has to be one."""
    paused = {**says("Still searching."), "paused": True}
    replies = script(*[paused] * (PAUSES_IN_A_ROW + 1), says(RIGHT))
    async with harness.worker(ANSWERING, scripts={"main": replies}):
        result = await (await harness.start(PROMPT)).result()
    assert (result.text, result.output) == (RIGHT, {"total": 2, "items": ["a", "b"]})
