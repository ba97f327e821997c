"""Tool contracts: what is refused and when, what the default says, who sees which part, and what is frozen."""

import errno
import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from pydantic import JsonValue, ValidationError

from activities.catalog import Catalog, CatalogError
from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.tool_secrets import NO_SECRETS
from activities.tooling import Tool, ToolError, ToolRefused, tool
from activities.unexpected import unexpected
from contracts.agents import AgentSpec
from contracts.outcomes import Artifact, ErrorCategory, ToolOutcome, bounded, full_text
from contracts.policies import (
    Capability,
    CompensationRule,
    HeartbeatRule,
    OutputLimits,
    ResourceVersionRule,
    RetryRule,
)
from contracts.runs import ToolResultsPage
from contracts.tools import Reconciliation, ToolContract, ToolInvocation, UndoRequest
from tests.providers.asking import KEY, asked
from tests.providers.model_server import ModelServer, chat_reply
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, pending_approval, says, script
from tests.support.loopback import loopback_client

PLAIN: dict[str, JsonValue] = {
    "name": "look",
    "description": "Look.",
    "input_schema": {"type": "object"},
    "side_effect": "read",
}


def plain(**settings: Any) -> ToolContract:
    return ToolContract.model_validate({**PLAIN, **settings})


# -- the default


def test_the_default_contract() -> None:
    """C11. Different from its source, and why: durations are seconds; timeout is 60, since an attempt without a limit
    would hang a run; the side effect must be said, since "none" by default would repeat a payment; resource_version,
    compensation, heartbeat and model_output are null when they are not used, where the source has a flag or a zero."""
    assert plain().model_dump(mode="json") == {
        "schema_version": 3,
        "name": "look",
        "version": "1",
        "description": "Look.",
        "input_schema": {"type": "object"},
        "output_schema": None,
        "output_validation": "strict",
        "side_effect": "read",
        "idempotency": "unknown",
        "approval": "never",
        "timeout": 60,
        "lost_after": 10,
        "heartbeat": None,
        "retry": {
            "max_attempts": 1,
            "initial_interval": 0.1,
            "max_interval": 5,
            "multiplier": 2,
            "jitter": 0.1,
            "retryable": [],
        },
        "compensation": None,
        "reconciles": False,
        "resource_version": None,
        "capabilities": [],
        "model_output": None,
        "settings": [],
        "task_queue": None,
        "taken_within": 600,
        "completes_later": False,
        "metadata": {},
    }
    assert ResourceVersionRule().model_dump() == {
        "require_expected": False,
        "argument": "/resource_version",
        "outcome": "/resource_version",
    }
    assert CompensationRule().model_dump() == {"timeout": 60, "max_attempts": 1}
    assert HeartbeatRule(timeout=5).model_dump() == {"timeout": 5, "minimum_interval": 0.25}
    assert Capability(name="net").model_dump() == {
        "name": "net",
        "risk": "low",
        "summary": "",
        "resources": (),
        "metadata": {},
    }


def test_the_side_effect_has_to_be_said() -> None:
    contract = {name: value for name, value in PLAIN.items() if name != "side_effect"}
    with pytest.raises(ValidationError, match="side_effect"):
        ToolContract.model_validate(contract)


