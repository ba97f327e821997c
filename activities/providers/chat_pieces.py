"""What a streamed chat message is put together from. Pieces are joined once, at the end, and may hold half characters
until then."""

from collections.abc import Iterable

from pydantic import JsonValue

from activities.providers.readings import argument_text, as_object, as_text, objects

# Where servers put the model's reasoning as a plain text: DeepSeek, Moonshot, Z.ai, llama.cpp; Groq, Ollama, vLLM,
# OpenRouter; GitHub Copilot. A chunk with several of them says the same in each.
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")
# No tool's name is longer. To put together one that goes on and on would take the square of its length.
_NAME_MAX_CHARACTERS = 200
# Of an entry of `reasoning_details` (OpenRouter), what is streamed in pieces.
_DETAIL_TEXTS = ("text", "summary")


def whole(pieces: Iterable[str]) -> str:
    """The text. A server that cuts by UTF-16 units may spread the halves of one character over two pieces."""
    text = "".join(pieces)
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Content:
    """`content`: a text in pieces, or a list of typed parts, as Mistral sends it where there is reasoning."""

    def __init__(self) -> None:
        self._parts: list[tuple[dict[str, JsonValue], list[str]]] = []
        self._typed = False

    def add(self, content: JsonValue) -> Iterable[tuple[bool, str]]:
        """Take a piece. Returns the texts in it, and of each whether it is reasoning."""
        if isinstance(content, str):
            return [self._joined({"type": "text"}, content)] if content else []
        said: list[tuple[bool, str]] = []
        for part in objects(content):
            self._typed = True
            match part.get("type"):
                case "text":
                    said.append(self._joined({**part, "text": None}, as_text(part.get("text"))))
                case "thinking":
                    said.append(self._joined({**part, "thinking": None}, thought(part)))
                case _:
                    self._parts.append((part, []))
        return said

    def value(self) -> JsonValue:
        """The content as a whole reply has it, or None."""
        if not self._typed:
            return whole(text for _, texts in self._parts for text in texts) if self._parts else None
        return [_typed_part(fields, whole(texts)) for fields, texts in self._parts]

    def _joined(self, fields: dict[str, JsonValue], text: str) -> tuple[bool, str]:
        if not self._parts or self._parts[-1][0].get("type") != fields["type"]:
            self._parts.append(({}, []))
        known, texts = self._parts[-1]
        known.update(fields)
        texts.append(text)
        return fields["type"] == "thinking", text


def thought(part: dict[str, JsonValue]) -> str:
    """The text of a part of type `thinking`: a text, or a list of parts of type `text`."""
    thinking = part.get("thinking")
    return as_text(thinking) or "".join(as_text(piece.get("text")) for piece in objects(thinking))


class Details:
    """`reasoning_details`: entries, of which consecutive ones about the same reasoning are pieces of one."""

    def __init__(self) -> None:
        self._entries: list[tuple[dict[str, JsonValue], dict[str, list[str]]]] = []

    def add(self, details: JsonValue) -> str:
        """Take the entries of one chunk. Returns the text in them."""
        said: list[str] = []
        for entry in objects(details):
            texts = {name: as_text(entry.get(name)) for name in _DETAIL_TEXTS if isinstance(entry.get(name), str)}
            said += texts.values()
            if not self._goes_on(entry):
                self._entries.append(({}, {}))
            fields, pieces = self._entries[-1]
            fields.update({name: value for name, value in entry.items() if value is not None or name not in fields})
            for name, text in texts.items():
                pieces.setdefault(name, []).append(text)
        return "".join(said)

    def value(self) -> list[JsonValue]:
        """All entries, each of them once."""
        return [
            {**fields, **{name: whole(texts) for name, texts in pieces.items()}} for fields, pieces in self._entries
        ]

    def _goes_on(self, entry: dict[str, JsonValue]) -> bool:
        """Whether the entry is a piece of the last one. What is encrypted always comes whole."""
        last = self._entries[-1][0] if self._entries else {}
        alike = all(entry.get(name) == last.get(name) for name in ("type", "index"))
        ids = {entry.get("id"), last.get("id")} - {None} if _ids_are_texts(entry, last) else {1, 2}
        return bool(last) and alike and "data" not in entry and "data" not in last and len(ids) < 2


