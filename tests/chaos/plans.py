"""Which process is killed when, in one run: drawn with a seed, one boundary a run."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, get_args

from contracts.runs import RunOptions
from tests.chaos.world import Point

Boundary = Literal[
    "after schedule",
    "mid model stream",
    "after effect",
    "before record",
    "mid compensation",
    "mid compensation, end",
    "continue-as-new",
    "waiting for approval",
    "one of two workers",
    "server",
]
Expected = Literal["done", "undone", "not run"]

BOUNDARIES: tuple[Boundary, ...] = get_args(Boundary)

_ROUNDS = json.loads((Path(__file__).parent / "courier.json").read_text())["replies"]
# The tool of each step, and the rounds that have steps.
STEPS: dict[int, str] = {call["arguments"]["step"]: call["tool"] for each in _ROUNDS for call in each.get("calls", ())}
ROUNDS = len(_ROUNDS) - 1
# A run that fails for its rounds has made this many, and then undoes what it can.
ROUNDS_OF_A_FAILED_RUN = ROUNDS - 1
LAST_STEP_OF_A_FAILED_RUN = _ROUNDS[ROUNDS_OF_A_FAILED_RUN - 1]["calls"][-1]["arguments"]["step"]

_TOOLS = tuple(sorted(set(STEPS.values())))
_IN_A_CALL: tuple[Point, ...] = ("scheduled", "effect done", "before record")
# With the chaos server's limit, the courier continues as new at least so often.
CONTINUATIONS = 2


@dataclass(frozen=True)
class Plan:
    """`kills` processes are killed at one boundary: where the program passes `point` of `step`, or, without a point,
    from outside, in round or continuation number `step`."""

    boundary: Boundary
    step: int
    kills: int = 1
    point: Point | None = None

    @property
    def fails(self) -> bool:
        """Whether the run fails, so that it undoes its effects at its end."""
        return self.boundary == "mid compensation, end"

    @property
    def options(self) -> RunOptions:
        """What the run is started with."""
        if self.fails:
            return RunOptions(max_rounds=ROUNDS_OF_A_FAILED_RUN, compensate_on=("failed",))
        return RunOptions(approve="all" if self.boundary == "waiting for approval" else "contract")

    def expected(self, step: int) -> Expected:
        """What is to be found in the world when the run has ended."""
        if not self.fails:
            return "done"
        if step > LAST_STEP_OF_A_FAILED_RUN:
            return "not run"
        return "undone" if STEPS[step] == "book" else "done"


def draw(boundary: Boundary, random: Random) -> Plan:
    """A plan for this boundary: which tool, which round, how often."""
    match boundary:
        case "after schedule":
            return _in_a_call(boundary, "scheduled", random)
        case "after effect":
            return _in_a_call(boundary, "effect done", random)
        case "before record":
            return _in_a_call(boundary, "before record", random)
        case "one of two workers":
            return _in_a_call(boundary, random.choice(_IN_A_CALL), random)
        case "mid model stream":
            return Plan(boundary, random.randint(1, ROUNDS + 1), point="streaming")
        case "mid compensation" | "mid compensation, end":
            point: Point = random.choice(("undo begun", "undo done"))
            return Plan(boundary, _step_of("book", random), random.randint(1, 2), point)
        case "continue-as-new":
            return Plan(boundary, random.randint(1, CONTINUATIONS))
        case "waiting for approval":
            return Plan(boundary, random.randint(1, ROUNDS), random.randint(1, 2))
        case "server":
            at: Point = random.choice((*_IN_A_CALL, "streaming"))
            step = random.randint(1, ROUNDS + 1) if at == "streaming" else _step_of(random.choice(_TOOLS), random)
            return Plan(boundary, step, point=at)


def drawn(kills: int, random: Random) -> Iterator[Plan]:
    """Plans for all boundaries in turn, until there are so many kills."""
    while True:
        for boundary in BOUNDARIES:
            if kills <= 0:
                return
            plan = draw(boundary, random)
            kills -= plan.kills
            yield plan


def _in_a_call(boundary: Boundary, point: Point, random: Random) -> Plan:
    tool = random.choice(_TOOLS)
    # What must not be repeated has one attempt, and so one that can be killed.
    return Plan(boundary, _step_of(tool, random), 1 if tool == "wire" else random.randint(1, 2), point)


def _step_of(tool: str, random: Random) -> int:
    return random.choice([step for step, name in STEPS.items() if name == tool])