# -- what is refused, C10


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name"),
    ({"name": "Look"}, "name"),
    ({"name": "call_model"}, "'call_model' is reserved"),
    ({"name": "web_search"}, "'web_search' is reserved"),
    ({"version": ""}, "version"),
    ({"description": ""}, "description"),
    ({"input_schema": []}, "input_schema"),
    ({"input_schema": "{"}, "input_schema"),
    ({"output_schema": "none"}, "output_schema"),
    ({"output_validation": "lax"}, "output_validation"),
    ({"side_effect": "some"}, "side_effect"),
    ({"idempotency": "maybe"}, "idempotency"),
    ({"approval": "sometimes"}, "approval"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": -1}, "timeout"),
    ({"timeout": "inf"}, "timeout"),
    ({"lost_after": 0.5}, "lost_after"),
    ({"retry": {"max_attempts": 0}}, "retry.max_attempts"),
    ({"retry": {"initial_interval": 6}}, "retry.initial_interval is above retry.max_interval"),
    ({"retry": {"initial_interval": -0.1}}, "retry.initial_interval"),
    ({"retry": {"multiplier": 0.9}}, "retry.multiplier"),
    ({"retry": {"multiplier": "inf"}}, "retry.multiplier"),
    ({"retry": {"multiplier": "nan"}}, "retry.multiplier"),
    ({"retry": {"jitter": 1.1}}, "retry.jitter"),
    ({"retry": {"jitter": -0.1}}, "retry.jitter"),
    ({"retry": {"retryable": ["none"]}}, "retry.retryable"),
    ({"capabilities": [{"name": "net"}, {"name": "net"}]}, "two capabilities are named 'net'"),
    ({"capabilities": [{"name": ""}]}, "capabilities.0.name"),
    ({"capabilities": [{"name": "net", "risk": "none"}]}, "capabilities.0.risk"),
    ({"resource_version": {"argument": "/bad~pointer"}}, "'/bad~pointer' is no JSON Pointer"),
    ({"resource_version": {"outcome": "x"}}, "'x' is no JSON Pointer"),
    ({"resource_version": {"require_expected": True, "argument": ""}}, "'' is no JSON Pointer"),
    ({"heartbeat": {"timeout": -1}}, "heartbeat.timeout"),
    ({"heartbeat": {"timeout": 1, "minimum_interval": -1}}, "heartbeat.minimum_interval"),
    ({"heartbeat": {"timeout": 1}, "completes_later": True}, "completes later cannot report progress"),
    ({"side_effect": "write", "compensation": {"max_attempts": 0}}, "compensation.max_attempts"),
    ({"side_effect": "write", "compensation": {"timeout": 0}}, "compensation.timeout"),
    ({"compensation": {}}, "no effect to undo"),
    ({"reconciles": True}, "no effect to undo or to find out about"),
    ({"model_output": {"max_bytes": 255}}, "model_output.max_bytes"),
    ({"model_output": {"max_tokens": 63}}, "model_output.max_tokens"),
    ({"side_effect": "write", "retry": {"max_attempts": 2}}, "idempotency 'unknown' must not be repeated"),
    (
        {"side_effect": "destructive", "idempotency": "non_idempotent", "retry": {"max_attempts": 2}},
        "declare it idempotent, give it compensation, or allow one attempt",
    ),
    ({"idempotency": "non_idempotent", "retry": {"max_attempts": 2}}, "must not be repeated"),
]


