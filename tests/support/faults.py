"""Bugs in workflow code, put there from outside: Python's own tracing raises where a function is entered."""

import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

from temporalio import workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import workflows
from activities.catalog import Catalog
from activities.providers.scripted import Script, Scripted
from activities.registry import Activities
from contracts.agents import AgentSpec
from tests.support.harness import CHECKOUT, Harness
from workflows.agent_run import AgentRun

P = ParamSpec("P")
T = TypeVar("T")
WORKFLOWS = workflows.__path__[0]


class Faults(ThreadPoolExecutor):
    """Runs workflow tasks. In each run an error of `wanted` is raised, once, where its function is first entered.

    Places are `<module>.<qualified name>`, as in `transcript.Transcript.page`; runs go by their workflow ids.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=4)
        self.wanted: dict[str, dict[str, Exception]] = defaultdict(dict)
        # Every function of workflows/ that a run has entered, in order, and whether it was our code that called it.
        self.entered: dict[str, dict[str, bool]] = defaultdict(dict)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return super().submit(self._traced, fn, *args, **kwargs)

    def _traced(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        sys.settrace(self._on_call)
        try:
            return fn(*args, **kwargs)
        finally:
            sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(WORKFLOWS) or not workflow.in_workflow():
            return
        run = workflow.info().workflow_id
        place = f"{Path(code.co_filename).stem}.{code.co_qualname}"
        caller = frame.f_back
        ours = caller is not None and caller.f_code.co_filename.startswith(WORKFLOWS)
        self.entered[run].setdefault(place, ours)
        if error := self.wanted[run].pop(place, None):
            raise error


@asynccontextmanager
async def faulty_worker(harness: Harness, agent: AgentSpec, replies: Script) -> AsyncIterator[Faults]:
    """A worker in this process whose workflow code has the bugs that are wanted. Without the sandbox, which would take
    most of the time and changes nothing of what a bug does."""
    activities = Activities(Catalog([agent]), {"scripted": Scripted(CHECKOUT, {"main": replies})}, {})
    with Faults() as faults:
        worker = Worker(
            harness.client,
            task_queue=harness.task_queue,
            workflows=[AgentRun],
            activities=activities.all(),
            workflow_runner=UnsandboxedWorkflowRunner(),
            workflow_task_executor=faults,
        )
        async with activities, worker:
            yield faults
