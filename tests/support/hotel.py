"""A hotel: an outside world in which effects are made and undone."""

import asyncio

from pydantic import JsonValue

from activities.providers.scripted import Script
from activities.tooling import Tool, tool
from contracts.agents import AgentSpec
from contracts.policies import CompensationRule
from contracts.tools import UndoOutcome, UndoRequest
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import calls, says, script


class Hotel:
    """Rooms that are booked and given back, at a desk that fails at the first `undo_fails` rooms it is to take back.
    Undoing waits while `go_on` is clear."""

    def __init__(self, undo_fails: int = 0) -> None:
        self.log: list[str] = []
        self.booked: set[JsonValue] = set()
        self.undone: list[UndoRequest] = []
        self.undoing = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self._undo_fails = undo_fails

    def break_for(self, undos: int) -> None:
        """Fail at the next rooms that are to be taken back."""
        self._undo_fails = undos

    @property
    def book(self) -> Tool:
        """The tool `book`, with its undo."""

        @tool(side_effect="write", compensation=CompensationRule(timeout=30, max_attempts=2))
        def book(room: int, notes: str = "") -> str:
            """Book a room."""
            self.log.append(f"book {room}")
            self.booked.add(room)
            return f"booked {room}"

        @book.undo
        async def give_back(request: UndoRequest) -> UndoOutcome:
            self.undone.append(request)
            self.undoing.set()
            await self.go_on.wait()
            room = request.invocation.arguments["room"]
            if self._undo_fails:
                self._undo_fails -= 1
                raise RuntimeError("the desk is closed")
            if room not in self.booked:
                return UndoOutcome(state="nothing_to_undo", text=f"room {room} was free")
            self.booked.discard(room)
            self.log.append(f"give back {room}")
            return UndoOutcome(text=f"room {room} is free")

        return book


def failing_after(*rooms: int) -> Script:
    """Replies that book rooms and then ask for a tool that fails."""
    return script(*(calls(("book", {"room": room})) for room in rooms), calls(("fail", {})), says("-"))


@tool(side_effect="read")
def fail() -> str:
    """Fail."""
    raise RuntimeError("no")


def hotel_agent(hotel: Hotel, **settings: object) -> AgentSpec:
    """An agent that books rooms there, and gives them back when it fails."""
    return scripted_agent(hotel.book, fail).model_copy(update={"compensate_on": ("failed",), **settings})


# The first failure ends the run.
FAIL_RUN = {**PROMPT, "options": {"on_tool_error": "fail_run"}}
