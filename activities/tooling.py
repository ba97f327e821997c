"""What users write: `@tool` makes a function into a tool that an agent can list, `ToolError` fails in words."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Generic, ParamSpec, TypeVar

from pydantic import JsonValue, PrivateAttr, ValidationError

from activities.derivation import Parameters, derive_schema, parameters_of
from activities.schemas import check_schema
from activities.tool_ends import LATER, Later, ToolError
from contracts.outcomes import ToolOutcome
from contracts.policies import (
    Approval,
    Capability,
    CompensationRule,
    HeartbeatRule,
    Idempotency,
    OutputLimits,
    OutputValidation,
    ResourceVersionRule,
    RetryRule,
    SideEffect,
)
from contracts.records import describe
from contracts.tools import ToolContract, ToolInvocation, UndoRequest

__all__ = ["LATER", "Later", "Tool", "ToolError", "ToolRefused", "TypedTool", "tool"]

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
PrepareResult = Callable[[ToolOutcome], ToolOutcome | None]
Undo = Callable[[UndoRequest], object]
Reconcile = Callable[[ToolInvocation], object]
U = TypeVar("U", bound=Undo)
C = TypeVar("C", bound=Reconcile)
H = TypeVar("H", bound=PrepareResult)


class ToolRefused(ValueError):
    """What a function or its contract declares cannot be a tool. The message names the function and the mistake."""


class Tool(ToolContract):
    """A tool contract with the function behind it. Made by `@tool`."""

    _function: Callable[..., object] = PrivateAttr()
    _parameters: Parameters = PrivateAttr()
    _prepare: PrepareResult | None = PrivateAttr(default=None)
    _undo: Undo | None = PrivateAttr(default=None)
    _reconcile: Reconcile | None = PrivateAttr(default=None)

    def undo(self, function: U) -> U:
        """Decorate the function that takes back what a call did, from an `UndoRequest`. The contract says
        `compensation`. It returns an `UndoOutcome`, a text, or None; finding nothing to undo is no failure."""
        self._undo = function
        return function

    def reconcile(self, function: C) -> C:
        """Decorate the function that finds out, from the `ToolInvocation`, whether a call took effect. The contract
        says `reconciles`. It returns a `Reconciliation`."""
        self._reconcile = function
        return function

    def prepare_result(self, function: H) -> H:
        """Decorate a function that sees each outcome before anybody else and returns it, changed or not. None, and an
        exception, refuse it, and the model is told so; the effect of a refused success counts as done."""
        self._prepare = function
        return function

    @property
    def undo_function(self) -> Undo | None:
        """What `undo` was given."""
        return self._undo

    @property
    def reconcile_function(self) -> Reconcile | None:
        """What `reconcile` was given."""
        return self._reconcile

    @property
    def prepare(self) -> PrepareResult | None:
        """What `prepare_result` was given."""
        return self._prepare

    def broken_promise(self) -> str | None:
        """What the contract declares and the functions cannot do, or the other way round; None if they agree."""
        takes_invocation = self._parameters.invocation is not None
        needs = {
            "idempotency 'idempotent_with_key'": self.idempotency == "idempotent_with_key",
            "heartbeat": self.heartbeat is not None,
            "settings": bool(self.settings),
            "completes_later": self.completes_later,
            "resource_version": self.resource_version is not None and self.resource_version.require_expected,
        }
        for promise, declared in needs.items():
            if declared and not takes_invocation:
                return f"{promise} needs a last parameter of type ToolInvocation"
        if self.completes_later and self._prepare is not None:
            return "completes_later: what comes later passes no prepare_result"
        for promise, declared, function in (
            ("compensation", self.compensation is not None, self._undo),
            ("reconciles", self.reconciles, self._reconcile),
        ):
            if declared != (function is not None):
                return f"{promise} is declared, but nothing does it" if declared else f"{promise} is not declared"
        return None

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
    output_schema: dict[str, JsonValue] | None = None,
    output_validation: OutputValidation = "strict",
    idempotency: Idempotency = "unknown",
    approval: Approval = "never",
    timeout: float = 60,
    lost_after: float = 10,
    heartbeat: HeartbeatRule | None = None,
    retry: RetryRule | None = None,
    compensation: CompensationRule | None = None,
    reconciles: bool = False,
    resource_version: ResourceVersionRule | None = None,
    capabilities: Sequence[Capability] = (),
    model_output: OutputLimits | None = None,
    settings: Sequence[str] = (),
    completes_later: bool = False,
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Callable[P, R]], TypedTool[P, R]]:
    """Make a function a tool.

    Its arguments are either one pydantic model or plain parameters with types; `Annotated[..., Field(...)]`
    describes and constrains them. A last parameter of type `ToolInvocation` receives the invocation. The name
    defaults to the function's in lower case and without leading underscores, the description to the first paragraph
    of its docstring, `retry` to five attempts where the contract allows repeating and to one where it does not. The
    other settings are those of `ToolContract`, which says what they mean; `timeout` and `lost_after` are in
    seconds.

    Raises `ToolRefused` for a signature that cannot be a tool's, and for a contract or schema that promises what cannot
    be kept.
    """

    def make(function: Callable[P, R]) -> TypedTool[P, R]:
        with _mistakes_named(function):
            own_name = _own_name(function)
            parameters = parameters_of(function)
            if output_schema is not None:
                check_schema(output_schema)
            contract = ToolContract(
                name=(name or own_name.lstrip("_")).lower(),
                version=version,
                description=description or _first_paragraph(function),
                input_schema=derive_schema(parameters.model),
                output_schema=output_schema,
                output_validation=output_validation,
                side_effect=side_effect,
                idempotency=idempotency,
                approval=approval,
                timeout=timeout,
                lost_after=lost_after,
                heartbeat=heartbeat,
                retry=retry or RetryRule(),
                compensation=compensation,
                reconciles=reconciles,
                resource_version=resource_version,
                capabilities=tuple(capabilities),
                model_output=model_output,
                settings=tuple(settings),
                completes_later=completes_later,
                metadata=dict(metadata),
            )
        if retry is None and contract.repeatable:
            contract = contract.model_copy(update={"retry": RetryRule(max_attempts=5)})
        return TypedTool.of(function, contract, parameters)

    return make


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
