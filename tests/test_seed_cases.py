"""The cases of shared/cases, each as this system answers it: where the documents disagree, REQUIREMENTS.md says how."""

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, AnyUrl, BaseModel, Field, JsonValue

from activities.arguments import propose
from activities.catalog import Catalog, CatalogError
from activities.derivation import derive_schema
from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.returned import outcome_of
from activities.schemas import SchemaRefused, check_schema, compile_schema
from activities.settling import settle
from activities.tooling import ToolError, ToolRefused, tool
from contracts.messages import InvalidToolCall, ToolCall
from contracts.outcomes import OUTCOME_MAX_BYTES
from contracts.policies import OutputLimits
from contracts.projection import check_report, model_text
from contracts.runs import ToolResultsPage
from contracts.tools import ToolContract, ToolInvocation
from tests.providers.model_server import ModelServer, chat_reply
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Harness,
    calls,
    event_of,
    event_types,
    events_of,
    failure_of,
    says,
    script,
    transcript_of,
)
from tests.support.loopback import loopback_client

SHARED = Path(__file__).resolve().parents[2] / "shared" / "cases"
CASES = {case["id"]: case for case in json.loads((SHARED / "seed_behaviour.json").read_text())}
SCHEMA_VECTORS = {case["id"]: case for case in json.loads((SHARED / "vectors.json").read_text())["schema"]}
Schema = dict[str, JsonValue]


def inside(schema: JsonValue) -> Schema:
    """A tool's schema with this one as its field `value`: a tool's root is always an object."""
    part = {**schema} if isinstance(schema, dict) else schema
    definitions = part.pop("$defs", None) if isinstance(part, dict) else None
    return {"type": "object", "properties": {"value": part}, **({"$defs": definitions} if definitions else {})}


def found(schema: Schema, arguments: JsonValue) -> set[tuple[str, str]]:
    return {(issue.pointer, issue.schema_path) for issue in compile_schema(schema).issues(arguments)}


def verdict(arguments: str, schema: Schema) -> ToolCall | InvalidToolCall:
    contract = ToolContract(name="t", description="d", input_schema=schema, side_effect="read")
    return propose(RawToolCall("t", arguments), "call_1", {"t": contract}, truncated=False)


# Schemas.


