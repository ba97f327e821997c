"""An agent whose tools are of the three kinds, and whose worker dies where the world says so.

CHAOS_WORLD names the world's file.
"""

import os

from activities.delta_sinks import Callback
from activities.tooling import ToolError, tool
from contracts.agents import AgentSpec
from contracts.deltas import DeltaEvent
from contracts.outcomes import ToolOutcome
from contracts.policies import CompensationRule, RetryRule
from contracts.tools import ToolInvocation, UndoOutcome, UndoRequest
from tests.chaos.world import World


def _world() -> World:
    return World(os.environ["CHAOS_WORLD"])


def _done(name: str, step: int, invocation: ToolInvocation) -> ToolOutcome:
    world = _world()
    world.pass_point("scheduled", step)
    world.do(name, invocation.context.request_id or "", step, invocation.idempotency_key, invocation.attempt)
    world.pass_point("effect done", step)
    return ToolOutcome(ok=True, data={"step": step})


def _prepared(outcome: ToolOutcome) -> ToolOutcome:
    # The tool has returned and its effect is there; the outcome is about to be reported.
    if isinstance(outcome.data, dict) and isinstance(step := outcome.data["step"], int):
        _world().pass_point("before record", step)
    return outcome


@tool(side_effect="write", idempotency="idempotent_with_key", lost_after=1)
def pay(step: int, invocation: ToolInvocation) -> ToolOutcome:
    """Pay, once for each key."""
    return _done("pay", step, invocation)


@tool(
    side_effect="write",
    idempotency="non_idempotent",
    lost_after=1,
    retry=RetryRule(max_attempts=5),
    compensation=CompensationRule(max_attempts=5),
)
def book(step: int, invocation: ToolInvocation) -> ToolOutcome:
    """Book at a system that knows no keys and takes bookings back."""
    outcome = _done("book", step, invocation)
    if _world().faulty(step):
        raise ToolError("unavailable", "half booked", retryable=True, compensation_required=True)
    return outcome


@book.undo
def unbook(request: UndoRequest) -> UndoOutcome:
    """Take a booking back."""
    step = request.invocation.arguments["step"]
    assert isinstance(step, int)
    world = _world()
    world.pass_point("undo begun", step)
    found = world.undo(request.invocation.idempotency_key, request.invocation.attempt)
    world.pass_point("undo done", step)
    return UndoOutcome(state="compensated" if found else "nothing_to_undo")


@tool(side_effect="write", lost_after=1)
def wire(step: int, invocation: ToolInvocation) -> ToolOutcome:
    """Send money by a bank that knows no keys and takes nothing back."""
    return _done("wire", step, invocation)


pay.prepare_result(_prepared)
book.prepare_result(_prepared)
wire.prepare_result(_prepared)


def _told(event: DeltaEvent) -> None:
    if event.type == "model_content_delta":
        _world().pass_point("streaming", int(event.text.split()[-1]))


watching = Callback(_told)
courier = AgentSpec(
    name="courier",
    instructions="Deliver.",
    model="scripted:tests/chaos/courier.json",
    tools=(pay, book, wire),
)
