"""Each boundary of a round once: a process is killed there, and nothing is lost, nothing done twice."""

from pathlib import Path
from random import Random

from tests.chaos.plans import BOUNDARIES, draw
from tests.chaos.suite import play_all, table


async def test_a_process_killed_at_any_boundary_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """The short form of `make chaos`."""
    random = Random(7)
    # What takes longest comes first: the lost heartbeat of a model call.
    plans = [draw(boundary, random) for boundary in sorted(BOUNDARIES, key=lambda each: each != "mid model stream")]
    tallies = await play_all(plans, 3, tmp_path)
    assert [complaint for tally in tallies.values() for complaint in tally.complaints] == [], table(tallies)
    assert all(tally.clean and tally.kills for tally in tallies.values()), table(tallies)
