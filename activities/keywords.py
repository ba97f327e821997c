"""JSON Schema's keywords, exact, and within a budget: arguments are written by a model, so what it costs to judge them
must not grow faster than they do, whatever the schema."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.exceptions import FormatError
from jsonschema.protocols import Validator as JsonSchemaValidator
from jsonschema.validators import extend
from pydantic import JsonValue

from activities.formats import FORMAT_CHECKER
from activities.verdicts import listed, short, shown

# A step is about one keyword applied to one value, 2 to 5 microseconds. Enough for 256 KiB of numbers.
MOST_STEPS = 250_000
# How long a text may be that is searched for a pattern that repeats something, or checked for a format. `re` cannot be
# interrupted, and such a search may take the square of the length, or far worse: a pattern like (a+)+$ is never safe.
SEARCHED_MAX_CHARACTERS = 4_096

_REPEATS = re.compile(r"[*+?{]")
# Steps are charged by what takes about as long.
_CHARACTERS_PER_STEP = 64
_TRIES_PER_STEP = 400
_SEARCHES_PER_STEP = 2
_LOOKS_PER_STEP = 64
_ERROR_STEPS = 3
_REFERENCE_STEPS = 3

Keyword = Callable[[JsonSchemaValidator, object, JsonValue, object], Iterator[ValidationError]]


class Unjudged(Exception):
    """A value that is neither valid nor invalid: judging it would cost too much. The message is for the model.

    No `ValidationError`, because under `not` or `if` that would make the value valid.
    """


class Budget:
    """Steps that may be spent on judging: on one value, or on several together."""

    def __init__(self, steps: int = MOST_STEPS) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Raises `Unjudged` once there is nothing left."""
        self.left -= steps
        if self.left < 0:
            raise Unjudged("too much to check: send less, or nest it less deeply")

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Keywords that are applied inside the block spend from this budget."""
        token = _BUDGET.set(self)
        try:
            yield
        finally:
            _BUDGET.reset(token)


# The library hands keywords nothing that could carry it.
_BUDGET: ContextVar[Budget] = ContextVar("budget")


def _spend(steps: int) -> None:
    _BUDGET.get().spend(steps)


def weight(value: object) -> int:
    """About how much a value is to look at, in steps: one for each value in it, more for long texts and numbers."""
    total, left = 0, [value]
    while left:
        one = left.pop()
        total += 1
        match one:
            case str():
                total += len(one) // _CHARACTERS_PER_STEP
            case int():
                total += one.bit_length() // _CHARACTERS_PER_STEP
            case dict():
                left += one.keys()
                left += one.values()
            case list() | tuple():
                left += one
    return total


def identity(value: JsonValue) -> str:
    """A text that two values share exactly if JSON Schema calls them equal: 1 and 1.0 are, 1 and true are not."""
    match value:
        case dict():
            members = (f"{json.dumps(key)}:{identity(value[key])}" for key in sorted(value))
            return "{" + ",".join(members) + "}"
        case list() | tuple():
            return "[" + ",".join(map(identity, value)) + "]"
        case int() | float() if not isinstance(value, bool):
            # Digits without zeros at their end, and a power of ten, so that 1e300 is not written out.
            number = Decimal(repr(value))
            sign, digits, exponent = number.as_tuple()
            written = "".join(map(str, digits)).lstrip("0")
            stripped = written.rstrip("0")
            if isinstance(exponent, str) or not stripped:
                return "0" if number == 0 else repr(value)
            return f"{'-' * sign}{stripped}e{exponent + len(written) - len(stripped)}"
    return json.dumps(value)


def _counted(keyword: str, check: Keyword) -> Keyword:
    """The keyword, charged for: also for its errors, whose texts the library writes with the whole value in them."""
    base = 1 + (_REFERENCE_STEPS if keyword == "$ref" else 0)

    def counted(
        validator: JsonSchemaValidator, wanted: object, value: JsonValue, schema: object
    ) -> Iterator[ValidationError]:
        _spend(base + (len(wanted) // _LOOKS_PER_STEP if isinstance(wanted, list | dict) else 0))
        for error in check(validator, wanted, value, schema) or ():
            is_new = not isinstance(error.validator, str)
            _spend(1 + (_ERROR_STEPS + weight(value) if is_new else 0))
            yield error

    return counted


def _required(_: JsonSchemaValidator, names: list[str], value: JsonValue, schema: object) -> Iterator[ValidationError]:
    """As the library's, with one error a field and the field in its path."""
    for name in names:
        if isinstance(value, dict) and name not in value:
            yield ValidationError(f"missing field {shown(name)}", path=[name])