class Unit(StrEnum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


def test_c01_the_schema_of_a_tool() -> None:
    @tool(side_effect="read", description="d")
    def get_weather(
        city: str, unit: Annotated[Unit, Field(description="Preferred temperature unit.")] = Unit.CELSIUS
    ) -> str:
        return city

    published = re.search(r"model schema == (\{.*\}); tool name", CASES["C01"]["expect"])
    assert published is not None
    assert get_weather.input_schema == json.loads(published[1])
    assert get_weather.name == "get_weather"


def test_c06_independent_issues_with_both_their_places() -> None:
    case = SCHEMA_VECTORS["three-violations"]
    places = found(case["schema"], case["instance"])
    assert places == {(issue["instance_path"], issue["schema_path"]) for issue in case["issues"]}
    for instance, path in places:
        assert f"({instance},{path})" in CASES["C06"]["expect"]


# Refused when a tool is registered, where the seed finds out with each call.
REFUSED = {"ref-remote", "neg-minItems", "self-ref-depth"}
# Enforced here. `{}` as their value asks for nothing, so that the vector's own instance is valid.
ENFORCED = {name for name in SCHEMA_VECTORS if name.startswith("unsupported-")}


@pytest.mark.parametrize("id", sorted(set(SCHEMA_VECTORS) - REFUSED - ENFORCED - {"format-ignored"}))
def test_schema_vectors_are_judged_as_published(id: str) -> None:
    case = SCHEMA_VECTORS[id]
    schema = inside(case["schema"])
    check_schema(schema)
    expected = {
        ("/value" + issue["instance_path"].rstrip("/"), issue["schema_path"].rstrip("/")) for issue in case["issues"]
    }
    places = found(schema, {"value": case["instance"]})
    if id == "false-schema":
        # The library loses the place of a schema that is just `false`.
        assert places
        return
    assert {instance for instance, _ in places} == {instance for instance, _ in expected}
    assert bool(places) is not case["valid"]
    for _, path in places:
        # What stands behind a reference is named by the way there, in the seed by where it is.
        assert any(path.removeprefix("/properties/value").split("/")[-1] == end.split("/")[-1] for _, end in expected)


@pytest.mark.parametrize("id", sorted(REFUSED))
def test_schema_vectors_that_cannot_be_enforced_are_refused_at_registration(id: str) -> None:
    schema = SCHEMA_VECTORS[id]["schema"]
    # Inside another document "#" would be that document.
    with pytest.raises(SchemaRefused):
        check_schema(schema if id == "self-ref-depth" else inside(schema))


@pytest.mark.parametrize(
    ("keyword", "schema", "broken"),
    [
        ("patternProperties", {"patternProperties": {"^x": {"type": "integer"}}}, {"x": "a"}),
        ("propertyNames", {"propertyNames": {"maxLength": 1}}, {"xy": 1}),
        ("dependentRequired", {"dependentRequired": {"a": ["b"]}}, {"a": 1}),
        ("dependentSchemas", {"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}),
        ("unevaluatedProperties", {"unevaluatedProperties": False}, {"a": 1}),
        ("prefixItems", {"prefixItems": [{"type": "integer"}]}, ["a"]),
        ("contains", {"contains": {"type": "integer"}}, ["a"]),
        ("minContains", {"contains": {"type": "integer"}, "minContains": 2}, [1]),
        ("maxContains", {"contains": {"type": "integer"}, "maxContains": 1}, [1, 2]),
        ("unevaluatedItems", {"unevaluatedItems": False}, [1]),
        ("if", {"if": {"type": "integer"}, "then": {"minimum": 3}, "else": {"maxLength": 1}}, 1),
        ("then", {"if": {"type": "integer"}, "then": {"minimum": 3}}, 2),
        ("else", {"if": {"type": "integer"}, "else": {"maxLength": 1}}, "xy"),
    ],
)
def test_c08_every_assertion_is_enforced_and_none_is_ignored(keyword: str, schema: Schema, broken: JsonValue) -> None:
    assert keyword in CASES["C08"]["given"]
    assert found(inside(schema), {"value": broken})


def test_a_format_is_checked_or_refused_where_the_seed_ignores_it() -> None:
    case = SCHEMA_VECTORS["format-ignored"]
    assert found(inside(case["schema"]), {"value": case["instance"]})
    with pytest.raises(SchemaRefused, match="color"):
        check_schema(inside({"format": "color"}))


def test_r12_a_root_that_no_provider_takes_is_refused_by_name_and_others_go_on() -> None:
    circle: Schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    foreign = ToolContract(name="circle", description="d", input_schema=circle, side_effect="read", task_queue="q")

    @tool(side_effect="read")
    def fine(a: int) -> int:
        """Work."""
        return a

    with pytest.raises(CatalogError, match="tool 'circle'"):
        Catalog([scripted_agent(foreign, fine)])
    assert list(Catalog([scripted_agent(fine)]).tools) == ["fine"]


class Inner(BaseModel):
    a: int


def test_rx03_odd_types_are_enforced_as_published_and_strict_mode_is_never_asked_for() -> None:
    class Odd(BaseModel):
        pair: tuple[int, int]
        amount: Decimal
        labels: dict[str, int]
        limit: int | None = 3
        inner: Inner = Field(description="Beside a reference.")
        site: AnyUrl

    schema = derive_schema(Odd)
    legal: dict[str, JsonValue] = {
        "pair": [1, 2],
        "amount": "1.50",
        "labels": {"x": 1},
        "inner": {"a": 1},
        "site": "https://example.org/",
    }
    assert not found(schema, legal)
    wrong: dict[str, JsonValue] = {
        "pair": [1, 2, 3],
        "amount": True,
        "labels": {"x": "1"},
        "limit": "3",
        "inner": {"a": 1, "b": 2},
        "site": "no uri",
    }
    for name, value in wrong.items():
        places = {pointer for pointer, _ in found(schema, {**legal, name: value})}
        assert places, name
        assert all(pointer.startswith(f"/{name}") for pointer in places)
    # What is published is one schema for every provider and both versions of pydantic: nothing looks ahead.
    assert "(?" not in json.dumps(schema)
    contract = ToolContract(name="t", description="d", input_schema=schema, side_effect="read")
    request = CompletionRequest("m", "i", (), (contract,))
    assert "strict" not in json.dumps(ChatCompletions().body(request, stream=False))


@pytest.mark.parametrize("reference", ["http://127.0.0.1:1/x", "file:///etc/hostname"])
def test_r44_a_reference_out_of_an_output_schema_is_refused_by_name(reference: str) -> None:
    outside: Schema = {"type": "object", "properties": {"a": {"$ref": reference}}}
    with pytest.raises(ToolRefused, match=rf"tool .*f: .*{re.escape(reference)}"):

        @tool(side_effect="read", description="d", output_schema=outside)
        def f() -> None: ...

    foreign = ToolContract(
        name="f",
        description="d",
        input_schema={"type": "object"},
        output_schema=outside,
        side_effect="read",
        task_queue="q",
    )
    with pytest.raises(CatalogError, match=rf"tool 'f': .*{re.escape(reference)}"):
        Catalog([scripted_agent(foreign)])


# Arguments.


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('\n```json\n{"a": 1}\n```\n', {"a": 1}),
        ('{"a": "```json\\n{}\\n```"}', {"a": "```json\n{}\n```"}),
        # The seed takes what is between the first and the last bracket, and then cannot read it.
        ('Here {"a":1} see [2]', {"a": 1}),
        ("Here you go:\n```json\n[1]\n```", None),
        ("not json", None),
    ],
)
def test_c50_fences_and_prose_are_left_out_and_nothing_else(text: str, arguments: JsonValue) -> None:
    call = verdict(text, {"type": "object"})
    if arguments is None:
        assert isinstance(call, InvalidToolCall)
        assert "not valid JSON" in call.issues[0].message
    else:
        assert isinstance(call, ToolCall)
        assert call.arguments == arguments


class Summary(BaseModel):
    title: str = Field(max_length=2)


class Bounds(BaseModel):
    title: str = Field("é😀", min_length=1, max_length=2)
    summaries: list[Summary] = Field([], min_length=1, max_length=2)
    ratio: float = Field(0.5, ge=0, le=1)
    count: int = Field(9007199254740993, ge=9007199254740993, le=9007199254740994)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ('{"title": "é😀"}', None),
        ('{"title": "x"}', None),
        ('{"title": ""}', "/title"),
        ('{"title": "é😀é"}', "/title"),
        ('{"summaries": [{"title": "ab"}, {"title": "é😀"}]}', None),
        ('{"summaries": []}', "/summaries"),
        ('{"summaries": [{"title": "a"}, {"title": "b"}, {"title": "c"}]}', "/summaries"),
        ('{"summaries": [{"title": "abc"}]}', "/summaries/0/title"),
        ('{"ratio": 0, "count": 9007199254740993}', None),
        ('{"ratio": 1, "count": 9007199254740994}', None),
        ('{"ratio": 1.0000001}', "/ratio"),
        ('{"ratio": -0.1}', "/ratio"),
        ('{"count": 9007199254740992}', "/count"),
        ('{"count": 9007199254740995}', "/count"),
    ],
)
def test_c60_bounds_are_inclusive_exact_and_checked_before_the_tool(arguments: str, place: str | None) -> None:
    call = verdict(arguments, derive_schema(Bounds))
    if place is None:
        assert isinstance(call, ToolCall)
        assert call.arguments == json.loads(arguments)
    else:
        assert isinstance(call, InvalidToolCall)
        assert [issue.pointer for issue in call.issues] == [place]