@pytest.mark.parametrize(("settings", "mistake"), REFUSED)
def test_a_contract_that_makes_no_sense_is_refused_with_the_place_and_the_reason(
    settings: dict[str, Any], mistake: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        plain(**settings)
    (error,) = refused.value.errors()
    assert mistake in f"{'.'.join(map(str, error['loc']))}: {error['msg']}"


@pytest.mark.parametrize(
    "settings",
    [
        {"side_effect": "write", "idempotency": "idempotent", "retry": {"max_attempts": 2}},
        {"side_effect": "write", "idempotency": "idempotent_with_key", "retry": {"max_attempts": 2}},
        {"side_effect": "write", "idempotency": "non_idempotent", "compensation": {}, "retry": {"max_attempts": 2}},
        {"retry": {"max_attempts": 2}},
    ],
)
def test_what_may_be_repeated(settings: dict[str, Any]) -> None:
    assert plain(**settings).retry.max_attempts == 2


SCHEMAS: list[tuple[dict[str, JsonValue], str]] = [
    ({"type": "array"}, '/: the root must have "type": "object"'),
    ({"type": "object", "properties": {"a": {"type": "strin"}}}, "/properties/a/type"),
    ({"type": "object", "properties": {"a": {"format": "postcode"}}}, "postcode"),
    ({"type": "object", "$ref": "https://example.com/x"}, "ref"),
]


@pytest.mark.parametrize(("schema", "mistake"), SCHEMAS)
def test_a_schema_that_cannot_be_enforced_is_refused_and_never_replaced(
    schema: dict[str, JsonValue], mistake: str
) -> None:
    def look() -> dict[str, str]:
        """Look."""
        return {}

    with pytest.raises(ToolRefused) as refused:
        tool(side_effect="read", output_schema=schema)(look)
    assert mistake in str(refused.value)
    foreign = plain(input_schema=schema, task_queue="elsewhere")
    with pytest.raises(CatalogError) as refused_at_start:
        Catalog([scripted_agent(foreign)])
    assert mistake in str(refused_at_start.value)


def test_a_contract_that_was_changed_after_its_check_is_refused_at_worker_start() -> None:
    @tool(side_effect="write")
    def pay() -> None:
        """Pay."""

    for change in ({"timeout": -1.0}, {"retry": RetryRule(max_attempts=3)}, {"name": "Not A Name"}):
        with pytest.raises(CatalogError, match=r"agent 'tester': tools\.0"):
            Catalog([scripted_agent().model_copy(update={"tools": (pay.model_copy(update=change),)})])


# -- promises that the functions have to keep, C16


def without_invocation() -> str:
    """Do something."""
    return "done"


def with_invocation(invocation: ToolInvocation) -> str:
    """Do something."""
    return "done"


def undone(request: UndoRequest) -> None: ...


def looked_up(invocation: ToolInvocation) -> Reconciliation:
    return Reconciliation(state="unknown")


@pytest.mark.parametrize(
    ("settings", "promise"),
    [
        ({"idempotency": "idempotent_with_key"}, "idempotency 'idempotent_with_key'"),
        ({"idempotency": "idempotent_with_key", "retry": RetryRule(max_attempts=2)}, "'idempotent_with_key'"),
        ({"heartbeat": HeartbeatRule(timeout=5)}, "heartbeat"),
        ({"settings": ["KEY"]}, "settings"),
        ({"completes_later": True}, "completes_later"),
        ({"resource_version": ResourceVersionRule(require_expected=True)}, "resource_version"),
    ],
)
def test_what_needs_the_invocation_is_refused_without_it(settings: dict[str, Any], promise: str) -> None:
    broken = tool(side_effect="write", **settings)(without_invocation)
    with pytest.raises(CatalogError) as refused:
        Catalog([scripted_agent(broken)])
    assert f"{promise} needs a last parameter of type ToolInvocation" in str(refused.value)
    assert "test_contracts.without_invocation" in str(refused.value)
    Catalog([scripted_agent(tool(side_effect="write", **settings)(with_invocation))])


def test_undo_and_reconciliation_are_declared_and_given_or_neither() -> None:
    def refusal(made: Tool) -> str:
        with pytest.raises(CatalogError) as refused:
            Catalog([scripted_agent(made)])
        return str(refused.value)

    undoable = tool(side_effect="write", compensation=CompensationRule())(without_invocation)
    assert "compensation is declared, but nothing does it" in refusal(undoable)
    undoable.undo(undone)
    findable = tool(side_effect="write", name="findable", reconciles=True)(without_invocation)
    assert "reconciles is declared, but nothing does it" in refusal(findable)
    findable.reconcile(looked_up)
    Catalog([scripted_agent(undoable, findable)])
    # A function alone declares nothing.
    undeclared = tool(side_effect="write")(without_invocation)
    undeclared.undo(undone)
    assert "compensation is not declared" in refusal(undeclared)
    unasked = tool(side_effect="write")(without_invocation)
    unasked.reconcile(looked_up)
    assert "reconciles is not declared" in refusal(unasked)


def test_receiving_the_invocation_promises_nothing() -> None:
    made = tool(side_effect="write")(with_invocation)
    assert (made.idempotency, made.heartbeat, made.compensation, made.retry.max_attempts) == ("unknown", None, None, 1)


# -- one function, several contracts


def test_a_contract_may_override_everything_without_changing_the_function() -> None:
    def save(note: str, invocation: ToolInvocation) -> str:
        """Save a note."""
        return note

    plain_tool = tool(side_effect="write")(save)
    special = tool(
        side_effect="destructive",
        name="overwrite",
        version="2",
        description="Overwrite the note.",
        output_schema={"type": "object"},
        output_validation="warn",
        idempotency="idempotent_with_key",
        approval="always",
        timeout=5,
        lost_after=3,
        heartbeat=HeartbeatRule(timeout=2),
        retry=RetryRule(max_attempts=2),
        resource_version=ResourceVersionRule(),
        capabilities=[Capability(name="files", risk="high")],
        model_output=OutputLimits(max_bytes=256, max_tokens=64),
        settings=["KEY"],
        metadata={"owner": "desk"},
    )(save)
    changed = {name for name in ToolContract.model_fields if getattr(special, name) != getattr(plain_tool, name)}
    assert changed == set(ToolContract.model_fields) - {
        "schema_version",
        "input_schema",
        "compensation",
        "reconciles",
        "task_queue",
        "taken_within",
        "completes_later",
    }
    # What is left out is filled in from the function.
    assert (plain_tool.name, plain_tool.description, plain_tool.version) == ("save", "Save a note.", "1")
    assert special.input_schema == plain_tool.input_schema
    assert list(Catalog([scripted_agent(plain_tool, special)]).tools) == ["save", "overwrite"]


# -- who sees what


async def test_the_model_sees_name_description_and_schema_and_nothing_else() -> None:
    contract = tool(
        side_effect="destructive",
        version="7",
        idempotency="non_idempotent",
        approval="always",
        capabilities=[Capability(name="billing", risk="critical", summary="Moves money.")],
        settings=["BANK_KEY"],
        metadata={"owner": "till"},
    )(with_invocation)
    async with (
        ModelServer([chat_reply({"role": "assistant", "content": "Hi."})]) as server,
        loopback_client() as http,
    ):
        await HttpModel(http, ChatCompletions(), server.base_url, KEY).complete(asked(tools=(contract,)))
    body = server.requests[0].json
    assert body is not None
    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "with_invocation",
                "description": "Do something.",
                "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
            },
        }
    ]


