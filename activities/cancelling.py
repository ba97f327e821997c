"""`request_cancel`: a run cannot end itself as cancelled, so an activity of it asks the server."""

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from contracts.activities import CancelActivities

# A server that is away is asked again for a long time. One that says this has answered.
_FINAL = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)


class Cancelling(CancelActivities):
    """Asks the server to cancel runs."""

    @activity.defn(name="request_cancel")
    async def request_cancel(self) -> None:
        """Cancel the execution that this activity belongs to. Asking again changes nothing."""
        info = activity.info()
        try:
            await activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id).cancel()
        except RPCError as error:
            if error.status not in _FINAL:
                raise
            reason = f"the server does not let this worker cancel runs: {error.message}"
            raise ApplicationError(reason, type="InternalError", non_retryable=True) from None
