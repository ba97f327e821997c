"""The short form of `make chaos`: at each boundary of a round one process is killed, and each kind of tool is hit."""

from pathlib import Path

from tests.chaos.plans import BOUNDARIES, Plan
from tests.chaos.suite import play_all, table

PLANS = (
    # What takes longest comes first: nobody misses the heartbeat of a model call before 15 s have passed.
    Plan("mid model stream", step=3, point="streaming"),
    Plan("after schedule", step=5, point="scheduled"),  # book
    Plan("after effect", step=6, point="effect done"),  # pay
    Plan("before record", step=7, point="before record"),  # wire
    Plan("mid compensation", step=2, point="undo done"),
    Plan("mid compensation, end", step=5, point="undo begun"),
    Plan("continue-as-new", step=1),
    Plan("waiting for approval", step=4),
    Plan("one of two workers", step=8, point="effect done"),  # book
    Plan("server", step=1, point="effect done"),  # pay
)


async def test_a_process_killed_at_any_boundary_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    assert {plan.boundary for plan in PLANS} == set(BOUNDARIES)
    tallies = await play_all(PLANS, 3, tmp_path)
    assert [complaint for tally in tallies.values() for complaint in tally.complaints] == [], table(tallies)
    assert all(tally.clean and tally.kills == 1 for tally in tallies.values()), table(tallies)
    # Only the tool that must not be repeated may be unknown, and each time it says so.
    assert {boundary: tally.unknown for boundary, tally in tallies.items() if tally.unknown} == {"before record": 1}