CAPABILITY = Capability(
    name="billing", risk="critical", summary="Moves money.", resources=("acct:7",), metadata={"desk": "refunds"}
)


async def test_whoever_approves_sees_what_the_tool_needs_to_be_allowed_to_do(harness: Harness) -> None:
    @tool(side_effect="destructive", approval="always", capabilities=[CAPABILITY, Capability(name="mail")])
    def refund() -> str:
        """Refund."""
        return "refunded"

    async with harness.worker(scripted_agent(refund), scripts={"main": script(calls(("refund", {})), says("Done."))}):
        run = await harness.start(PROMPT)
        request = await pending_approval(run)
        await run.signal(
            "resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"}
        )
        await run.result()
    assert request.capabilities == (CAPABILITY, Capability(name="mail"))
    assert request.side_effect == "destructive"


async def test_the_contract_is_frozen_when_the_run_starts(harness: Harness) -> None:
    """A redeploy of the same version neither drops the approval of a running agent nor changes what it shows."""
    ran: list[str] = []

    def pay() -> str:
        """Pay."""
        ran.append("paid")
        return "paid"

    before = tool(side_effect="write", approval="always", metadata={"deploy": "1"})(pay)
    after = tool(side_effect="read", description="Pay quietly.", metadata={"deploy": "2"})(pay)
    replies = {"main": script(calls(("pay", {})), calls(("pay", {})), says("Done."))}
    async with harness.worker(scripted_agent(before), scripts=replies):
        run = await harness.start(PROMPT)
        first = await pending_approval(run)
    await run.signal("resolve_approval", {"approval_id": first.approval_id, "resolution": "approved", "by": "ann"})
    async with harness.worker(scripted_agent(after), scripts=replies):
        second = await pending_approval(run)
        assert second.approval_id != first.approval_id
        assert ran == ["paid"]
        frozen: AgentSpec = await run.query("agent", result_type=AgentSpec)
        await run.signal("resolve_approval", {"approval_id": second.approval_id, "resolution": "denied", "by": "ann"})
        result = await run.result()
    assert frozen.tools == (ToolContract.model_validate(before.model_dump()),)
    assert ran == ["paid"]
    assert [effect.state for effect in result.effects] == ["done"]


async def test_an_unknown_tool_is_told_with_the_names_there_are(harness: Harness) -> None:
    """C03."""
    tools = [tool(side_effect="read", name=name)(without_invocation) for name in ("get_weather", "multi")]
    async with harness.worker(scripted_agent(*tools), scripts={"main": script(calls(("nope", {})), says("Oh."))}):
        result = await (await harness.start(PROMPT)).result()
    (record,) = result.tool_results
    assert record.error is not None
    assert (record.error.category, record.error.code, record.attempts) == ("not_found", "unknown_tool", 0)
    assert "nope" in record.error.message
    assert "get_weather, multi" in record.error.message


# -- outcomes


