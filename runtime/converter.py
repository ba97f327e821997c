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


data_converter = DataConverter(
    payload_converter_class=pydantic_data_converter.payload_converter_class,
    failure_converter_class=BriefFailureConverter,
)