def _additional(
    validator: JsonSchemaValidator, rule: JsonValue, value: JsonValue, schema: dict[str, dict[str, JsonValue]]
) -> Iterator[ValidationError]:
    """As the library's, with one error a field and the field in its path."""
    if rule is True or not isinstance(value, dict):
        return
    declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    _spend(len(value) // _LOOKS_PER_STEP + len(value) * len(patterns) // _SEARCHES_PER_STEP)
    unknown = [
        name for name in value if name not in declared and not any(_matches(pattern, name) for pattern in patterns)
    ]
    if rule is not False:
        for name in unknown:
            yield from _inside(validator, name, value[name], rule)
    elif unknown:
        expected = f"the fields are {listed(declared)}" if declared else "there are no fields"
        for name in unknown:
            yield ValidationError(f"unknown field; {expected}", path=[name])


def _pattern_properties(
    validator: JsonSchemaValidator, patterns: dict[str, JsonValue], value: JsonValue, schema: object
) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    _spend(len(value) * len(patterns) // _SEARCHES_PER_STEP)
    for name, item in value.items():
        for pattern, rule in patterns.items():
            if _matches(pattern, name):
                yield from _inside(validator, name, item, rule)


def _inside(validator: JsonSchemaValidator, name: str, value: JsonValue, rule: JsonValue) -> Iterator[ValidationError]:
    for error in validator.evolve(schema=rule).iter_errors(value):
        error.relative_path.appendleft(name)
        yield error


def _pattern(_: JsonSchemaValidator, pattern: str, value: JsonValue, schema: object) -> Iterator[ValidationError]:
    if isinstance(value, str) and not _matches(pattern, value):
        yield ValidationError("pattern")


def _format(validator: JsonSchemaValidator, name: str, value: JsonValue, schema: object) -> Iterator[ValidationError]:
    if not isinstance(value, str):
        return
    _check_length(value, f"format {shown(name)}")
    _spend(len(value) // _CHARACTERS_PER_STEP)
    try:
        FORMAT_CHECKER.check(value, name)
    # The checkers are other people's parsers, and the text is a model's: whatever they stumble over is not valid.
    except (FormatError, ArithmeticError, ValueError, TypeError, LookupError, RecursionError):
        yield ValidationError("format")


def _multiple_of(_: JsonSchemaValidator, step: float, value: JsonValue, schema: object) -> Iterator[ValidationError]:
    """Exact, in the decimals that were written: 0.3 is a multiple of 0.1, which it is not in binary."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        _spend(weight(value))
        if _exact(value) % _exact(step):
            yield ValidationError("multipleOf")


def _exact(number: float) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def _unique_items(_: JsonSchemaValidator, wanted: bool, value: JsonValue, schema: object) -> Iterator[ValidationError]:
    if not wanted or not isinstance(value, list) or len(value) < 2:
        return
    _spend(weight(value))
    # Texts, because Python's hashes of numbers can be made to collide by whoever writes the numbers.
    if len({identity(item) for item in value}) < len(value):
        yield ValidationError("uniqueItems")


def _enum(
    _: JsonSchemaValidator, wanted: list[JsonValue], value: JsonValue, schema: object
) -> Iterator[ValidationError]:
    if not _is_one_of(wanted, value):
        yield ValidationError("enum")


def _const(_: JsonSchemaValidator, wanted: JsonValue, value: JsonValue, schema: object) -> Iterator[ValidationError]:
    if not _is_one_of([wanted], value):
        yield ValidationError("const")


def _is_one_of(wanted: list[JsonValue], value: JsonValue) -> bool:
    if isinstance(value, str):
        return value in wanted
    _spend(weight(wanted) + weight(value))
    mine = identity(value)
    return any(identity(each) == mine for each in wanted)


def _unevaluated(keyword: str) -> Keyword:
    """The library's, which looks for each item in the list of those that were evaluated."""
    check: Keyword = Draft202012Validator.VALIDATORS[keyword]

    def unevaluated(
        validator: JsonSchemaValidator, rule: object, value: JsonValue, schema: object
    ) -> Iterator[ValidationError]:
        _spend(len(value) ** 2 // _LOOKS_PER_STEP if isinstance(value, list | dict) else 0)
        return check(validator, rule, value, schema)

    return unevaluated


def _matches(pattern: str, text: str) -> bool:
    if _REPEATS.search(pattern):
        _check_length(text, f"pattern {shown(pattern)}")
        _spend(len(text) ** 2 // _TRIES_PER_STEP)
    else:
        _spend(len(text) // _CHARACTERS_PER_STEP)
    return bool(_expression(pattern).search(text))


def _check_length(text: str, checked_for: str) -> None:
    if len(text) > SEARCHED_MAX_CHARACTERS:
        raise Unjudged(
            f"a text of {len(text)} characters cannot be checked for {checked_for}, which is done up to "
            f"{SEARCHED_MAX_CHARACTERS}; it begins with {short(text, 20)}"
        )


# As many as one schema can hold, so that they do not push each other out.
@lru_cache(maxsize=16_384)
def _expression(pattern: str) -> re.Pattern[str]:
    """The pattern with JSON Schema's `$`, the end of the text: Python's also matches before a last newline."""
    return re.compile(
        re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]|\$", lambda part: r"\Z" if part[0] == "$" else part[0], pattern, flags=re.S)
    )


_EXACT: dict[str, Callable[..., Iterator[ValidationError]]] = {
    "additionalProperties": _additional,
    "const": _const,
    "enum": _enum,
    "format": _format,
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "required": _required,
    "unevaluatedItems": _unevaluated("unevaluatedItems"),
    "unevaluatedProperties": _unevaluated("unevaluatedProperties"),
    "uniqueItems": _unique_items,
}
# One class for checking and judging. The keywords replaced are those whose errors or arithmetic would be too coarse, or
# whose cost would grow faster than the value. The stubs of jsonschema leave `extend` untyped.
ExactValidator: type[JsonSchemaValidator] = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {keyword: _counted(keyword, check) for keyword, check in {**Draft202012Validator.VALIDATORS, **_EXACT}.items()},
)
