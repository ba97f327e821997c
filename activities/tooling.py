"""What users write: `@tool` makes a function into a tool that an agent can list, `ToolError` fails in words."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Generic, ParamSpec, TypeVar

from pydantic import JsonValue, PrivateAttr, ValidationError
from pydantic_core import to_jsonable_python

from activities.derivation import Parameters, derive_schema, parameters_of
from activities.schemas import depth_of
from contracts.outcomes import ErrorCategory, ToolOutcome, bounded, failure
from contracts.records import describe
from contracts.text import encodable, legal_json
from contracts.tools import Approval, Idempotency, RetryRule, SideEffect, ToolContract, ToolInvocation

# Deeper results break the JSON readers that a result passes on its way.
RESULT_MAX_DEPTH = 100

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class ToolError(Exception):
    """Raise it in a tool to fail in words that the model reads.

    `category` says what kind of failure it is, `code` is the tool's own short name for it. With `retryable=True` the
    runtime first tries again, as far as the tool's contract allows. Any other exception counts as unexpected.
    """

    def __init__(self, category: ErrorCategory, message: str, *, code: str = "", retryable: bool = False) -> None:
        super().__init__(message)
        self.category = category
        self.message = message
        self.code = code
        self.retryable = retryable


class ToolRefused(ValueError):
    """What a function or its contract declares cannot be a tool. The message names the function and the mistake."""


class Tool(ToolContract):
    """A tool contract with the function behind it. Made by `@tool`."""

    _function: Callable[..., object] = PrivateAttr()
    _parameters: Parameters = PrivateAttr()

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function: what a bound call returns is then to be awaited."""
        return inspect.iscoroutinefunction(self._function)

    @property
    def source(self) -> str:
        """The function behind the tool, as module and qualified name."""
        return f"{self._function.__module__}.{self._function.__qualname__}"

    def bind(self, arguments: dict[str, JsonValue], invocation: ToolInvocation) -> Callable[[], object]:
        """The call, ready to be made: arguments as Python types, defaults filled in, the invocation where asked for.

        The arguments have passed the input schema. What only Python can check (a date that does not exist, a
        validator of the model) raises `ToolError` with category invalid_input.
        """
        parameters = self._parameters
        try:
            # From JSON text, because a model in strict mode takes a date from JSON but not from a Python string.
            model = parameters.model.model_validate_json(json.dumps(arguments))
        except ValidationError as error:
            raise ToolError("invalid_input", describe(error), code="invalid_arguments") from None
        values = {name: getattr(model, field) for field, name in parameters.names.items()}
        if parameters.whole:
            values[parameters.whole] = model
        if parameters.invocation:
            values[parameters.invocation] = invocation
        return partial(self._function, **values)


class TypedTool(Tool, Generic[P, R]):
    """A tool as `@tool` returns it: still callable, with the types of its function."""

    _function: Callable[P, R] = PrivateAttr()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    @classmethod
    def of(cls, function: Callable[P, R], contract: ToolContract, parameters: Parameters) -> TypedTool[P, R]:
        """The tool with this contract, function and reading of its signature."""
        made = cls.model_validate(contract.model_dump())
        made._function = function
        made._parameters = parameters
        return made


def tool(
    *,
    side_effect: SideEffect,
    name: str | None = None,
    version: str = "1",
    description: str | None = None,
    idempotency: Idempotency = "unknown",
    approval: Approval = "never",
    timeout: float = 60,
    heartbeat_timeout: float = 10,
    retry: RetryRule | None = None,
) -> Callable[[Callable[P, R]], TypedTool[P, R]]:
    """Make a function a tool.

    Its arguments are either one pydantic model or plain parameters with types; `Annotated[..., Field(...)]` describes
    and constrains them. A last parameter of type `ToolInvocation` receives the invocation. The name defaults to the
    function's in lower case, the description to the first paragraph of its docstring, `retry` to five attempts where
    the contract allows repeating and to one where it does not. `timeout` and `heartbeat_timeout` are in seconds.

    Raises `ToolRefused` for a signature that cannot be a tool's, and for a contract or schema that promises what cannot
    be kept.
    """

    def make(function: Callable[P, R]) -> TypedTool[P, R]:
        with _mistakes_named(function):
            own_name = _own_name(function)
            parameters = parameters_of(function)
            contract = ToolContract(
                name=(name or own_name).lower(),
                version=version,
                description=description or _first_paragraph(function),
                input_schema=derive_schema(parameters.model),
                side_effect=side_effect,
                idempotency=idempotency,
                approval=approval,
                timeout=timeout,
                heartbeat_timeout=heartbeat_timeout,
                retry=retry or RetryRule(),
            )
        if retry is None and contract.repeatable:
            contract = contract.model_copy(update={"retry": RetryRule(max_attempts=5)})
        return TypedTool.of(function, contract, parameters)

    return make


def outcome_of(value: object) -> ToolOutcome:
    """What a tool's return value means: a text as it is, an outcome as it is, None as an empty text, all else as data.

    Bounded and legal JSON: NaN and infinities become strings, bytes become UTF-8 text or else base64. Never raises: a
    value that JSON cannot hold is a failure with code result_not_json, which says that the tool did run.
    """
    try:
        outcome = _outcome(value)
        if depth_of((outcome.data, outcome.metadata)) > RESULT_MAX_DEPTH:
            raise ValueError("nested too deeply")
        # An integer of more than 4,300 digits is written by pydantic, but read by nobody.
        json.dumps((outcome.data, outcome.metadata))
        return bounded(outcome)
    # The value's own code writes it, so anything may be raised; the effect has happened, and a retry would repeat it.
    except Exception:  # noqa: BLE001
        kind = type(value).__name__
        message = f"the tool ran, but its result of type {kind} cannot be written as JSON"
        return failure("internal", message, code="result_not_json")


def _outcome(value: object) -> ToolOutcome:
    match value:
        case None:
            return ToolOutcome(ok=True)
        case ToolOutcome():
            return value
        case str() if not isinstance(value, Enum):
            return ToolOutcome(ok=True, text=encodable(value))
    try:
        data = to_jsonable_python(value)
    except UnicodeError:
        # Bytes that are no UTF-8, or a key with half a character in it, as file names may have.
        data = to_jsonable_python(_with_encodable_keys(value), bytes_mode="base64")
    return ToolOutcome(ok=True, data=legal_json(data))


def _with_encodable_keys(value: object) -> object:
    match value:
        case dict():
            return {
                encodable(key) if isinstance(key, str) else key: _with_encodable_keys(item)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_with_encodable_keys(item) for item in value]
    return value


@contextmanager
def _mistakes_named(function: Callable[..., object]) -> Iterator[None]:
    """What is wrong with a tool, said with the name of its function."""
    label = getattr(function, "__qualname__", repr(function))
    try:
        yield
    except ValidationError as error:
        raise ToolRefused(f"tool {label}: {describe(error)}") from None
    except (TypeError, ValueError) as error:
        raise ToolRefused(f"tool {label}: {error}") from None


def _own_name(function: Callable[..., object]) -> str:
    if not inspect.isroutine(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError("a tool is a function or a coroutine function that returns its result once")
    return function.__name__


def _first_paragraph(function: Callable[..., object]) -> str:
    paragraph = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    if not paragraph:
        raise TypeError("no docstring and no description: the model needs to know what the tool does")
    return paragraph
