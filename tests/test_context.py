"""Who a run acts for: one projection, which is what events, approvals, spans and searches show."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from activities.tooling import tool
from contracts.context import SHOWN_MAX_BYTES, SHOWN_VALUE_MAX_BYTES, ExecutionContext, subject_id, with_host
from contracts.events import Event, EventsPage, EventsQuery, envelope
from contracts.scopes import KnowledgeAccess, MemoryScope, knowledge_access, memory_scope
from contracts.tools import ToolInvocation
from runtime.dev_server import DevServer
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, failure_of, histories, pending_approval, says, script
from tests.support.tool_worker import texts_in_history

IDENTIFIERS = [
    *("run_id", "trace_id", "request_id", "tenant_id", "user_id"),
    *("application_id", "workspace_id", "conversation_id", "agent_id", "locale"),
]
WHOLE = ExecutionContext.model_validate(
    {**{name: name.upper() for name in IDENTIFIERS}, "metadata": {"ticket": "T-1", "run_id": "not mine"}}
)


# -- the projection


def test_the_projection_names_every_identifier_and_keeps_metadata_apart() -> None:
    assert WHOLE.attributes == {
        **{name: name.upper() for name in IDENTIFIERS},
        "context.metadata.ticket": "T-1",
        "context.metadata.run_id": "not mine",
    }
    assert list(WHOLE.attributes)[:10] == IDENTIFIERS


def test_empty_identifiers_are_left_out_of_the_projection() -> None:
    context = ExecutionContext(tenant_id="", user_id="ann", deadline=datetime(2027, 1, 1, tzinfo=UTC))
    assert context.attributes == {"user_id": "ann"}
    assert ExecutionContext().attributes == {}


def test_keys_that_look_like_secrets_are_left_out_of_the_projection() -> None:
    told = ExecutionContext.model_validate_json('{"metadata": {"apiKey": "k", "user.password": "p", "ticket": "T-1"}}')
    assert told.attributes == {"context.metadata.ticket": "T-1"}
    assert told.shown == {"context.metadata.ticket": "T-1"}
    assert with_host({}, {"authorization": "Bearer x", "service": "desk"}) == {"service": "desk"}


def test_a_context_with_a_secret_cannot_be_made_in_python() -> None:
    with pytest.raises(ValidationError, match="apiKey looks like a secret") as refused:
        ExecutionContext(metadata={"ticket": "T-1", "apiKey": "sk-1"})
    assert "sk-1" not in str(refused.value.errors(include_input=False))


def test_a_host_never_takes_the_place_of_what_a_run_says_of_itself() -> None:
    host = {"service": "desk", "run_id": "other", "tenant_id": "evil", "context.metadata.ticket": "X-9"}
    assert with_host({"run_id": "mine"}, host) == {"service": "desk", "run_id": "mine"}


@pytest.mark.parametrize(
    ("attributes", "subject"),
    [
        ({"user_id": "u", "agent_id": "a", "application_id": "p", "run_id": "r"}, "u"),
        ({"agent_id": "a", "application_id": "p", "run_id": "r"}, "a"),
        ({"application_id": "p", "run_id": "r", "tenant_id": "t"}, "p"),
        ({"run_id": "r", "trace_id": "t"}, "r"),
        ({"tenant_id": "t"}, None),
    ],
)
def test_who_acts_is_the_user_else_the_agent_else_the_application_else_the_run(
    attributes: dict[str, str], subject: str | None
) -> None:
    assert subject_id(attributes) == subject


def test_what_a_person_is_shown_is_bounded_and_the_identifiers_come_first() -> None:
    large = WHOLE.model_copy(
        update={"user_id": "u" * 5_000, "metadata": {f"key_{number}": "v" * 300 for number in range(50)}}
    )
    shown = large.shown
    assert list(shown)[:10] == IDENTIFIERS
    assert shown["user_id"].endswith("[cut: this is the beginning of 5000 bytes]")
    assert max(len(value) for value in shown.values()) == SHOWN_VALUE_MAX_BYTES
    assert 1_500 < sum(len(name) + len(value) for name, value in shown.items()) <= SHOWN_MAX_BYTES


def test_a_context_survives_json_with_its_deadline_as_rfc_3339() -> None:
    context = WHOLE.model_copy(update={"deadline": datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)})
    written = context.model_dump_json()
    assert '"deadline":"2027-01-02T03:04:05Z"' in written
    assert ExecutionContext.from_wire(written.encode()) == context


# -- envelopes and scopes


def test_an_envelope_says_what_happened_in_which_run_and_for_whom() -> None:
    at = datetime(2027, 1, 1, tzinfo=UTC)
    event = Event(sequence=7, type="tool_completed", at=at, data={"call_id": "call_1", "tenant_id": "of a tool"})
    attributes = {"run_id": "r", "trace_id": "t", "tenant_id": "acme", "agent_id": "bot"}
    told = envelope(event, attributes, host={"service": "desk", "tenant_id": "evil"})
    assert told.model_dump() == {
        "module": "runtime",
        "name": "tool_completed",
        "ids": {"run_id": "r", "trace_id": "t"},
        "subject_id": "bot",
        "sequence": 7,
        "at": at,
        "attributes": {"service": "desk", **attributes},
        "data": {"call_id": "call_1", "tenant_id": "of a tool"},
    }


CONFIGURED = MemoryScope(tenant_id="acme", user_id="ann", application_id="desk", conversation_id="c1", agent_id="bot")


@pytest.mark.parametrize("part", ["tenant_id", "user_id", "application_id", "conversation_id", "agent_id"])
def test_a_memory_scope_is_replaced_as_a_whole(part: str) -> None:
    context = ExecutionContext.model_validate({part: "other", "workspace_id": "w"})
    assert memory_scope(context, CONFIGURED) == MemoryScope.model_validate({part: "other"})


def test_without_identity_the_configured_scopes_stand() -> None:
    nobody = ExecutionContext(run_id="r", trace_id="t", workspace_id="w", locale="de", user_id="")
    access = KnowledgeAccess(tenant_id="acme", user_id="ann")
    assert memory_scope(nobody, CONFIGURED) == CONFIGURED
    assert knowledge_access(nobody.model_copy(update={"agent_id": "bot"}), access) == access


@pytest.mark.parametrize("part", ["tenant_id", "user_id"])
def test_knowledge_access_never_combines_two_subjects(part: str) -> None:
    access = KnowledgeAccess(tenant_id="acme", user_id="ann")
    own = knowledge_access(ExecutionContext.model_validate({part: "other"}), access)
    assert own == KnowledgeAccess.model_validate({part: "other"})


# -- in a run


@tool(side_effect="write", approval="always")
def pay(invocation: ToolInvocation) -> str:
    """Say who pays, in which run."""
    context = invocation.context
    return f"{context.user_id} {context.run_id} {context.trace_id}"


async def test_an_approver_sees_for_whom_and_the_events_say_it(harness: Harness) -> None:
    context = {"tenant_id": "acme", "user_id": "ann", "request_id": "q-1", "metadata": {"ticket": "T-1"}}
    async with harness.worker(scripted_agent(pay), scripts={"main": script(calls(("pay", {})), says("Done."))}):
        run = await harness.start({**PROMPT, "context": context})
        approval = await pending_approval(run)
        await run.execute_update("decide", {"approval_id": approval.approval_id, "resolution": "approved", "by": "b"})
        (answer,) = (await run.result()).tool_results
        page: EventsPage = await run.query("events", EventsQuery(), result_type=EventsPage)
    trace_id = page.attributes["trace_id"]
    assert page.attributes == {
        "run_id": run.id,
        "trace_id": trace_id,
        "request_id": "q-1",
        "tenant_id": "acme",
        "user_id": "ann",
        "context.metadata.ticket": "T-1",
    }
    assert (approval.subject_id, approval.context) == ("ann", page.attributes)
    assert answer.text == f"ann {run.id} {trace_id}"
    envelopes = [envelope(event, page.attributes) for event in page.events]
    assert [each.name for each in envelopes][-1] == "run_completed"
    assert {each.subject_id for each in envelopes} == {"ann"}
    assert {tuple(each.ids.values()) for each in envelopes} == {(run.id, trace_id, "q-1")}


async def test_a_run_has_one_trace_id_over_its_whole_chain_and_another_run_has_another(impatient: DevServer) -> None:
    told = list[tuple[str | None, str | None]]()

    @tool(side_effect="read")
    def look(invocation: ToolInvocation) -> str:
        """Look."""
        told.append((invocation.context.run_id, invocation.context.trace_id))
        return "seen"

    harness = Harness(impatient.client)
    agent = scripted_agent(look, max_rounds=12)
    async with harness.worker(agent, scripts={"main": script(*[calls(("look", {}))] * 12, says("Done."))}):
        run = await harness.start(PROMPT)
        await run.result()
        assert len(await histories(harness.client, run.id)) > 1
        assert len(told) == 12
        ((run_id, trace_id),) = set(told)
        assert run_id == run.id
        # The same business key again is another run.
        again = await harness.client.start_workflow("AgentRun", PROMPT, id=run.id, task_queue=harness.task_queue)
        await again.result()
    assert trace_id is not None
    assert trace_id.startswith("trace-")
    assert len(bytes.fromhex(trace_id.removeprefix("trace-"))) == 16
    assert set(told[12:]) == {(run.id, told[-1][1])}
    assert told[-1][1] != trace_id
    await harness.check_histories()


async def test_the_ids_that_a_caller_gives_are_kept(harness: Harness) -> None:
    context = {"run_id": "job-7", "trace_id": "4bf92f3577b34da6"}
    async with harness.worker(scripted_agent(), scripts={"main": script(says("Done."))}):
        run = await harness.start({**PROMPT, "context": context})
        await run.result()
        page: EventsPage = await run.query("events", EventsQuery(), result_type=EventsPage)
    assert page.attributes == context


async def test_a_secret_in_the_context_is_refused_by_its_key_and_shown_nowhere(harness: Harness) -> None:
    async with harness.worker(scripted_agent(), scripts={"main": script(says("Done."))}):
        run = await harness.start({**PROMPT, "context": {"tenant_id": "acme", "metadata": {"dbPassword": "hunter2"}}})
        error, _ = await failure_of(run)
        page: EventsPage = await run.query("events", EventsQuery(), result_type=EventsPage)
    assert error.type == "InvalidInput"
    assert "context.metadata.dbPassword" in error.message
    assert page.attributes["run_id"] == run.id
    assert "hunter2" not in page.model_dump_json()
    # It is where its caller put it, the input, as JSON and as what that says, and nowhere else.
    assert sum("hunter2" in text for text in await texts_in_history(harness, run.id)) == 2
