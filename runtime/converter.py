"""How values and failures become payloads."""

from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadConverter


class BriefFailureConverter(DefaultFailureConverter):
    """Leaves stack traces out of history: they are in the log of the worker that raised, and a person who asks for a
    run's result wants to read what is wrong, not seventeen frames of an SDK."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """As the default does, without the stacks of the failure and its causes."""
        super().to_failure(exception, payload_converter, failure)
        link: Failure | None = failure
        while link is not None:
            link.stack_trace = ""
            link = link.cause if link.HasField("cause") else None

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """As the default does, but details that nobody can decode are left out: a tool in another process may send
        anything, and it must not end the run that called it."""
        try:
            return super().from_failure(failure, payload_converter)
        except Exception:  # noqa: BLE001 - a decoder may raise anything
            legible = Failure()
            legible.CopyFrom(failure)
            for name in ("application_failure_info", "canceled_failure_info"):
                if legible.HasField(name):
                    getattr(legible, name).ClearField("details")
            legible.ClearField("encoded_attributes")
            return super().from_failure(legible, payload_converter)


data_converter = DataConverter(
    payload_converter_class=pydantic_data_converter.payload_converter_class,
    failure_converter_class=BriefFailureConverter,
)
