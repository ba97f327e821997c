"""What a reply of Anthropic's Messages API says, sent at once or folded from a stream."""

from pydantic import JsonValue

from activities.providers import failures
from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, ModelFailure, RawToolCall
from activities.providers.readings import argument_text, as_list, as_object, as_text, count, objects
from activities.schemas import depth_of
from contracts.messages import Usage
from contracts.text import legal_json

# A block of the API's own is stored and sent back as it is: a search result has about six levels.
BLOCK_MAX_DEPTH = 64
# "Handling stop reasons": the limit of the request, and the model's whole window.
_CUT_OFF = frozenset({"max_tokens", "model_context_window_exceeded"})


def completion(reply: dict[str, JsonValue], target: Endpoint) -> Completion:
    """What the body of a 200 says. Raises `ModelFailure` if it holds an error, a refusal, or no reply at all."""
    if error := failures.error_in(reply):
        raise failures.from_error(error, target)
    content, usage = reply.get("content"), usage_of(reply.get("usage"))
    if not isinstance(content, list):
        reason = f"{target.address} answered 200 without a reply"
        raise ModelFailure("ModelUnavailable", reason, retryable=True, usage=usage)
    turn = _Turn()
    for block in objects(content):
        turn.add(block, usage)
    finish_reason = as_text(reply.get("stop_reason")) or None
    text = "".join(turn.texts)
    if finish_reason == "refusal":
        raise _refused(as_object(reply.get("stop_details")), text, usage)
    return Completion(
        text=text,
        calls=tuple(turn.calls),
        finish_reason=finish_reason,
        truncated=finish_reason in _CUT_OFF,
        paused=finish_reason == "pause_turn",
        usage=usage,
        opaque=tuple(turn.entries) if turn.needs_its_order else (),
    )


def usage_of(told: JsonValue) -> Usage | None:
    """The API's counts as ours. Its `input_tokens` leaves out what was read from the prompt cache and written to it;
    ours is all input ("Prompt caching: Tracking cache performance"). None where nothing was told."""
    if not isinstance(told, dict):
        return None
    read, written = count(told.get("cache_read_input_tokens")), count(told.get("cache_creation_input_tokens"))
    spoken = count(told.get("output_tokens"))
    thought = count(as_object(told.get("output_tokens_details")).get("thinking_tokens"))
    return Usage(
        input_tokens=count(told.get("input_tokens")) + read + written,
        output_tokens=spoken,
        cached_input_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=min(thought, spoken),
    )


class _Turn:
    """An assistant turn, block by block, as `Message.opaque` has it.

    A text with citations is listed as its text, so that it is counted once and any other model can read it, and then
    as a block of type text that holds all the rest: `messages_turns` puts the two together again.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[RawToolCall] = []
        self.entries: list[JsonValue] = []
        self.needs_its_order = False

    def add(self, block: dict[str, JsonValue], usage: Usage | None) -> None:
        """Take the next block. `usage` is what a failure over it has cost."""
        match block.get("type"):
            case "text":
                self._add_text(block, usage)
            case "tool_use":
                self.entries.append({"call": len(self.calls)})
                self.calls.append(_call(block))
            case str():
                self._add_block(block, usage)

    def _add_text(self, block: dict[str, JsonValue], usage: Usage | None) -> None:
        text = as_text(block.get("text"))
        if not text:
            return
        self.needs_its_order |= bool(self.calls)
        self.texts.append(text)
        self.entries.append({"text": len(text)})
        if as_list(block.get("citations")) and text.strip():
            self._add_block({key: value for key, value in block.items() if key != "text"}, usage)

    def _add_block(self, block: dict[str, JsonValue], usage: Usage | None) -> None:
        if depth_of(block) > BLOCK_MAX_DEPTH:
            raise ModelFailure("ModelBehaviour", "a block of the reply is nested too deeply to be kept", usage=usage)
        entry: dict[str, JsonValue] = {"block": legal_json(block)}
        if block.get("type") == "thinking" and as_text(block.get("thinking")):
            entry["reasoning"] = ["/thinking"]
        self.entries.append(entry)
        self.needs_its_order = True


def _call(block: dict[str, JsonValue]) -> RawToolCall:
    """A call as it came. One without a name is kept: the model must hear that it was not understood."""
    return RawToolCall(
        name=as_text(block.get("name")),
        arguments=argument_text(block.get("input")),
        provider_call_id=as_text(block.get("id")) or None,
    )


def _refused(details: dict[str, JsonValue], text: str, usage: Usage | None) -> ModelFailure:
    """The refusal with what is known of it: "Streaming refusals", `stop_details`. Text before it is no answer."""
    said = [as_text(details.get("category")), as_text(details.get("explanation")), text]
    reason = "; ".join(part for part in said if part.strip())
    return ModelFailure("ModelRefused", f"the model refused: {reason}" if reason else "the model refused", usage=usage)
