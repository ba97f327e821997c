"""What a reply of the Responses API says: its items in order, and how it ended."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import JsonValue

from activities.providers import failures
from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, ModelFailure, RawToolCall
from activities.providers.readings import argument_text, as_list, as_object, as_text, count, objects
from activities.schemas import depth_of
from contracts.messages import Usage
from contracts.text import legal_json

# A block is recorded in history, whose readers give up at some 200 levels; those that were seen have 10.
BLOCK_MAX_DEPTH = 64

# How a response may stand that is not over (API reference, Responses, "status"): only background mode knows them.
_PENDING = frozenset({"queued", "in_progress"})


def completion(reply: dict[str, JsonValue], target: Endpoint) -> Completion:
    """What the body of a 200 says. Raises `ModelFailure`, with the usage told, if it holds an error, a refusal, or no
    reply at all."""
    used = usage(reply.get("usage"))
    try:
        return _completion(reply, target, used)
    except ModelFailure as failure:
        failure.usage = used
        raise


def usage(told: JsonValue) -> Usage | None:
    """The tokens that a response tells of, or None. Its input includes what was cached, its output the reasoning."""
    if not isinstance(told, dict):
        return None
    input_tokens = count(told.get("input_tokens"))
    details = as_object(told.get("input_tokens_details"))
    # Some servers count cached tokens that they leave out of the input.
    cached = min(count(details.get("cached_tokens")), input_tokens)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=count(told.get("output_tokens")),
        cached_input_tokens=cached,
        cache_write_tokens=min(count(details.get("cache_write_tokens")), input_tokens - cached),
        reasoning_tokens=count(as_object(told.get("output_tokens_details")).get("reasoning_tokens")),
    )


@dataclass
class _Turn:
    """The items of a reply, read one after another. `unfinished` says that a call in it was cut off."""

    text: str = ""
    calls: list[RawToolCall] = field(default_factory=list)
    parts: list[JsonValue] = field(default_factory=list)
    refusal: str = ""
    unfinished: bool = False

    def read(self, item: dict[str, JsonValue]) -> None:
        match item.get("type"):
            case "message":
                self._message(as_list(item.get("content")))
            case "function_call":
                self.parts.append({"call": len(self.calls)})
                self.calls.append(
                    RawToolCall(
                        name=as_text(item.get("name")),
                        arguments=argument_text(item.get("arguments")),
                        provider_call_id=as_text(item.get("call_id")) or None,
                    )
                )
                self.unfinished = self.unfinished or item.get("status") == "incomplete"
            case str():
                block = _block(item)
                self.parts.append({"block": block, "reasoning": [*_reasoning(block)]})

    def _message(self, content: list[JsonValue]) -> None:
        written = ""
        for part in objects(content):
            match part.get("type"):
                case "output_text" | "text":
                    written += as_text(part.get("text"))
                case "refusal":
                    self.refusal = f"{self.refusal} {as_text(part.get('refusal'))}".strip()
        if written:
            self.text += written
            self.parts.append({"text": len(written)})

    def opaque(self) -> tuple[JsonValue, ...]:
        """All parts in order, unless they are just texts and then calls."""
        kinds = [next(iter(as_object(part))) for part in self.parts]
        return () if kinds == sorted(kinds, reverse=True) and "block" not in kinds else tuple(self.parts)


def _completion(reply: dict[str, JsonValue], target: Endpoint, used: Usage | None) -> Completion:
    if error := failures.error_in(reply):
        raise failures.from_error(error, target)
    status, items = as_text(reply.get("status")), [*objects(reply.get("output"))]
    if not status and not items:
        raise ModelFailure("ModelUnavailable", f"{target.address} answered 200 without a reply", retryable=True)
    if status in ("failed", "cancelled") or (status in _PENDING and items):
        raise ModelFailure("ModelUnavailable", f"{target.address} broke the reply off: {status}", retryable=True)
    turn = _Turn()
    for item in items:
        turn.read(item)
    reason = as_text(as_object(reply.get("incomplete_details")).get("reason")) if status == "incomplete" else ""
    filtered = reason == "content_filter"
    if turn.refusal:
        raise ModelFailure("ModelRefused", f"the model refused: {turn.refusal}")
    if filtered and not turn.text.strip() and not turn.calls:
        raise ModelFailure("ModelRefused", f"{target.address}: the reply was withheld by a content filter")
    return Completion(
        text=turn.text,
        calls=tuple(turn.calls),
        finish_reason=reason or status or None,
        # What a filter leaves of a text is still an answer; of a call it may leave half.
        truncated=turn.unfinished or (status == "incomplete" and (not filtered or bool(turn.calls))),
        usage=used,
        opaque=turn.opaque(),
    )


def _block(item: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The item as it can be recorded: unchanged, unless there is something in it that is no legal JSON."""
    if depth_of(item) > BLOCK_MAX_DEPTH:
        raise ModelFailure("ModelBehaviour", "an item of the reply is nested too deeply to be kept")
    return as_object(legal_json(item))


def _reasoning(block: dict[str, JsonValue]) -> Iterable[str]:
    """JSON Pointers to what a reasoning item lets read: summaries, and thoughts where a server shows them."""
    for place in ("summary", "content") if block["type"] == "reasoning" else ():
        for index, part in enumerate(as_list(block.get(place))):
            if as_text(as_object(part).get("text")):
                yield f"/{place}/{index}/text"
