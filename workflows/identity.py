"""How a run is called."""

from temporalio import workflow

from contracts.context import ExecutionContext


def of_this_run(context: ExecutionContext) -> ExecutionContext:
    """The context with the run's own ids where its caller gave none. They are made of the chain, not drawn: whatever a
    run draws shifts the jitter of its later retries, and those are in its history."""
    info = workflow.info()
    return context.identified(info.workflow_id, info.first_execution_run_id)
