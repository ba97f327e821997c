"""The crash suite in its long form: `python -m tests.chaos --kills 200 --seed 5`."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from tests.chaos.plans import Plan, drawn
from tests.chaos.suite import play_all, table
from tests.chaos.verdict import Tally


def main() -> int:
    """Play, print the table, and return 1 where anything was lost, doubled or not reported."""
    parser = argparse.ArgumentParser(prog="chaos", description="Kill processes at every boundary of a round.")
    parser.add_argument("--kills", type=int, default=200, help="how many, at least")
    parser.add_argument("--seed", type=int, default=5, help="draws which boundary, tool and round")
    parser.add_argument("--lanes", type=int, default=5, help="runs at once, beside those whose server is killed")
    options = parser.parse_args()
    began = time.monotonic()
    killed = 0

    def tell(plan: Plan, tally: Tally) -> None:
        nonlocal killed
        killed += tally.kills
        for complaint in tally.complaints:
            print(f"{plan.boundary}: {complaint}", flush=True)
        print(f"{time.monotonic() - began:5.0f} s, {killed} kills: {plan.boundary}, step {plan.step}", flush=True)

    with tempfile.TemporaryDirectory() as directory:
        plans = list(drawn(options.kills, Random(options.seed)))
        tallies = asyncio.run(play_all(plans, options.lanes, Path(directory), tell))
    print(f"\nseed {options.seed}, {len(plans)} runs, {time.monotonic() - began:.0f} s\n\n{table(tallies)}")
    return 0 if all(tally.clean for tally in tallies.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
