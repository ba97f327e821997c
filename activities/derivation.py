"""From Python types to input schemas: a pydantic model, or a function's parameters made into one."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import SchemaError

from activities.formats import FORMATS
from activities.schemas import LISTED, NAMED, SINGLE, SchemaRefused, check_schema
from contracts.tools import ToolInvocation

# What pydantic writes that no validator enforces. The Python type still checks it when the tool is called.
_UNENFORCED = frozenset({"discriminator", "contentMediaType", "contentEncoding", "contentSchema"})
_UNSUPPORTED = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values",
    inspect.Parameter.VAR_KEYWORD: "takes fields of any name",
}


class _Generator(GenerateJsonSchema):
    """Pydantic's schema without titles made up from names; what JSON cannot say is refused, not warned about."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        if kind != "skipped-discriminator":
            raise SchemaRefused(detail)


def derive_schema(model: type[BaseModel]) -> dict[str, JsonValue]:
    """The input schema of a model: a plain object at the root, closed wherever the model does not allow extra fields.

    Raises `SchemaRefused`, naming the model, where there is no such schema: a union at the root, a type that JSON does
    not have.
    """
    try:
        schema: dict[str, JsonValue] = model.model_json_schema(schema_generator=_Generator)
        written = schema.pop("$defs", {})
        definitions = written if isinstance(written, dict) else {}
        root = _tidy(_definition(schema, definitions) or schema, definitions)
        # Enumerations were written where they are used.
        named = {name: _tidy(part, definitions) for name, part in definitions.items() if not _is_enumeration(part)}
        for part in (root, *named.values()):
            if isinstance(part, dict):
                part.pop("title", None)
        derived = {**root, **({"$defs": named} if named else {})} if isinstance(root, dict) else {}
        check_schema(derived)
    except (PydanticUserError, SchemaRefused) as error:
        raise SchemaRefused(f"{model.__name__}: {error}") from None
    return derived


def _tidy(schema: JsonValue, definitions: dict[str, JsonValue]) -> JsonValue:
    """The schema closed, without what is not enforced, with enumerations in place of references to them."""
    if not isinstance(schema, dict):
        return schema
    target = _definition(schema, definitions)
    if isinstance(target, dict) and _is_enumeration(target):
        schema = {**target, **schema}
        del schema["$ref"], schema["title"]
    tidy: dict[str, JsonValue] = {}
    for keyword, value in schema.items():
        if keyword in _UNENFORCED or (keyword == "format" and value not in FORMATS):
            continue
        if keyword in SINGLE:
            value = _tidy(value, definitions)
        elif keyword in LISTED and isinstance(value, list):
            value = [_tidy(part, definitions) for part in value]
        elif keyword in NAMED and isinstance(value, dict):
            value = {name: _tidy(part, definitions) for name, part in value.items()}
        tidy[keyword] = value
    if "properties" in tidy:
        tidy.setdefault("additionalProperties", False)
    return tidy


def _definition(schema: dict[str, JsonValue], definitions: dict[str, JsonValue]) -> JsonValue:
    return definitions.get(str(schema.get("$ref", "")).removeprefix("#/$defs/"))


def _is_enumeration(schema: JsonValue) -> bool:
    return isinstance(schema, dict) and ("enum" in schema or "const" in schema)


@dataclass(frozen=True)
class Parameters:
    """What a function takes: the model of its arguments, and how they reach it.

    `whole` names the one parameter that takes the model itself; without it each field of the model goes to the
    parameter that `names` gives. `invocation` names the parameter that takes the `ToolInvocation`.
    """

    model: type[BaseModel]
    whole: str | None
    names: dict[str, str]
    invocation: str | None


def parameters_of(function: Callable[..., object]) -> Parameters:
    """Reads a function's signature. Raises TypeError with the parameter and the mistake."""
    hints = _hints(function)
    signature = inspect.signature(function).parameters
    for name, parameter in signature.items():
        if parameter.kind in _UNSUPPORTED:
            raise TypeError(f"parameter {name!r} {_UNSUPPORTED[parameter.kind]}: a tool's arguments are named fields")
        if name not in hints:
            raise TypeError(f"parameter {name!r} has no type annotation")
        if name.startswith("_"):
            raise TypeError(f"parameter {name!r} starts with an underscore")
    plain = list(signature)
    invocation = plain.pop() if plain and hints[plain[-1]] is ToolInvocation else None
    if misplaced := [name for name in plain if hints[name] is ToolInvocation]:
        raise TypeError(f"parameter {misplaced[0]!r}: the ToolInvocation comes last and once")
    if len(plain) == 1 and (model := _model(hints[plain[0]])):
        return Parameters(model, plain[0], {}, invocation)
    # A parameter may share its name with a method of BaseModel, as `json` does: no parameter is called `json-`.
    names = {f"{name}-" if hasattr(BaseModel, name) else name: name for name in plain}
    fields: dict[str, object] = {}
    for field, name in names.items():
        hint = hints[name] if field == name else Annotated[hints[name], Field(alias=name)]
        default = signature[name].default
        # Without one in the signature, the annotation may hold a default: Annotated[int, Field(default=3)].
        fields[field] = hint if default is inspect.Parameter.empty else (hint, default)
    return Parameters(_arguments_model(function.__name__, fields), None, names, invocation)


def _hints(function: Callable[..., object]) -> dict[str, object]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"an annotation cannot be resolved at module level: {error}") from None


def _model(hint: object) -> type[BaseModel] | None:
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return bare if isinstance(bare, type) and issubclass(bare, BaseModel) else None


def _arguments_model(name: str, fields: dict[str, object]) -> type[BaseModel]:
    config = ConfigDict(extra="forbid", protected_namespaces=())
    try:
        # Any: field definitions are data here, and create_model's overloads want them spelled out.
        definitions: dict[str, Any] = {**fields}
        return create_model(name, __config__=config, **definitions)
    except (PydanticUserError, SchemaError) as error:
        raise TypeError(f"a parameter's type is not one that JSON can hold: {error}") from None
