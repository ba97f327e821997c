"""Answers that must match a schema: checked by the worker whatever the provider promises, asked for again in bounds."""

import pytest
from pydantic import JsonValue

from activities.answers import check_answer
from contracts.agents import AgentSpec
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, failure_of, says, script, transcript_of

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


def test_a_schema_that_cannot_be_enforced_is_refused_at_the_start_of_the_worker() -> None:
    from activities.catalog import Catalog, CatalogError

    wrong = ANSWERING.model_copy(update={"output_schema": {"type": "array"}})
    with pytest.raises(CatalogError, match="'tester': output_schema: /: the root must have"):
        Catalog([wrong])
