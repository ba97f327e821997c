"""What the demo prints. Everything that comes from a run is made visible: a model must not steer the terminal."""

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from activities.visible import visible
from contracts.approvals import ApprovalRequest
from contracts.events import Event
from examples.refund_desk.shop import Mail, Payment

_PHRASES = {
    "run_started": "run started with agent {agent}",
    "model_started": "asking the model ({messages})",
    "model_completed": "the model replied, tool calls: {calls}",
    "model_failed": "the model failed: {error}: {message}",
    "tool_proposed": "{tool}: the model wants to call it",
    "tool_invalid": "{tool}: not a valid call: {issues}",
    "tool_refused": "{tool}: not run",
    "approval_requested": "{tool}: waits for a person",
    "approval_recorded": "{tool}: {resolution} by {by}",
    "approval_refused": "a decision was refused: {reason}",
    "approval_expired": "{tool}: nobody decided in time",
    "tool_started": "{tool}: running",
    "tool_completed": "{tool}: done in {duration_ms} ms",
    "tool_failed": "{tool}: failed: {category}: {message}",
    "tool_output_projection_recorded": "{tool}: the model is told",
    "tool_output_truncated": "{tool}: the model is told only the beginning",
    "effect_unknown": "{tool}: nobody knows whether it happened",
    "signal_refused": "a signal was refused: {reason}",
    "run_completed": "run completed after {rounds}",
    "run_failed": "run failed: {error}: {message}",
    "run_cancelled": "run cancelled",
}
_COUNTED = {"messages": "message", "rounds": "round"}


class _Visible(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


def event_line(event: Event) -> str:
    """One line for an event: number, time (UTC), what happened."""
    data = {name: visible(str(value)) for name, value in event.data.items()}
    for name, noun in _COUNTED.items():
        if name in data:
            data[name] += f" {noun}" if data[name] == "1" else f" {noun}s"
    other = " ".join([event.type, *(f"{name}={value}" for name, value in data.items())])
    phrase = _PHRASES.get(event.type, "{other}").format_map(_Visible(data, other=other))
    return f"  {event.sequence:>3}  {event.at:%H:%M:%S}.{event.at.microsecond // 1000:03}  {phrase}"


def approval_text(request: ApprovalRequest) -> str:
    """What would run if it is approved."""
    lines = [
        "",
        "A person has to decide. This would run:",
        f"  tool       {visible(request.tool)} (version {visible(request.tool_version)}, {request.side_effect})",
        f"  arguments  {visible(json.dumps(request.arguments, ensure_ascii=False))}",
        f"  digest     {visible(request.action_digest)}",
        f"  expires    {request.expires_at:%Y-%m-%d %H:%M} UTC",
    ]
    return "\n".join(lines)


def decision_command(request: ApprovalRequest, resolution: str, address: str, workflow_id: str) -> str:
    """The shell command that resolves the request, from any terminal."""
    decision = {
        "approval_id": request.approval_id,
        "resolution": resolution,
        "by": "me",
        "action_digest": request.action_digest,
    }
    command = [
        *(_temporal_command(), "workflow", "signal", "--address", address, "--namespace", "default"),
        *("--workflow-id", workflow_id, "--name", "resolve_approval", "--input", json.dumps(decision)),
    ]
    return shlex.join(command)


def effects_text(payments: Sequence[Payment], mails: Sequence[Mail]) -> str:
    """A table of what really happened in the shop."""
    rows = [("what", "order", "detail", "idempotency key")]
    for payment in payments:
        detail = f"{payment.amount_cents / 100:.2f} EUR, {payment.reason}"
        rows.append(("payment", payment.order_id, detail, payment.key))
    rows += [("mail", mail.order_id, f"to {mail.recipient}", mail.key) for mail in mails]
    if len(rows) == 1:
        return "  none"
    shown = [[_shortened(visible(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in shown]
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _shortened(text: str, most: int = 48) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _temporal_command() -> str:
    """How to call `temporal` here: by name if it is on the PATH, else the one beside this Python."""
    beside = Path(sys.executable).with_name("temporal")
    if shutil.which("temporal") or not beside.is_file():
        return "temporal"
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)
