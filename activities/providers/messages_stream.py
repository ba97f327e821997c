"""The events of a streamed reply of the Messages API, folded into the reply that it would have sent at once."""

import json
from collections.abc import Iterable, Iterator, Mapping

from pydantic import JsonValue

from activities.providers import failures
from activities.providers.dialect import ReplyStream
from activities.providers.failures import Endpoint
from activities.providers.interface import Delta, ModelFailure
from activities.providers.messages_replies import usage_of
from activities.providers.readings import argument_text, as_list, as_object, as_text, decoded
from contracts.messages import Usage

# Old gateways end with it. It is no end here: the API's own is `message_stop`.
_FOREIGN_END = "[DONE]"


class MessagesStream(ReplyStream):
    """Folds one stream. Its end is `message_stop`; a connection that closes before it broke the reply off, whatever it
    said until then ("Streaming messages: Event types"). Events of kinds that are not known are left out, and so is
    everything about a block but what its own start and deltas say."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._message: dict[str, JsonValue] = {}
        self._usage: dict[str, JsonValue] = {}
        self._blocks: list[_Block] = []
        self._open: dict[int, _Block] = {}
        self._calls = 0
        self._ended = False

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def may_end(self) -> bool:
        return False

    @property
    def usage(self) -> Usage | None:
        return usage_of(self._usage) if self._usage else None

    def add(self, event: str, data: str) -> Iterable[Delta]:
        if not data.strip() or data.strip() == _FOREIGN_END:
            return ()
        fields = decoded(data, self._endpoint)
        kind = as_text(fields.get("type")) or event
        error = failures.error_in(fields)
        if error or "error" in (event, kind):
            # Some gateways leave out the level that names the error.
            said = error or failures.error_in({"error": fields}) or failures.ReportedError(data)
            raise failures.from_error(said, self._endpoint)
        match kind:
            case "message_start":
                message = as_object(fields.get("message"))
                self._count(message.get("usage"))
                self._message.update(message)
            case "content_block_start":
                return self._begin(fields)
            case "content_block_delta":
                return self._grow(fields)
            case "message_delta":
                self._count(fields.get("usage"))
                self._message.update(_without(fields, "type", "delta", "usage"))
                self._message.update(as_object(fields.get("delta")))
            case "message_stop":
                self._ended = True
        return ()

    def reply(self) -> dict[str, JsonValue]:
        return {**self._message, "usage": self._usage or None, "content": [block.whole() for block in self._blocks]}

    def _count(self, told: JsonValue) -> None:
        """A later event corrects what an earlier one said, and is silent on the rest."""
        self._usage.update({name: value for name, value in as_object(told).items() if value is not None})

    def _begin(self, fields: dict[str, JsonValue]) -> Iterable[Delta]:
        start, index = fields.get("content_block"), fields.get("index")
        if not isinstance(start, dict) or not isinstance(index, int):
            raise self._cannot_be_followed("a block begins without saying what it is")
        block = _Block(start, self._calls)
        self._calls += block.is_call
        self._blocks.append(block)
        self._open[index] = block
        return block.first()

    def _grow(self, fields: dict[str, JsonValue]) -> Iterable[Delta]:
        index = fields.get("index")
        block = self._open.get(index) if isinstance(index, int) else None
        if block is None:
            raise self._cannot_be_followed("there is a piece of a block that never began")
        return block.grow(as_object(fields.get("delta")))

    def _cannot_be_followed(self, reason: str) -> ModelFailure:
        return ModelFailure("ModelUnavailable", f"{self._endpoint.address}: {reason}", retryable=True)


class _Block:
    """A block of content as far as it has come. `call` is its number among the calls if it is one."""

    def __init__(self, start: dict[str, JsonValue], call: int) -> None:
        self._fields = dict(start)
        # Joined once, at the end: a long text comes in thousands of pieces.
        self._pieces: dict[str, list[str]] = {}
        self._citations = [*as_list(start.get("citations"))]
        self._call = call
        self._name = as_text(start.get("name"))
        self.is_call = start.get("type") == "tool_use"

    def first(self) -> Iterator[Delta]:
        """What the block's start brings for people who watch."""
        if self.is_call:
            given = self._fields.get("input")
            yield Delta("tool_call", argument_text(given) if given else "", self._call, self._name)
        if text := as_text(self._fields.get("text")):
            yield Delta("text", text)
        if thought := as_text(self._fields.get("thinking")):
            yield Delta("reasoning", thought)

    def grow(self, delta: dict[str, JsonValue]) -> Iterator[Delta]:
        """Take a delta of any kind: texts grow, citations gather, all else is the latest. Returns what to show."""
        for name, value in _without(delta, "type").items():
            match value:
                case str():
                    self._pieces.setdefault(name, [as_text(self._fields.get(name))]).append(as_text(value))
                case None:
                    pass
                case _ if delta.get("type") == "citations_delta":
                    self._citations.append(value)
                case _:
                    self._fields[name] = value
        if text := as_text(delta.get("text")):
            yield Delta("text", text)
        if thought := as_text(delta.get("thinking")):
            yield Delta("reasoning", thought)
        written = as_text(delta.get("partial_json"))
        if written and self.is_call:
            yield Delta("tool_call", written, self._call, self._name)

    def whole(self) -> dict[str, JsonValue]:
        """The block. The input of a call stays the text that the model wrote, so that nothing in it is repaired."""
        grown: dict[str, JsonValue] = {name: "".join(pieces) for name, pieces in self._pieces.items()}
        written = as_text(grown.pop("partial_json", None))
        fields = {**self._fields, **grown}
        if self._citations:
            fields["citations"] = self._citations
        if self.is_call:
            fields["input"] = written or fields.get("input") or ""
        elif written:
            fields["input"] = _value_of(written)
        return fields


def _value_of(written: str) -> JsonValue:
    """The value of a JSON text; the text itself if it was cut off."""
    try:
        value: JsonValue = json.loads(written)
    except (ValueError, RecursionError):
        return written
    return value


def _without(fields: Mapping[str, JsonValue], *names: str) -> dict[str, JsonValue]:
    return {name: value for name, value in fields.items() if name not in names}
