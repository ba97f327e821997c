"""How a tool ends other than with a value: it fails in words, or its result comes later from elsewhere."""

from collections.abc import Callable
from functools import partial
from typing import get_args

from activities.tool_secrets import ToolSecrets
from contracts.outcomes import ErrorCategory, ToolOutcome, failure


class ToolError(Exception):
    """Raise it in a tool to fail in words that the model reads.

    `category` says what kind of failure it is, `code` is the tool's own short name for it. With `retryable=True` the
    runtime first tries again, as far as the tool's contract allows, after `retry_after` seconds at least. Say
    `compensation_required=True` where the attempt left something that the tool's undo has to take back, with a token
    for it if it needs one. Any other exception counts as unexpected.
    """

    def __init__(
        self,
        category: ErrorCategory,
        message: str,
        *,
        code: str = "",
        retryable: bool = False,
        retry_after: float | None = None,
        compensation_required: bool = False,
        compensation_token: str | None = None,
    ) -> None:
        super().__init__(message)
        # Here it is an exception of the tool's like any other, in the log with its place in the tool. Later it would be
        # an end that nobody understands.
        if category not in get_args(ErrorCategory):
            known = ", ".join(get_args(ErrorCategory))
            raise ValueError(f"{category!r} is no category of ToolError; there are: {known}")
        if not all(isinstance(text, str) for text in (message, code, compensation_token or "")):
            raise TypeError("message, code and compensation_token of a ToolError are texts")
        if not isinstance(retry_after, int | float | None):
            raise TypeError("retry_after of a ToolError is a number of seconds")
        self.category = category
        self.message = message
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after
        self.compensation_required = compensation_required
        self.compensation_token = compensation_token

    def __reduce__(self) -> tuple[Callable[[], "ToolError"], tuple[()]]:
        """Pickled whole, so that a tool may raise it in a process pool."""
        return partial(
            ToolError,
            self.category,
            self.message,
            code=self.code,
            retryable=self.retryable,
            retry_after=self.retry_after,
            compensation_required=self.compensation_required,
            compensation_token=self.compensation_token,
        ), ()

    def outcome(self, secrets: ToolSecrets) -> ToolOutcome:
        """The failure as an outcome, without the secrets."""
        told = failure(self.category, secrets.hidden(self.message), secrets.hidden(self.code), self.retryable)
        return told.model_copy(
            update={
                "compensation_required": self.compensation_required,
                "compensation_token": self.compensation_token,
                "metadata": {} if self.retry_after is None else {"retry_after": self.retry_after},
            }
        )


class Later:
    """What a tool returns whose result comes from outside, by its completion token. There is one: `LATER`."""


LATER = Later()
