"""A streamed reply of the Responses API, folded into the response that the API would have sent at once."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from activities.providers import failures
from activities.providers.dialect import ReplyStream
from activities.providers.failures import Endpoint
from activities.providers.interface import Delta
from activities.providers.readings import as_list, as_object, as_text, count, decoded
from activities.providers.responses_replies import usage
from contracts.messages import Usage

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


@dataclass(frozen=True)
class _Writes:
    """What a delta event writes to: the item's list and the part in it, by the list's own index."""

    kind: Literal["text", "reasoning", "refusal"]
    item: str
    parts: str
    index: str
    part: str
    key: str = "text"


_DELTAS: Mapping[str, _Writes] = {
    "response.output_text.delta": _Writes("text", "message", "content", "content_index", "output_text"),
    "response.refusal.delta": _Writes("refusal", "message", "content", "content_index", "refusal", "refusal"),
    "response.reasoning_text.delta": _Writes("reasoning", "reasoning", "content", "content_index", "reasoning_text"),
    "response.reasoning_summary_text.delta": _Writes(
        "reasoning", "reasoning", "summary", "summary_index", "summary_text"
    ),
}
_ARGUMENTS = "response.function_call_arguments.delta"


@dataclass
class _Item:
    """One item of the output: as it was announced, as it was written, and as it was in the end."""

    added: dict[str, JsonValue] = field(default_factory=dict)
    done: dict[str, JsonValue] = field(default_factory=dict)
    written: dict[tuple[str, int], tuple[_Writes, list[str]]] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    call: int | None = None
    name: str = ""

    def whole(self) -> dict[str, JsonValue]:
        """The item, from what is known of it."""
        if self.done:
            return self.done
        item = dict(self.added)
        lists: dict[str, list[JsonValue]] = {}
        for (parts, _), (writes, pieces) in sorted(self.written.items(), key=lambda entry: entry[0]):
            item.setdefault("type", writes.item)
            lists.setdefault(parts, []).append({"type": writes.part, writes.key: "".join(pieces)})
        if self.arguments:
            item = {"type": "function_call", **item, "arguments": "".join(self.arguments)}
        return {**item, **lists}


class ResponsesStream(ReplyStream):
    """Folds the events of `POST /responses` with `stream`.

    What ends a stream (API reference, "Streaming events"): `response.completed`, `response.incomplete`,
    `response.failed`, and the event `error`, which is raised as it comes. A connection that closes before one of them
    broke the reply off, however good the order: every recorded server sends one. `[DONE]`, which some send on top, says
    nothing.

    Items are told apart by `output_index` alone: there are servers that give one item a new id in each event.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._items: dict[int, _Item] = {}
        self._calls = 0
        self._usage: Usage | None = None
        self._response: dict[str, JsonValue] = {}

    def add(self, event: str, data: str) -> Iterable[Delta]:
        """Take one event. Raises `ModelFailure` for an error that it tells of, and for data that is no JSON object."""
        if data.strip() in ("", "[DONE]"):
            return ()
        fields = decoded(data, self._endpoint)
        kind = as_text(fields.get("type")) or event
        if error := failures.error_in({**fields, "type": kind}):
            raise failures.from_error(error, self._endpoint)
        response = as_object(fields.get("response"))
        self._usage = usage(response.get("usage")) or self._usage
        if kind in _ENDS:
            self._response = {**response, "status": response.get("status") or kind.removeprefix("response.")}
        item = self._items.setdefault(_index(fields, "output_index"), _Item()) if "output_index" in fields else _Item()
        return [*self._written(kind, fields, item)]

    @property
    def ended(self) -> bool:
        """Whether a response that is over was seen."""
        return bool(self._response)

    @property
    def may_end(self) -> bool:
        """Never: there is no server that leaves the end out."""
        return False

    @property
    def usage(self) -> Usage | None:
        """The usage that was told last; as a rule only the end tells it."""
        return self._usage

    def reply(self) -> dict[str, JsonValue]:
        """The response as the end has it, its output put together from the items where the end has none."""
        output = [self._as_done(index, item) for index, item in enumerate(as_list(self._response.get("output")))]
        # Some servers tell at the end only how it ended, and leave the output empty.
        return {**self._response, "output": output or [self._items[index].whole() for index in sorted(self._items)]}

    def _written(self, kind: str, fields: dict[str, JsonValue], item: _Item) -> Iterator[Delta]:
        if kind == "response.output_item.added":
            item.added = as_object(fields.get("item"))
            item.name = as_text(item.added.get("name"))
            if item.added.get("type") == "function_call":
                yield self._call(item, "")
        elif kind == "response.output_item.done":
            item.done = as_object(fields.get("item"))
        elif kind == _ARGUMENTS:
            piece = as_text(fields.get("delta"))
            item.arguments.append(piece)
            yield self._call(item, piece)
        elif writes := _DELTAS.get(kind):
            piece = as_text(fields.get("delta"))
            part = (writes.parts, _index(fields, writes.index))
            item.written.setdefault(part, (writes, []))[1].append(piece)
            yield Delta(writes.kind, piece)

    def _call(self, item: _Item, piece: str) -> Delta:
        if item.call is None:
            item.call = self._calls
            self._calls += 1
        return Delta("tool_call", piece, call=item.call, name=item.name)

    def _as_done(self, index: int, item: JsonValue) -> JsonValue:
        """A reasoning item as its own last event has it: that is the one to send back (API reference, reasoning items,
        `encrypted_content`), and not always what the response repeats."""
        done = self._items[index].done if index in self._items else {}
        is_reasoning = as_object(item).get("type") == done.get("type") == "reasoning"
        return done if is_reasoning and done.get("encrypted_content") else item


def _index(fields: dict[str, JsonValue], name: str) -> int:
    return count(fields.get(name))
