"""Runs of several subjects side by side on one worker: each hook, tool, approval, event and span sees its own."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from activities.hooks import Denied, Hooks
from activities.providers.interface import Completion, CompletionRequest, Publish, RawToolCall, to_nobody
from activities.tooling import tool
from contracts.context import ExecutionContext
from contracts.events import EventsPage, EventsQuery
from contracts.messages import ToolCall
from contracts.tools import ToolInvocation
from tests.support.agents import scripted_agent
from tests.support.harness import Handle, Harness, pending_approval

ROUNDS = 6
PEOPLE = [("acme", "ann"), ("acme", "bob"), ("globex", "ann"), ("globex", "cleo")]


@dataclass
class Witness:
    """What was seen: (where, the subject that the context named, the subject that the work was for)."""

    seen: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def sees(self, where: str, context: ExecutionContext, work: str) -> None:
        self.seen[where, subject(context), work] += 1

    def mixed(self) -> list[tuple[str, str, str]]:
        return [each for each in self.seen if each[1] != each[2]]


def subject(context: ExecutionContext) -> str:
    return f"{context.tenant_id}/{context.user_id}"


class Clerk:
    """A model that does the work of whoever its prompt names: so many notes, and a payment in the middle."""

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        whose = request.messages[0].text
        done = sum(message.role == "tool" for message in request.messages)
        if done == ROUNDS:
            return Completion(f"All done for {whose}.")
        return Completion("", (RawToolCall("pay" if done == ROUNDS // 2 else "note", f'{{"whose": "{whose}"}}'),))


async def test_two_subjects_are_never_mixed(harness: Harness) -> None:
    witness = Witness()

    @tool(side_effect="write")
    def note(whose: str, invocation: ToolInvocation) -> str:
        """Note."""
        witness.sees("tool", invocation.context, whose)
        return f"noted for {whose}"

    @tool(side_effect="write", approval="always")
    def pay(whose: str, invocation: ToolInvocation) -> str:
        """Pay."""
        witness.sees("paid", invocation.context, whose)
        return f"paid for {whose}"

    def prepare(request: CompletionRequest, context: ExecutionContext) -> CompletionRequest:
        whose = request.messages[0].text
        for message in request.messages:
            if message.role == "tool":
                witness.sees("told", context, message.text.rpartition(" ")[2])
        witness.sees("request", context, whose)
        return request

    def check(call: ToolCall, context: ExecutionContext) -> ToolCall | Denied:
        witness.sees("call", context, str(call.arguments["whose"]))
        return call

    async def accompany(whose: str, run: Handle) -> None:
        approval = await pending_approval(run)
        shown = f"{approval.context['tenant_id']}/{approval.context['user_id']}"
        assert (shown, approval.context["run_id"], approval.arguments) == (whose, run.id, {"whose": whose})
        await run.execute_update("decide", {"approval_id": approval.approval_id, "resolution": "approved", "by": "x"})
        assert (await run.result()).text == f"All done for {whose}."
        page: EventsPage = await run.query("events", EventsQuery(limit=1_000), result_type=EventsPage)
        assert (page.attributes["tenant_id"], page.attributes["user_id"]) == tuple(whose.split("/"))
        assert page.attributes["run_id"] == run.id
        others = {f"{tenant}/{user}" for tenant, user in PEOPLE} - {whose}
        assert [other for other in others if other in page.model_dump_json()] == []

    agent = scripted_agent(note, pay).model_copy(update={"model": "clerk:any"})
    hooks = Hooks("tester", prepare_model_request=prepare, prepare_tool_call=check)
    async with harness.worker(agent, providers={"clerk": Clerk()}, hooks=[hooks]):
        runs = [
            (
                f"{tenant}/{user}",
                await harness.start(
                    {
                        "agent": "tester",
                        "prompt": f"{tenant}/{user}",
                        "context": {"tenant_id": tenant, "user_id": user},
                    }
                ),
            )
            for tenant, user in PEOPLE
        ]
        await asyncio.gather(*(accompany(whose, run) for whose, run in runs))
    assert witness.mixed() == []
    whose = {whose for whose, _ in runs}
    assert {where: sum(witness.seen[where, each, each] for each in whose) for where in ("tool", "call", "paid")} == {
        "tool": len(PEOPLE) * (ROUNDS - 1),
        "call": len(PEOPLE) * ROUNDS,
        "paid": len(PEOPLE),
    }
    assert sum(witness.seen["request", each, each] for each in whose) == len(PEOPLE) * (ROUNDS + 1)


async def test_a_used_workflow_id_brings_nothing_of_its_earlier_subject(harness: Harness) -> None:
    """The same business key, the same words, another tenant: what the worker holds of the run before is not read."""

    @tool(side_effect="read")
    def whose(invocation: ToolInvocation) -> str:
        """Say whose."""
        return subject(invocation.context)

    class Reader:
        """A model that repeats all it was told."""

        async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
            told = [message.text for message in request.messages if message.role == "tool"]
            return Completion(" ".join(told)) if len(told) == 3 else Completion("", (RawToolCall("whose", "{}"),))

    agent = scripted_agent(whose).model_copy(update={"model": "reader:any"})
    said = []
    async with harness.worker(agent, providers={"reader": Reader()}):
        for tenant, user in PEOPLE[1:3]:
            run = await harness.client.start_workflow(
                "AgentRun",
                {"agent": "tester", "prompt": "Whose?", "context": {"tenant_id": tenant, "user_id": user}},
                id=f"shared-{harness.task_queue}",
                task_queue=harness.task_queue,
            )
            said.append((await run.result())["text"])
    assert said == ["acme/bob acme/bob acme/bob", "globex/ann globex/ann globex/ann"]
