"""What a model sees and says."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from contracts.records import FromOutside, SparseRecord


class ToolCall(SparseRecord):
    """A call the model asked for, with arguments that are valid against the tool's schema.

    `call_id` is the runtime's own and unique in the run; `provider_call_id` is what the model's API called it, which
    may be missing or repeat.
    """

    call_id: str
    tool: str
    arguments: dict[str, JsonValue]
    provider_call_id: str | None = None


class ArgumentIssue(SparseRecord):
    """One thing that is wrong with a value. `pointer` is a JSON Pointer into the value, "/" for the whole;
    `schema_path` one into the schema, to the keyword that was broken, empty where it was not the schema's to say."""

    pointer: str = "/"
    message: str
    schema_path: str = ""

    def __str__(self) -> str:
        return self.message if self.pointer == "/" else f"{self.pointer}: {self.message}"

    def as_json(self) -> JsonValue:
        """The issue as an outcome's metadata lists it."""
        return {"instance_path": self.pointer, "schema_path": self.schema_path, "message": self.message}


class InvalidToolCall(SparseRecord):
    """A call that must not run. `raw` keeps what the model wrote, for audit; `arguments` is the legal object that
    stands in for it in the transcript: what could be parsed, else empty."""

    call_id: str
    tool: str
    issues: tuple[ArgumentIssue, ...]
    reason: Literal["invalid_arguments", "unknown_tool", "truncated_reply", "denied"]
    raw: str = ""
    arguments: dict[str, JsonValue] = {}
    provider_call_id: str | None = None

    def as_call(self) -> ToolCall:
        """The call as the transcript shows it to the model."""
        return ToolCall(
            call_id=self.call_id, tool=self.tool, arguments=self.arguments, provider_call_id=self.provider_call_id
        )


# Only an invalid call has issues, so the order of the union tells the two apart.
ProposedCall = Annotated[InvalidToolCall | ToolCall, Field(union_mode="left_to_right")]


class Message(SparseRecord):
    """One entry of a transcript.

    user: text. assistant: text, tool_calls, opaque. tool: text, the answer to `call_id`, with `ok` false for a failure.
    System text belongs to the agent and is no message.

    `opaque` is empty where a turn is just its text and then its calls. Else it lists all parts of the turn in order:
    `{"text": n}` is the next n characters of the text, `{"call": n}` the call at index n, and
    `{"from": "<provider>:<model>", "block": {...}, "reasoning": [...]}` a block that goes back to that model unchanged,
    with JSON Pointers to the model's reasoning inside it.
    """

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    tool_calls: FromOutside[ToolCall] = ()
    call_id: str | None = None
    ok: bool = True
    opaque: tuple[JsonValue, ...] = ()


class Usage(SparseRecord):
    """Tokens, as the provider counted them, over every attempt that was billed. Cached and written tokens are a part of
    the input, reasoning is one of the output, whatever the provider's own numbers mean."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output: the other three are parts of these."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})


def illegality(messages: Sequence[Message]) -> str | None:
    """Why no provider would accept this conversation, or None. Every call is answered exactly once, right after; only
    an assistant's turn has opaque parts, each of the shape that `Message` describes."""
    open_calls: dict[str, None] = {}
    seen: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.opaque and message.role != "assistant":
            return f"{where} has role {message.role} and opaque"
        strange = [number for number, part in enumerate(message.opaque) if not _is_part(part)]
        if strange:
            return f"{where}.opaque[{strange[0]}] is neither a text, nor a call, nor a block with the model it is from"
        if message.role == "tool":
            if message.call_id not in open_calls:
                return f"{where} answers call {message.call_id!r}, which no assistant message before it left open"
            del open_calls[message.call_id or ""]
            continue
        if open_calls:
            return f"{where} comes before the answer to call {next(iter(open_calls))!r}"
        if message.role == "user" and message.tool_calls:
            return f"{where} has role user and tool_calls"
        if not (message.text.strip() or message.tool_calls or message.opaque):
            return f"{where} is empty"
        for call in message.tool_calls:
            if call.call_id in seen:
                return f"{where} repeats the call id {call.call_id!r}"
            seen.add(call.call_id)
            open_calls[call.call_id] = None
    return f"call {next(iter(open_calls))!r} is not answered" if open_calls else None


def _is_part(part: JsonValue) -> bool:
    match part:
        case {"text": int()} | {"call": int()} | {"from": str(), "block": dict()}:
            return True
    return False
