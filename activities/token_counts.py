"""How many tokens a request has: by the built-in estimate, or as an app's own counter says."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pydantic import JsonValue

from activities.providers.legal import compact_json
from contracts.messages import Message
from contracts.projection import estimate_tokens
from contracts.text import encodable
from contracts.tools import ToolContract

# How many tokens a text has. A pure function: equal transcripts must be cut at equal places.
Count = Callable[[str], int]

# What every API puts around a message, a tool or a schema: its role, and where it begins and ends.
FRAME_TOKENS = 4


@dataclass(frozen=True)
class TokenCounter:
    """An exact counter, for the models whose `<provider>:<name>` begins with `models`, for example "openai:" or
    "openai:gpt-4.1". The longest such beginning wins.

    `count` returns the tokens of a text, 0 or more. It is called for each message of each request, so keep it quick,
    and it must take any text: for many tokenizers that means to take special tokens as plain text. A worker picks the
    counter up where an app's module has it as a public variable.
    """

    models: str
    count: Count

    @property
    def source(self) -> str:
        """What messages call this counter."""
        name = getattr(self.count, "__qualname__", type(self.count).__qualname__)
        return f"{getattr(self.count, '__module__', None) or 'an app'}.{name}"


class CountFailed(Exception):
    """An app's counter raised an exception, or returned what is no number of tokens. The message names the counter and
    holds no word of the text."""


def counter_for(model: str, counters: Iterable[TokenCounter] = ()) -> Count:
    """What counts the tokens of this model, given as `<provider>:<name>`: the counter with the longest `models` that
    the name begins with, else `estimate_tokens`. What it returns raises `CountFailed` where the counter does not
    work: an estimate in its place would cut elsewhere."""
    counter = max((each for each in counters if model.startswith(each.models)), key=_length, default=None)
    return estimate_tokens if counter is None else _checked(counter)


def message_tokens(message: Message, count: Count) -> int:
    """The tokens of one message as it is sent: its text, calls with their arguments as JSON, and blocks of the API's
    own."""
    pieces = [encodable(message.text)] if message.text else []
    if message.call_id is not None:
        pieces.append(encodable(message.call_id))
    for call in message.tool_calls:
        pieces.append(compact_json({"id": call.call_id, "name": call.tool, "arguments": call.arguments}))
    # The other parts of a turn only point into its text and its calls.
    pieces += [compact_json(part["block"]) for part in message.opaque if isinstance(part, dict) and "block" in part]
    return FRAME_TOKENS * (1 + len(message.tool_calls)) + count("\n".join(pieces))


def text_tokens(text: str, count: Count) -> int:
    """The tokens of a system text; none where it is empty."""
    return FRAME_TOKENS + count(encodable(text)) if text else 0


def tool_tokens(tool: ToolContract, count: Count) -> int:
    """The tokens of what the model is told of a tool: name, description and input schema, as JSON."""
    return schema_tokens(
        {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        count,
    )


def schema_tokens(schema: JsonValue, count: Count) -> int:
    """The tokens of a schema as JSON."""
    return FRAME_TOKENS + count(compact_json(schema))


def _length(counter: TokenCounter) -> int:
    return len(counter.models)


def _checked(counter: TokenCounter) -> Count:
    about = f"the token counter {counter.source} for models {counter.models!r}"

    def count(text: str) -> int:
        try:
            tokens = counter.count(text)
        except Exception as error:
            # Its words may quote the text: only the worker's log gets them.
            reason = f"{about} raised {type(error).__name__} on a text of {len(text)} characters"
            raise CountFailed(reason) from error
        if type(tokens) is not int or tokens < 0:
            shown = tokens if type(tokens) is int else f"a {type(tokens).__name__}"
            raise CountFailed(f"{about} returned {shown}, which is no number of tokens")
        return tokens

    return count
