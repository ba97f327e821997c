"""Adapter for the side-by-side benchmark harness: `run.py floor steadyhand --adapter benchmarks/side_by_side.py`."""

import sys
from pathlib import Path

from adapters import TemporalPeer  # type: ignore[import-not-found]  # the harness's own

CHECKOUT = Path(__file__).resolve().parents[1]


class Steadyhand(TemporalPeer):  # type: ignore[misc]  # the harness is untyped
    """One run is one `AgentRun`; its result's text is the answer."""

    def worker_cmd(self) -> list[str]:
        return [str(CHECKOUT / ".venv/bin/python"), str(CHECKOUT / "benchmarks/side_by_side_worker.py")]

    async def run(self, ctx, prompt: str, run_id: str) -> str:  # type: ignore[no-untyped-def]  # the harness's types
        result = await ctx.client.execute_workflow(
            "AgentRun", {"agent": "bench", "prompt": prompt}, id=run_id, task_queue=ctx.task_queue
        )
        return str(result["text"])


PEER = Steadyhand("steadyhand", sys.executable, "", "AgentRun")
