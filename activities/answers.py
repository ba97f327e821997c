"""Whether a model's answer matches the schema that it must match."""

from pydantic import JsonValue

from activities.arguments import UnreadableArguments, checked, read_arguments
from activities.schemas import compile_schema


def check_answer(text: str, schema: dict[str, JsonValue]) -> tuple[JsonValue, tuple[str, ...]]:
    """The answer as JSON, and what is wrong with it, a line each. It is read as arguments are: prose and code fences
    around exactly one object are left out, nothing is completed or repaired. Without issues it matches."""
    try:
        answer, issues = checked(read_arguments(text), compile_schema(schema))
    except UnreadableArguments as error:
        return None, (str(error).replace("the arguments", "the answer"),)
    return (None, tuple(map(str, issues))) if issues else (answer, ())