class Calls:
    """`tool_calls`, in the order in which they begin.

    A piece belongs to the call of its index; without one to the call of its id, and without either to the latest. Ids
    and names that are repeated count once. Not every server numbers its calls, so a piece with a name begins another
    one where it has another id, where the name is another one though there are arguments, or where an object begins
    after one has ended. Without a name, another id is one that the server makes up for each piece.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, int] = {}
        self._by_id: dict[str, int] = {}

    def add(self, piece: dict[str, JsonValue]) -> tuple[int, str, str]:
        """Take a piece of a call. Returns the call's position, its name so far, and what came of the arguments."""
        function = as_object(piece.get("function"))
        name, call_id = as_text(function.get("name")), as_text(piece.get("id"))
        told = function.get("arguments")
        arguments = told if isinstance(told, str) else argument_text(told)
        index = piece.get("index")
        if isinstance(index, int):
            position = self._by_index.get(index)
        else:
            position = self._without_index(call_id, name, arguments)
        if position is None or self._calls[position].is_before(call_id, name, arguments):
            position = len(self._calls)
            self._calls.append(_Call())
        if isinstance(index, int):
            self._by_index[index] = position
        call = self._calls[position]
        call.add(piece, call_id, name, arguments)
        self._by_id.setdefault(call.call_id, position)
        return position, call.name, arguments

    def value(self) -> list[JsonValue]:
        """The calls as a whole reply has them."""
        return [call.value() for call in self._calls]

    def _without_index(self, call_id: str, name: str, arguments: str) -> int | None:
        if call_id:
            return self._by_id.get(call_id)
        if not self._calls:
            return None
        latest = self._calls[-1]
        begins = name and (name != latest.name or (latest.looks_whole and not arguments))
        return None if begins else len(self._calls) - 1


class _Call:
    def __init__(self) -> None:
        self.call_id = ""
        self.name = ""
        self.looks_whole = False
        self._fields: dict[str, JsonValue] = {}
        self._arguments: list[str] = []

    def is_before(self, call_id: str, name: str, arguments: str) -> bool:
        """Whether a piece with these begins the next call."""
        if not name or not self.name:
            return False
        if call_id and self.call_id and call_id != self.call_id:
            return True
        # Within JSON, no object begins where one has just ended.
        return bool(self._arguments) and (name != self.name or (self.looks_whole and arguments.lstrip()[:1] == "{"))

    def add(self, piece: dict[str, JsonValue], call_id: str, name: str, arguments: str) -> None:
        self._fields.update({key: value for key, value in piece.items() if value is not None})
        self.call_id = self.call_id or call_id
        # A server that sends the name in pieces, or again as far as it has it.
        if len(self.name) <= _NAME_MAX_CHARACTERS:
            self.name = name if name.startswith(self.name) else self.name + name
        if arguments:
            self._arguments.append(arguments)
            self.looks_whole = arguments.rstrip().endswith("}")

    def value(self) -> JsonValue:
        function: JsonValue = {"name": self.name, "arguments": whole(self._arguments)}
        return {**self._fields, "id": self.call_id or None, "type": "function", "function": function}


def _typed_part(fields: dict[str, JsonValue], text: str) -> JsonValue:
    match fields.get("type"):
        case "text":
            return {**fields, "text": text}
        case "thinking":
            return {**fields, "thinking": [{"type": "text", "text": text}]}
    return fields


def _ids_are_texts(*entries: dict[str, JsonValue]) -> bool:
    return all(isinstance(entry.get("id"), str | None) for entry in entries)
