"""Optimistic concurrency: a call says which version it saw, and a result says which version it made."""

from collections.abc import Mapping

from pydantic import JsonValue

from activities.tooling import Tool, ToolError, tool
from contracts.outcomes import ToolOutcome
from contracts.policies import ResourceVersionRule
from contracts.runs import AgentRunResult, ToolResultsPage
from contracts.tools import ToolInvocation
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, event_types, says, script

REQUIRED = ResourceVersionRule(require_expected=True)
NO_SCALAR = "expected resource version must be a scalar value, at /resource_version"
MISSING = "tool invocation requires an expected resource version at /resource_version"


async def played(
    harness: Harness, made: Tool, *arguments: Mapping[str, JsonValue]
) -> tuple[AgentRunResult, list[ToolOutcome], list[str]]:
    """A run that calls the tool once for each of these arguments: its result, complete outcomes and event types."""
    replies = {"main": script(calls(*((made.name, each) for each in arguments)), says("Seen."))}
    async with harness.worker(scripted_agent(made), scripts=replies):
        run = await harness.start(PROMPT)
        result = await run.result()
        page: ToolResultsPage = await run.query("tool_results", result_type=ToolResultsPage)
        return result, [record.outcome for record in page.records], await event_types(run)


async def test_a_call_is_made_only_with_the_version_it_expects(harness: Harness) -> None:
    """C18."""
    seen: list[str | None] = []

    @tool(side_effect="write", resource_version=REQUIRED)
    def save(resource_version: object = None, *, invocation: ToolInvocation) -> str:
        """Save."""
        seen.append(invocation.expected_resource_version)
        return "saved"

    given: list[JsonValue] = ["v1", 12, True, 1.5, None, {}, []]
    result, _, types = await played(harness, save, *({"resource_version": each} for each in given), {})
    assert seen == ["v1", "12", "true", "1.5"]
    told = [record.error.message if record.error else "" for record in result.tool_results]
    assert told == ["", "", "", "", NO_SCALAR, NO_SCALAR, NO_SCALAR, MISSING]
    refused = [record for record in result.tool_results if record.error]
    assert {record.error.category for record in refused if record.error} == {"invalid_input"}
    assert {record.attempts for record in refused} == {0}
    # What is not made is no effect.
    assert len(result.effects) == types.count("tool_started") == 4


async def test_nobody_is_asked_to_approve_a_call_that_cannot_be_made(harness: Harness) -> None:
    @tool(side_effect="write", approval="always", resource_version=REQUIRED)
    def save(resource_version: object = None, *, invocation: ToolInvocation) -> str:
        """Save."""
        raise AssertionError("made without a version")

    result, _, types = await played(harness, save, {})
    assert result.status == "completed"
    assert "approval_requested" not in types


async def test_the_version_may_be_anywhere_in_the_arguments_and_need_not_be_required(harness: Harness) -> None:
    seen: list[str | None] = []

    @tool(side_effect="read", resource_version=ResourceVersionRule(argument="/document/a~1b~0c/0"))
    def look(document: dict[str, list[str]], invocation: ToolInvocation) -> str:
        """Look."""
        seen.append(invocation.expected_resource_version)
        return "seen"

    await played(harness, look, {"document": {"a/b~c": ["v7"]}}, {"document": {}})
    assert sorted(map(str, seen)) == ["None", "v7"]


RETURNED: list[tuple[object, str | None]] = [
    ({"meta": {"etag": "W/2"}}, "W/2"),
    ({"meta": {"etag": 3}}, "3"),
    ({"meta": {"etag": False}}, "false"),
    # Missing, or no scalar: none, and no failure.
    ({"name": "x"}, None),
    ({"meta": {"etag": {"n": 1}}}, None),
    ("a text", None),
    # The tool's own word counts.
    (ToolOutcome(ok=True, data={"meta": {"etag": "W/2"}}, resource_version="own"), "own"),
]


async def test_the_version_a_result_made_becomes_the_outcomes(harness: Harness) -> None:
    @tool(side_effect="read", resource_version=ResourceVersionRule(outcome="/meta/etag"))
    def save(number: int) -> object:
        """Save."""
        return RETURNED[number][0]

    _, outcomes, _ = await played(harness, save, *({"number": number} for number in range(len(RETURNED))))
    assert all(outcome.ok for outcome in outcomes)
    assert [outcome.resource_version for outcome in outcomes] == [version for _, version in RETURNED]


async def test_by_default_it_is_a_field_named_resource_version(harness: Harness) -> None:
    @tool(side_effect="read", resource_version=ResourceVersionRule())
    def save() -> dict[str, str]:
        """Save."""
        return {"resource_version": "v2"}

    _, (outcome,), _ = await played(harness, save, {})
    assert outcome.resource_version == "v2"


async def test_a_conflict_is_told_as_one_and_nothing_is_done(harness: Harness) -> None:
    @tool(side_effect="write", resource_version=REQUIRED)
    def save(resource_version: str, invocation: ToolInvocation) -> str:
        """Save."""
        if invocation.expected_resource_version != "v2":
            raise ToolError("conflict", "the document is at v2 by now")
        return "saved"

    result, _, _ = await played(harness, save, {"resource_version": "v1"}, {"resource_version": "v2"})
    assert [record.error.category if record.error else None for record in result.tool_results] == ["conflict", None]
    assert [effect.state for effect in result.effects] == ["failed", "done"]
