"""The refund desk at work, from prompt to effect: `make demo`, or `python -m examples.refund_desk.demo`.

Starts a Temporal server and a worker, starts one run as any Temporal client would, and asks for the decision on the
terminal, or takes it from DEMO_DECISION (approved or denied) where there is none.
"""

import asyncio
import io
import os
import sys
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.service import RPCError

from activities.catalog import Catalog, CatalogError
from activities.visible import visible
from contracts.approvals import ApprovalRequest
from contracts.runs import AgentRunResult
from examples import refund_desk
from examples.refund_desk import shop
from examples.refund_desk.narration import approval_text, decision_command, effects_text, event_line
from examples.refund_desk.watching import (
    Ending,
    Resolution,
    Run,
    ask_terminal,
    ending_of,
    events_after,
    pending_approvals,
    read_line,
    retries,
)
from runtime import logs
from runtime.dev_server import DEFAULT_PORTS, DevServer, Ports, dev_server, free_ports
from runtime.model_providers import model_client, model_providers
from runtime.serving import agent_worker
from runtime.settings import Settings, StartupError

PROMPT = "Order ord_1042 arrived broken. Please refund it."
WORKFLOW_ID_PREFIX = "refund-1042-demo-"
# Not the shop of `make worker`: each demo starts it afresh, and what a worker's runs did has to last.
SHOP = Path(".steadyhand/demo/refund_desk.db")


