"""Plans played in several lanes at once, and the table of what came of them."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.chaos.episode import play
from tests.chaos.lane import Lane
from tests.chaos.plans import BOUNDARIES, Boundary, Plan
from tests.chaos.servers import MortalServer
from tests.chaos.verdict import Tally

Tallies = Mapping[Boundary, Tally]

_COLUMNS = ("kills", "lost", "doubled", "unknown", "unreported")


async def play_all(
    plans: Iterable[Plan], lanes: int, directory: Path, told: Callable[[Plan, Tally], object] = lambda plan, tally: None
) -> Tallies:
    """Play the plans in so many lanes at once, and those that kill the server in one more with a server of its own.
    Afterwards every history is replayed. `told` hears of each run that has ended."""
    tallies = {boundary: Tally() for boundary in BOUNDARIES}
    of_workers: deque[Plan] = deque()
    of_the_server: deque[Plan] = deque()
    for plan in plans:
        (of_the_server if plan.boundary == "server" else of_workers).append(plan)

    async def play_in_lane(name: str, server: MortalServer, left: deque[Plan]) -> None:
        async with Lane(server, directory / f"{name}.db").served() as lane:
            while left:
                plan = left.popleft()
                tally = await play(plan, lane)
                tallies[plan.boundary].add(tally)
                told(plan, tally)
        await lane.harness.check_histories()

    async with (
        MortalServer(directory / "lasting" / "temporal.db") as lasting,
        MortalServer(directory / "mortal" / "temporal.db") as mortal,
        asyncio.TaskGroup() as played,
    ):
        for number in range(lanes):
            played.create_task(play_in_lane(f"lane {number}", lasting, of_workers))
        played.create_task(play_in_lane("server lane", mortal, of_the_server))
    return tallies


def table(tallies: Tallies) -> str:
    """One line a boundary, and the sums. `unknown` and `unreported` are of the tool that must not be repeated."""
    total = Tally()
    rows = []
    for boundary, tally in tallies.items():
        rows.append(_row(boundary, tally))
        total.add(tally)
    head = f"{'boundary':<22}" + "".join(f"{column:>12}" for column in _COLUMNS)
    return "\n".join([head, *rows, _row("all", total)])


def _row(name: str, tally: Tally) -> str:
    return f"{name:<22}" + "".join(f"{getattr(tally, column):>12}" for column in _COLUMNS)
