"""The bases of every payload, and how one from outside is decoded."""

from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

T = TypeVar("T")

# A list in a payload that anybody may write: the first wrong item ends it. To list what is wrong with a million of them
# takes longer than a workflow task may.
FromOutside = Annotated[tuple[T, ...], FailFast()]


class Record(BaseModel):
    """An immutable payload. Unknown fields are ignored, so that older and newer workers can share one history."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @classmethod
    def from_wire(cls, data: bytes) -> Self:
        """Decode JSON written by somebody else, without coercing one type into another.

        Raises `MalformedPayload` with one line a person can act on.
        """
        try:
            return cls.model_validate_json(data or b"null", strict=True)
        except ValidationError as error:
            raise MalformedPayload(describe(error)) from None


class SparseRecord(Record):
    """A record that leaves fields with their default value out of its JSON: what is not there costs no history."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {
            name: value
            for name, value in serialize(self).items()
            if fields[name].is_required() or getattr(self, name) != fields[name].default
        }


class AuthoredRecord(Record):
    """A record that people write in Python. There a field that does not exist is refused: misspelt, a limit would not
    hold. In JSON it may come from a newer worker, and is ignored."""

    @model_validator(mode="before")
    @classmethod
    def _every_field_exists(cls, value: object, info: ValidationInfo) -> object:
        if info.mode == "python" and isinstance(value, dict):
            wrong = PydanticCustomError("no_such_field", "there is no such field")
            unknown = [
                InitErrorDetails(type=wrong, loc=(str(name),), input=None)
                for name in value
                if name not in cls.model_fields
            ]
            if unknown:
                raise ValidationError.from_exception_data(cls.__name__, unknown)
        return value


class MalformedPayload(Exception):
    """A payload from outside does not have the shape it needs. The message names the fields, never their values."""


def describe(error: ValidationError, most: int = 5) -> str:
    """One line for a validation error: `field: what is wrong; ...`. Values are left out: they may be secret or huge."""
    issues = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, issue['loc'])) or 'payload'}: {issue['msg']}" for issue in issues[:most]]
    if len(issues) > most:
        lines.append(f"and {len(issues) - most} more")
    return "; ".join(lines)