def main(ports: Ports = DEFAULT_PORTS) -> int:
    """Run the demo, with its server on these ports if they are free. Exit status: 0 completed as decided, 1 not, 2
    cannot start, 130 interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character gets its escape instead of a traceback.
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
    logs.set_up()
    try:
        return asyncio.run(_demo(_decision_from_environment(), ports))
    except (StartupError, CatalogError) as error:
        for problem in str(error).splitlines():
            print(f"demo: {visible(problem)}", file=sys.stderr)
        return 2
    except (RPCError, WorkflowQueryFailedError) as error:
        print(f"demo: the Temporal server or the worker is gone: {visible(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return 130


def _decision_from_environment() -> Resolution | None:
    """The decision to take without asking, or None to ask on the terminal."""
    match os.environ.get("DEMO_DECISION", ""):
        case "approved":
            return "approved"
        case "denied":
            return "denied"
        case "" if sys.stdin.isatty() and sys.stdout.isatty():
            return None
        case "":
            raise StartupError("there is no terminal to ask on: set DEMO_DECISION to approved or denied")
        case other:
            raise StartupError(f"DEMO_DECISION is {other!r}: set it to approved or denied")


async def _demo(decision: Resolution | None, ports: Ports) -> int:
    settings = Settings.from_environment()
    catalog = Catalog.from_modules([refund_desk], settings.model)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(model_client())
        providers = model_providers(settings, catalog, http)
        server = await _start_server(stack, ports)
        print(f"Temporal server at {server.address}, UI at {server.ui_url}")
        await _end_earlier_runs(server.client)
        os.environ["REFUND_DESK_DATABASE"] = str(SHOP)
        shop.reset()
        workflow_id = f"{WORKFLOW_ID_PREFIX}{time.time_ns() // 1_000_000:x}"
        # A task queue of its own: another worker that comes to this server must not take the demo's run.
        worker = agent_worker(
            server.client, workflow_id, catalog, providers, graceful_shutdown_timeout=timedelta(seconds=2)
        )
        await stack.enter_async_context(worker)
        run = await _start_run(server.client, workflow_id)
        decided = await _follow(run, server.address, decision)
        ending = await ending_of(run)
        refunds = _report(ending)
        print(f"\nThe run in Temporal's UI: {server.ui_url}/namespaces/default/workflows/{run.id}")
        if decision is None:
            print("Press Enter to stop the server and leave.")
            await read_line()
    # On other ports it may have had another database too.
    as_usual = server.address.endswith(f":{ports.grpc}")
    print(f"The server has stopped{'; `make worker` shows the run again at the same address' if as_usual else ''}.")
    print(f"RESULT status={ending.status} rounds={ending.rounds} tool_calls={ending.tool_calls} refunds={refunds}")
    # A decision given beforehand holds even if the agent never asked: then the demo did not do its work.
    expected = 1 if (decision or decided) == "approved" else 0
    return 0 if ending.status == "completed" and refunds == expected else 1


async def _start_server(stack: AsyncExitStack, ports: Ports) -> DevServer:
    """On these ports and the database that `make worker` uses; where those are taken, on others."""
    database = Path(".steadyhand/temporal.db")
    for tried in (ports, free_ports()):
        try:
            return await stack.enter_async_context(dev_server(database, tried))
        except StartupError as error:
            print(f"({str(error).partition(': ')[0]}; starting elsewhere)")
    return await stack.enter_async_context(dev_server(None, free_ports()))


async def _end_earlier_runs(client: Client) -> None:
    """A demo that was interrupted left its run open, and nobody will serve it again."""
    async for run in client.list_workflows("WorkflowType = 'AgentRun' AND ExecutionStatus = 'Running'"):
        if run.id.startswith(WORKFLOW_ID_PREFIX):
            await client.get_workflow_handle(run.id).terminate("a new demo began")


async def _start_run(client: Client, workflow_id: str) -> Run:
    run: Run = await client.start_workflow(
        "AgentRun",
        {"agent": "refund_desk", "prompt": PROMPT},
        id=workflow_id,
        task_queue=workflow_id,
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        result_type=AgentRunResult,
    )
    print(f"Run {workflow_id}: {PROMPT}\n")
    return run


async def _follow(run: Run, address: str, decision: Resolution | None) -> str | None:
    """Print the run's events as they come and resolve its approvals, until it is over. Returns the last decision."""
    over = asyncio.ensure_future(ending_of(run))
    asked: set[str] = set()
    told: set[str] = set()
    seen, pause, decided = 0, 0.05, None
    try:
        while True:
            ended = over.done() and over.result() is not None
            # Before the events, so that they tell of every request that is then shown.
            pending = await pending_approvals(run)
            page = await events_after(run, seen)
            for event in page.events:
                print(event_line(event))
                seen = event.sequence
                if event.type == "approval_recorded":
                    decided = str(event.data.get("resolution"))
            if ended and not page.events:
                return decided
            for request in pending:
                if request.approval_id not in asked:
                    asked.add(request.approval_id)
                    await _resolve(run, request, address, decision)
            for line in await retries(run):
                if line not in told:
                    told.add(line)
                    print(line)
            pause = 0.05 if page.events else min(pause * 1.5, 1.0)
            await asyncio.wait({over}, timeout=pause)
    finally:
        over.cancel()


async def _resolve(run: Run, request: ApprovalRequest, address: str, decision: Resolution | None) -> None:
    print(approval_text(request))
    print("To approve from another terminal:" if decision is None else "The same from any terminal:")
    print(f"  {decision_command(request, decision or 'approved', address, run.id)}\n")
    resolution = decision or await ask_terminal(run, request)
    if resolution is None:
        print("\nDecided elsewhere.")
        return
    answer = {
        "approval_id": request.approval_id,
        "resolution": resolution,
        "by": "demo",
        "reason": "decided in the demo",
        "action_digest": request.action_digest,
    }
    await run.signal("resolve_approval", answer)


def _report(ending: Ending) -> int:
    """Print what the run came to. Returns the number of refunds that the shop counts."""
    payments, mails = shop.payments(), shop.outbox()
    print(f"\nThe run {ending.problem}" if ending.problem else "\nAnswer:")
    for line in ending.text.splitlines():
        print(f"  {visible(line)}")
    print(f"\nEffects in the shop:\n{effects_text(payments, mails)}")
    return len(payments)


if __name__ == "__main__":
    sys.exit(main())
