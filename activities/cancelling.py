"""`request_cancel`: a run cannot end itself as cancelled, so an activity of it asks the server."""

from temporalio import activity

from contracts.activities import CancelActivities


class Cancelling(CancelActivities):
    """Asks the server to cancel runs."""

    @activity.defn(name="request_cancel")
    async def request_cancel(self) -> None:
        """Cancel the execution that this activity belongs to. Asking again changes nothing."""
        info = activity.info()
        await activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id).cancel()