async def test_a_complete_outcome_is_kept_with_all_its_fields(harness: Harness) -> None:
    whole = ToolOutcome(
        ok=True,
        data={"id": 7},
        resource_version="v2",
        compensation_token="undo-7",
        artifacts=(
            Artifact(name="invoice", uri="s3://b/7.pdf", media_type="application/pdf", bytes=9, sha256="0" * 64),
        ),
        metadata={"shard": 3},
    )

    @tool(side_effect="write")
    def invoice(works: bool) -> ToolOutcome:
        """Write an invoice."""
        if not works:
            raise ToolError(
                "conflict",
                "exists",
                code="dup",
                retryable=True,
                compensation_required=True,
                compensation_token="undo-8",
            )
        return whole

    replies = {"main": script(calls(("invoice", {"works": True}), ("invoice", {"works": False})), says("Done."))}
    async with harness.worker(scripted_agent(invoice), scripts=replies):
        run = await harness.start(PROMPT)
        result = await run.result()
        page: ToolResultsPage = await run.query("tool_results", result_type=ToolResultsPage)
    first, second = (record.outcome for record in page.records)
    assert first == whole.model_copy(update={"metadata": {"shard": 3, "tool_attempt": 1}})
    assert not second.ok
    assert second.error is not None
    assert second.error.model_dump() == {"category": "conflict", "code": "dup", "message": "exists", "retryable": True}
    assert (second.compensation_required, second.compensation_token) == (True, "undo-8")
    # The model reads data and artifacts, but neither metadata nor tokens.
    assert json.loads(result.tool_results[0].text)["data"] == {"id": 7}
    assert set(json.loads(result.tool_results[1].text)["error"]) == {"category", "code", "message", "retryable"}


def test_the_categories() -> None:
    """Those of the source but `none`, which is a missing error, and `unknown_outcome`, for effects nobody saw end."""
    assert get_args(ErrorCategory) == (
        "invalid_input",
        "not_found",
        "permission_denied",
        "conflict",
        "rate_limited",
        "timeout",
        "cancelled",
        "unavailable",
        "internal",
        "unknown_outcome",
    )


INVOCATION = ToolInvocation(
    call_id="call_1", tool="look", version="1", arguments={}, idempotency_key="key", action_digest="digest"
)


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (OSError(errno.EINVAL, "x"), "invalid_input"),
        (OSError(errno.EACCES, "x"), "permission_denied"),
        (OSError(errno.ETIMEDOUT, "x"), "timeout"),
        (OSError(errno.ECANCELED, "x"), "cancelled"),
        (OSError(errno.ENOENT, "x"), "not_found"),
        (OSError(errno.EIO, "x"), "internal"),
        (ConnectionResetError(), "unavailable"),
        (TimeoutError(), "timeout"),
        (KeyError("x"), "internal"),
    ],
)
def test_an_exception_has_a_category(error: Exception, category: str) -> None:
    told = unexpected(plain(), INVOCATION, error, NO_SECRETS).error
    assert told is not None
    assert (told.category, told.code, told.retryable) == (category, type(error).__name__, True)
    # What may have changed the world says so instead.
    effect = unexpected(plain(side_effect="write"), INVOCATION, error, NO_SECRETS).error
    assert effect is not None
    assert (effect.category, effect.retryable) == ("unknown_outcome", False)


@pytest.mark.parametrize(
    ("raw", "ok", "category"),
    [
        ({"ok": True, "text": "x"}, True, None),
        ({"ok": False, "text": "x"}, False, "internal"),
        ({"ok": True, "error": {"category": "conflict"}}, False, "conflict"),
    ],
)
def test_an_outcome_that_contradicts_itself_is_a_failure(
    raw: Mapping[str, JsonValue], ok: bool, category: str | None
) -> None:
    outcome = bounded(ToolOutcome.model_validate(raw))
    assert outcome.ok == ok
    assert (outcome.error.category if outcome.error else None) == category
    assert json.loads(full_text(outcome))["ok"] is False if not ok else full_text(outcome) == "x"


def test_an_outcome_that_is_cut_still_asks_for_its_undo() -> None:
    large = ToolError("unavailable", "half", compensation_required=True, compensation_token="undo-1").outcome(
        NO_SECRETS
    )
    cut = bounded(large.model_copy(update={"data": "x" * 1_000_000, "resource_version": "v1"}))
    assert (cut.compensation_required, cut.compensation_token, cut.resource_version) == (True, "undo-1", "v1")
    assert len(cut.model_dump_json()) < 262_144
