"""A transcript as the turns of the Messages API."""

from collections.abc import Iterable, Iterator, Sequence

from pydantic import JsonValue

from activities.providers.legal import BlockPart, CallPart, TextPart, legal, parts, wire_ids, wire_name
from contracts.messages import Message

Block = dict[str, JsonValue]

# "Messages API reference": the pattern of `tool_use.id`.
LEGAL_ID = "[a-zA-Z0-9_-]+"
# The API wants somebody to have spoken first, and last.
BEGINNING = "The conversation begins with your own words."
GO_ON = "Please go on."


class Turn:
    """One message on the wire, or a piece of it: a role and its blocks."""

    def __init__(self, role: str, blocks: Sequence[Block]) -> None:
        self.role = role
        self.blocks = list(blocks)

    def as_json(self) -> JsonValue:
        """The turn as a request has it."""
        return {"role": self.role, "content": list[JsonValue](self.blocks)}

    @property
    def holds_results(self) -> bool:
        """Whether a user's turn goes on with the exchange that called tools."""
        return any(block.get("type") == "tool_result" for block in self.blocks)

    @property
    def begins_with_thinking(self) -> bool:
        """Whether an assistant's turn begins as the API wants it where it thinks by a budget."""
        return self.blocks[0].get("type") in ("thinking", "redacted_thinking")


def turns_of(messages: Iterable[Message]) -> list[Turn]:
    """The conversation in turns that alternate, the user's first, and last unless the API paused its own turn and is to
    go on with it. The results of a turn's calls come first in the user's turn right after it. No text is blank.

    Thinking goes back if it is signed, be it empty or not; unsigned thinking is another server's, and the API refuses
    it. So it does a search of its own without a result, or a result without its search, unless the search is still on:
    they stay away.
    """
    transcript = legal(messages)
    ids = wire_ids(transcript, LEGAL_ID)
    pieces = _settled([Turn(_role(message), list(_blocks(message, ids))) for message in transcript])
    turns: list[Turn] = []
    for piece in pieces:
        if turns and turns[-1].role == piece.role:
            turns[-1].blocks += piece.blocks
        else:
            turns.append(piece)
    if not turns or turns[0].role == "assistant":
        turns.insert(0, Turn("user", [_text(BEGINNING)]))
    _finish(turns)
    return turns


def open_exchange(turns: Sequence[Turn]) -> Turn | None:
    """The assistant's turn that a still open exchange of calls and results, or a paused turn, began with."""
    first: Turn | None = None
    for turn in reversed(turns):
        if turn.role == "assistant":
            first = turn
        elif not turn.holds_results:
            break
    return first


def _role(message: Message) -> str:
    return "assistant" if message.role == "assistant" else "user"


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _blocks(message: Message, ids: dict[str, str]) -> Iterator[Block]:
    if message.role == "user":
        yield _text(message.text)
    elif message.role == "tool":
        yield _result(message, ids[message.call_id or ""])
    else:
        yield from _said(message, ids)


def _result(message: Message, id: str) -> Block:
    result: Block = {"type": "tool_result", "tool_use_id": id}
    # A blank text is refused, a result without content is not.
    if message.text.strip():
        result["content"] = message.text
    if not message.ok:
        result["is_error"] = True
    return result


def _said(message: Message, ids: dict[str, str]) -> list[Block]:
    """An assistant turn. The rest of a cited text follows it, and the two become one block again."""
    said: list[Block] = []
    for part in parts(message):
        match part:
            case TextPart(text):
                said.append(_text(text))
            case CallPart(call):
                name, arguments = wire_name(call.tool), dict(call.arguments)
                said.append({"type": "tool_use", "id": ids[call.call_id], "name": name, "input": arguments})
            case BlockPart({"type": "text"} as rest):
                if said and said[-1].get("type") == "text":
                    said[-1].update(rest)
            case BlockPart(block) if _may_go_back(block):
                said.append(block)
    return said


def _may_go_back(block: Block) -> bool:
    if block.get("type") == "thinking":
        return bool(block.get("signature"))
    return not _is_search(block) or isinstance(block.get("input"), dict)


def _is_search(block: Block) -> bool:
    """Whether a block is the API's call of a tool of its own. It may still be without its result."""
    return str(block.get("type")).endswith("_tool_use")


def _is_finding(block: Block) -> bool:
    return str(block.get("type")).endswith("_tool_result")


def _settled(pieces: Sequence[Turn]) -> Iterator[Turn]:
    """What is left of the turns without halves of the API's own tool calls."""
    blocks = [block for piece in pieces for block in piece.blocks]
    found = {str(block.get("tool_use_id")) for block in blocks if _is_finding(block)}
    sought = {str(block.get("id")) for block in blocks if _is_search(block)}
    last = max((index for index, piece in enumerate(pieces) if piece.role == "assistant"), default=0)
    goes_on = all(piece.holds_results for piece in pieces[last + 1 :])
    for index, piece in enumerate(pieces):
        still_on = goes_on and index == last
        kept = [
            block
            for block in piece.blocks
            if (not _is_search(block) or still_on or str(block.get("id")) in found)
            and (not _is_finding(block) or str(block.get("tool_use_id")) in sought)
        ]
        if kept:
            yield Turn(piece.role, kept)


def _finish(turns: list[Turn]) -> None:
    """See to it that the last turn is one to answer. Every model goes on with its own paused turn; to go on with any
    other words of its own is refused since Claude 4.6 ("Migrating to Claude 4.6: Prefill removal")."""
    last = turns[-1]
    if last.role == "user":
        return
    if not any(_is_search(block) for block in last.blocks):
        turns.append(Turn("user", [_text(GO_ON)]))
        return
    ending = last.blocks[-1]
    if ending.get("type") == "text":
        # White space at the very end is refused.
        last.blocks[-1] = {**ending, "text": str(ending.get("text")).rstrip()}