# Projection.


async def test_c28_the_whole_stays_and_the_audit_is_of_what_was_read(harness: Harness) -> None:
    """And C30: the record holds no content, says each thing once, and is of one mind with itself."""

    @tool(side_effect="read", model_output=OutputLimits(max_bytes=256))
    def dump(size: int) -> str:
        """Return that much."""
        return "START" + "y" * size + "STOP!"

    replies = script(calls(("dump", {"size": 5_000}), ("dump", {"size": 2})), says("Done."))
    async with harness.worker(scripted_agent(dump), scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": {"tool_output": {"max_bytes": 1_024}}})
        await run.result()
        page = await run.query("tool_results", result_type=ToolResultsPage)
        messages = (await transcript_of(run)).messages
        events = await events_of(run)
    assert [len(record.outcome.text) for record in page.records] == [5_010, 12]
    read = [message.text for message in messages if message.role == "tool"]
    assert len(read[0].encode()) <= 256
    assert read[1] == "STARTyySTOP!"
    audits = [event for event in events if event.type == "tool_output_projection_recorded"]
    assert [event.data["sha256"] for event in audits] == [hashlib.sha256(text.encode()).hexdigest() for text in read]
    assert [(event.data["call_id"], event.data["tool"]) for event in audits] == [("call_1", "dump"), ("call_2", "dump")]
    assert not any("yyy" in event.model_dump_json() for event in events)
    assert [event.data["call_id"] for event in events if event.type == "tool_output_truncated"] == ["call_1"]
    projection = page.records[0].outcome.projection
    assert projection is not None
    assert audits[0].data["report"] == projection.report.model_dump(mode="json")
    assert projection.report.max_bytes == 256
    check_report(projection.report)
    with pytest.raises(ValueError, match="limiting"):
        check_report(projection.report.model_copy(update={"limiting": "none"}))
    assert "report" not in audits[1].data


@pytest.mark.parametrize(
    "value",
    ["x" * 2_097_152, {"k": "x" * 1_900_000}, "\ufffd" * 700_000, ["i" * 300_000] * 10],
    ids=["text", "data", "three bytes each", "parts"],
)
def test_r31_a_result_is_bounded_before_it_leaves_and_says_how_much_there_was(value: Any) -> None:
    contract = ToolContract(name="t", description="d", input_schema={"type": "object"}, side_effect="read")
    invocation = ToolInvocation(
        call_id="call_1", tool="t", version="1", arguments={}, idempotency_key="k", action_digest="d"
    )
    outcome = settle(contract, invocation, outcome_of(value))
    assert outcome.ok
    assert len(outcome.model_dump_json().encode()) <= OUTCOME_MAX_BYTES + OutputLimits().max_bytes
    whole = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    assert outcome.metadata["original_bytes"] == len(whole.encode())
    read = model_text(outcome)
    assert str(len(whole.encode())) in read
    assert len(read.encode()) <= OutputLimits().max_bytes


# Whole runs.


async def test_c48_a_registry_of_one_calculator(harness: Harness) -> None:
    @tool(side_effect="read")
    async def calculator(expr: str) -> str:
        """Add two numbers."""
        await asyncio.sleep(0.02)
        left, plus, right = expr.partition("+")
        if not plus:
            raise ToolError("invalid_input", "Unsupported expr")
        return str(int(left) + int(right))

    replies = script(
        calls(("calculator", {"expr": "3+5"}), ("calculator", {}), ("x", {}), ("calculator", {"expr": "3*5"})),
        says("8"),
    )
    async with harness.worker(scripted_agent(calculator), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        result = await run.result()
        page = await run.query("tool_results", result_type=ToolResultsPage)
    assert result.text == "8"
    summed, missing, unknown, unsupported = result.tool_results
    assert [answered.call_id for answered in result.tool_results] == ["call_1", "call_2", "call_3", "call_4"]
    assert [answered.tool for answered in result.tool_results] == ["calculator", "calculator", "x", "calculator"]
    assert (summed.ok, summed.text) == (True, "8")
    assert summed.duration_ms >= 20
    for refused, words in ((missing, "expr"), (unknown, "Available tools: calculator"), (unsupported, "Unsupported")):
        assert not refused.ok
        assert refused.error is not None
        assert words in refused.error.message
    assert [(refused.duration_ms, refused.attempts) for refused in (missing, unknown)] == [(0, 0), (0, 0)]
    assert unsupported.duration_ms >= 20
    assert page.records[1].outcome.metadata["schema_issues"] == [
        {"instance_path": "/expr", "schema_path": "/required", "message": 'missing field "expr"'}
    ]


async def test_c51_a_model_that_got_the_arguments_wrong_tries_again(harness: Harness) -> None:
    """At the schema, and at what only the tool can check: neither ends the run, even where failures of tools count."""
    ran: list[int] = []

    def even(value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value

    @tool(side_effect="write")
    def halve(number: Annotated[int, AfterValidator(even)]) -> int:
        """Halve an even number."""
        ran.append(number)
        return number // 2

    wrong: dict[str, JsonValue] = {"calls": [{"tool": "halve", "arguments": '{"number": '}]}
    replies = script(wrong, calls(("halve", {"number": 3})), calls(("halve", {"number": 4})), says("2"))
    async with harness.worker(scripted_agent(halve), scripts={"main": replies}):
        run = await harness.start(PROMPT)
        result = await run.result()
        asked = (await event_types(run)).count("model_completed")
    assert (ran, asked, result.status) == ([4], 4, "completed")
    first, second, third = (answered.text for answered in result.tool_results)
    assert "the arguments are not valid JSON" in first
    assert "number: Value error, must be even" in second
    assert third == "2"
    assert [effect.state for effect in result.effects] == ["failed", "done"]


class Talker:
    """A model that plays completions, provider ids included."""

    def __init__(self, *completions: Completion) -> None:
        self._completions = completions

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        return self._completions[sum(message.role == "assistant" for message in request.messages)]


async def test_c53_calls_of_one_reply_overlap_and_are_answered_in_its_order(harness: Harness) -> None:
    """The first call ends once the run has noted the end of the second: no clock is asked."""
    second_is_done = asyncio.Event()

    @tool(side_effect="read", timeout=60)
    async def wait(name: str) -> str:
        """Wait for the second call, unless this is it."""
        if name == "first":
            await second_is_done.wait()
        return name

    asked = [RawToolCall("wait", json.dumps({"name": name}), own) for name, own in (("first", "A"), ("second", "B"))]
    model = Talker(Completion("", tuple(asked)), Completion("Both."))
    agent = scripted_agent(wait).model_copy(update={"model": "talker:main"})
    async with harness.worker(agent, providers={"talker": model}):
        run = await harness.start(PROMPT)
        await event_of(run, "tool_completed", lambda event: event.data["call_id"] == "call_2")
        second_is_done.set()
        await run.result()
        messages = (await transcript_of(run)).messages
    assert [call.provider_call_id for call in messages[1].tool_calls] == ["A", "B"]
    assert [(message.call_id, message.text) for message in messages[2:4]] == [("call_1", "first"), ("call_2", "second")]


@pytest.mark.parametrize("recover", [True, False])
async def test_c58_an_async_tool_that_fails_is_told_or_ends_the_run(harness: Harness, recover: bool) -> None:
    ran: list[str] = []

    @tool(side_effect="write")
    async def find(item: str) -> str:
        """Find an item."""
        ran.append(item)
        raise ToolError("not_found", "Unknown item")

    replies = script(calls(("find", {"item": "a"}), ("find", {"item": "b"})), says("There is none."))
    async with harness.worker(scripted_agent(find), scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": {"on_tool_error": "tell_model" if recover else "fail_run"}})
        if recover:
            result = await run.result()
            assert result.text == "There is none."
            assert [json.loads(answered.text)["error"]["message"] for answered in result.tool_results] == [
                "Unknown item"
            ] * 2
        else:
            error, _ = await failure_of(run)
            assert (error.type, error.message) == ("ToolFailed", "find: not_found: Unknown item")
    assert ran == (["a", "b"] if recover else ["a"])


@pytest.mark.parametrize("bad", [("step", {"name": 5}), ("nope", {})], ids=["invalid", "unknown"])
async def test_a_failure_before_any_call_ends_such_a_run_before_any_call(
    harness: Harness, bad: tuple[str, Mapping[str, JsonValue]]
) -> None:
    @tool(side_effect="write")
    def step(name: str) -> str:
        """Do a step."""
        raise AssertionError("ran beside a call that cannot run")

    replies = script(calls(("step", {"name": "a"}), bad), says("-"))
    async with harness.worker(scripted_agent(step), scripts={"main": replies}):
        run = await harness.start({**PROMPT, "options": {"on_tool_error": "fail_run"}})
        error, partial = await failure_of(run)
        assert "tool_started" not in await event_types(run)
    assert error.type == "ToolFailed"
    assert [answered.ok for answered in partial.tool_results] == [False, False]
    assert partial.effects == ()


async def test_recovery_is_bounded_by_the_rounds(harness: Harness) -> None:
    @tool(side_effect="read")
    def broken() -> str:
        """Never work."""
        raise ToolError("unavailable", "down")

    replies = script(*[calls(("broken", {}))] * 4)
    async with harness.worker(scripted_agent(broken, max_rounds=2), scripts={"main": replies}):
        error, partial = await failure_of(await harness.start(PROMPT))
    assert (error.type, partial.rounds, len(partial.tool_results)) == ("MaxRoundsExceeded", 2, 3)
    assert "of agent tester" in error.message


# What models send over the wire.

READ: dict[str, Any] = {
    "id": "c1",
    "type": "function",
    "function": {"name": "note", "arguments": '{"text":"all of it"}'},
}
HALF: dict[str, Any] = {
    "id": "c2",
    "type": "function",
    "function": {"name": "note", "arguments": '{"text":"# T\\nPart 1'},
}


@pytest.mark.parametrize(
    ("wanted", "finish_reason", "told"),
    [
        ([HALF], "tool_calls", "not valid JSON"),
        ([HALF], "length", "cut off by its length limit"),
        ([READ, HALF], "length", "cut off by its length limit"),
        ([READ], "length", "cut off by its length limit"),
    ],
    ids=["R-06 and R-08 B", "R-08 A", "R-08 C", "R-08 D"],
)
async def test_a_call_cut_off_or_malformed_runs_nothing_and_stays_legal(
    harness: Harness, wanted: list[dict[str, Any]], finish_reason: str, told: str
) -> None:
    @tool(side_effect="write")
    def note(text: str) -> str:
        """Write."""
        raise AssertionError("ran a call that was not whole")

    agent = scripted_agent(note).model_copy(update={"model": "openai:any"})
    replies = [
        chat_reply({"role": "assistant", "content": None, "tool_calls": [*wanted]}, finish_reason),
        chat_reply({"role": "assistant", "content": "Sorry."}),
    ]
    async with ModelServer(replies) as server, loopback_client() as http:
        async with harness.worker(
            agent, providers={"openai": HttpModel(http, ChatCompletions(), server.base_url, "any-key-x")}
        ):
            run = await harness.start(PROMPT)
            result = await run.result()
            invalid = [event.data["raw"] for event in await events_of(run) if event.type == "tool_invalid"]
        (_, again) = server.requests
    assert result.text == "Sorry."
    assert [told in answered.text for answered in result.tool_results] == [True] * len(wanted)
    assert invalid == [call["function"]["arguments"] for call in wanted]
    assert again.json is not None
    sent = again.json["messages"]
    assert isinstance(sent, list)
    asked = next(message for message in sent if isinstance(message, dict) and message["role"] == "assistant")
    assert isinstance(asked, dict)
    assert isinstance(asked["tool_calls"], list)
    for call in asked["tool_calls"]:
        assert isinstance(call, dict)
        assert isinstance(call["function"], dict)
        assert isinstance(json.loads(str(call["function"]["arguments"])), dict)
