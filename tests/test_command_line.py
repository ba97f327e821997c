"""A run started, approved and inspected with nothing but the `temporal` CLI and the JSON of the protocol."""

import asyncio
import json
from asyncio.subprocess import PIPE

from pydantic import JsonValue

from activities.tooling import tool
from runtime.dev_server import DevServer, find_temporal
from tests.support.agents import scripted_agent
from tests.support.harness import Harness, calls, says, script
from tests.support.waiting import eventually


class CommandLine:
    """`temporal ...` against one server, speaking JSON."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def __call__(self, *arguments: str) -> str:
        status, out, error = await self.run(*arguments)
        assert status == 0, error
        return out

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        command = [str(find_temporal()), *arguments, "--address", self._address, "--output", "json"]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        out, error = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), error.decode()

    async def query(self, workflow_id: str, name: str, argument: JsonValue = None) -> dict[str, JsonValue]:
        given = [] if argument is None else ["--input", json.dumps(argument)]
        answer = json.loads(await self("workflow", "query", "--workflow-id", workflow_id, "--type", name, *given))
        (result,) = answer["queryResult"]
        assert isinstance(result, dict)
        return result


def start(harness: Harness, workflow_id: str, run_input: JsonValue) -> list[str]:
    named = ["--type", "AgentRun", "--task-queue", harness.task_queue, "--workflow-id", workflow_id]
    return ["workflow", "start", *named, "--id-reuse-policy", "RejectDuplicate", "--input", json.dumps(run_input)]


async def test_start_approve_and_inspect(harness: Harness, server: DevServer) -> None:
    paid: list[int] = []

    @tool(side_effect="write", approval="always")
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    temporal = CommandLine(server.address)
    run_id = f"{harness.task_queue}-invoice-7"
    run_input: JsonValue = {"agent": "tester", "prompt": "Pay the invoice.", "context": {"tenant_id": "acme"}}
    replies = script(calls(("pay", {"amount": 7}), text="Paying."), says("It is paid."))
    async with harness.worker(scripted_agent(pay), scripts={"main": replies}):
        started = json.loads(await temporal(*start(harness, run_id, run_input)))
        harness.track(run_id)

        async def waiting() -> dict[str, JsonValue] | None:
            state = await temporal.query(run_id, "state")
            return state if state["status"] == "waiting_for_approval" else None

        state = await eventually(waiting)
        approvals = state["pending_approvals"]
        assert isinstance(approvals, list)
        (request,) = approvals
        assert isinstance(request, dict)
        assert (request["tool"], request["arguments"], request["approvals_required"]) == ("pay", {"amount": 7}, 1)
        assert set(state) >= {"status", "revision", "round", "agent", "usage", "limits", "effects", "last_sequence"}

        # Repeating the command does no harm: it answers with the run there is, or was.
        repeated = json.loads(await temporal(*start(harness, run_id, run_input)))
        assert repeated["runId"] == started["runId"]

        decision: JsonValue = {
            "approval_id": request["approval_id"],
            "resolution": "approved",
            "by": "ann",
            "action_digest": request["action_digest"],
        }
        signal = ["workflow", "signal", "--workflow-id", run_id, "--name", "resolve_approval"]
        await temporal(*signal, "--input", json.dumps(decision))
        await temporal("workflow", "result", "--workflow-id", run_id)
        repeated = json.loads(await temporal(*start(harness, run_id, run_input)))
        assert repeated["runId"] == started["runId"]
        assert (await temporal.run(*signal, "--input", json.dumps(decision)))[0] != 0

        result = json.loads(await temporal("workflow", "result", "--workflow-id", run_id))["result"]
        assert (result["status"], result["text"], result["rounds"]) == ("completed", "It is paid.", 1)
        assert result["effects"] == [{"call_id": "call_1", "tool": "pay", "state": "done"}]
        assert result["tool_results"][0]["text"] == "paid 7"

        page = await temporal.query(run_id, "transcript", {"start": 1, "max_bytes": 1})
        assert page["messages"] == [
            {
                "role": "assistant",
                "text": "Paying.",
                "tool_calls": [{"call_id": "call_1", "tool": "pay", "arguments": {"amount": 7}}],
            }
        ]
        assert (page["next"], page["total"], page["first_available"]) == (2, 4, 0)
        log = await temporal.query(run_id, "events", {"after_sequence": 3, "limit": 2})
        assert [event["sequence"] for event in log["events"]] == [4, 5]  # type: ignore[union-attr,index,call-overload]
        agent = await temporal.query(run_id, "agent")
        assert agent["name"] == "tester"
    assert paid == [7]


async def test_the_update_answers_at_once(harness: Harness, server: DevServer) -> None:
    @tool(side_effect="write", approval="always")
    def pay() -> str:
        """Pay."""
        return "paid"

    temporal = CommandLine(server.address)
    run_id = f"{harness.task_queue}-invoice-8"
    replies = script(calls(("pay", {})), says("Not paid."))
    async with harness.worker(scripted_agent(pay), scripts={"main": replies}):
        await temporal(*start(harness, run_id, {"agent": "tester", "prompt": "Pay."}))
        harness.track(run_id)

        async def waiting() -> JsonValue:
            approvals = (await temporal.query(run_id, "state"))["pending_approvals"]
            return approvals[0] if isinstance(approvals, list) and approvals else None

        request = await eventually(waiting)
        assert isinstance(request, dict)
        update = ["workflow", "update", "execute", "--workflow-id", run_id, "--name", "decide"]
        refused = await temporal.run(*update, "--input", json.dumps({"approval_id": "x", "resolution": "approved"}))
        assert refused[0] != 0
        assert "by: Field required" in refused[1] + refused[2]
        decision: JsonValue = {"approval_id": request["approval_id"], "resolution": "denied", "by": "ann"}
        recorded = json.loads(await temporal(*update, "--input", json.dumps(decision)))["result"]
        assert (recorded["resolution"], recorded["by"], recorded["tool"]) == ("denied", "ann", "pay")
        await temporal("workflow", "result", "--workflow-id", run_id)


async def test_a_failed_run_shows_its_name_and_what_it_had(harness: Harness, server: DevServer) -> None:
    temporal = CommandLine(server.address)
    run_id = f"{harness.task_queue}-nobody"
    async with harness.worker(scripted_agent(), scripts={"main": script(says("never"))}):
        await temporal(*start(harness, run_id, {"agent": "nobody", "prompt": "Go."}))
        harness.track(run_id)
        status, out, error = await temporal.run("workflow", "result", "--workflow-id", run_id)
    assert status != 0
    assert "UnknownAgent" in out + error
    assert "this worker serves: tester" in out + error
