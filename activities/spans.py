"""What the span of an activity says, where somebody traces the worker: for whom it works, and which attempt it is.

Spans are made by an interceptor of the client, such as `temporalio.contrib.opentelemetry.TracingInterceptor`: one
`StartActivity` a call, and one `RunActivity` an attempt.
"""

from collections.abc import Mapping

from opentelemetry import trace


def is_traced() -> bool:
    """Whether anybody keeps the current span."""
    return trace.get_current_span().is_recording()


def describe_span(attributes: Mapping[str, str], attempt: int) -> None:
    """Put a context's attributes on the current span, over what is there by these names. Without a tracer this does
    nothing."""
    trace.get_current_span().set_attributes({**attributes, "attempt": attempt})
