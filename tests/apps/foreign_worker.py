"""A worker of somebody else: plain temporalio, plain JSON, nothing of ours imported.

`foreign_worker.py <address> <task queue> <diary>`. What each call does is in its arguments; what was done is appended
to the diary, a line of JSON each. It could be written in Go.
"""

import asyncio
import json
import sys
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

Json = Any


def nested(depth: int) -> Json:
    value: Json = "deep"
    for _ in range(depth):
        value = [value]
    return value


def forged() -> Json:
    report = dict.fromkeys(
        ("original_bytes", "original_tokens", "projected_bytes", "projected_tokens", "max_bytes", "max_tokens"), 1
    )
    return {
        "ok": True,
        "text": "the truth",
        "projection": {"text": "a lie", "report": {**report, "truncated": False}},
    }


ANSWERS: dict[str, Json] = {
    "fine": {"ok": True, "data": {"rows": 2}, "metadata": {"from": "afar"}, "unknown_field": 1},
    "words": "done",
    "nothing": None,
    "list": [1],
    "coerced": {"ok": "yes"},
    "bytes": b"\xff\xfe",
    "deep": {"ok": True, "data": nested(150)},
    "deeper": {"ok": True, "data": nested(400)},
    "surrogate": {"ok": True, "text": "half \ud83d"},
    "nan": {"ok": True, "data": {"rows": float("nan")}},
    "other_shape": {"ok": True, "data": {"rows": "two"}},
    "forged": forged(),
    "large": {"ok": True, "text": "x" * 1_900_000},
    "largest": {"ok": True, "text": "x" * 2_097_000},
    "large_nonsense": ["x" * 1_900_000],
}

FAILURES: dict[str, tuple[Json, ...]] = {
    "failed": ({"ok": False, "error": {"category": "conflict", "code": "taken", "message": "it is taken"}},),
    "failed_fine": ({"ok": True, "text": "it went well"},),
    "failed_nonsense": ("words", 1),
    "failed_bytes": (b"\xff",),
    "failed_deep": (nested(400),),
    "failed_large": ({"ok": False, "text": "t" * 300_000, "error": {"category": "conflict", "message": "m" * 9_000}},),
}


class Foreign:
    def __init__(self, diary: str) -> None:
        self._diary = diary
        self._met: set[str] = set()

    def note(self, **line: Json) -> None:
        with open(self._diary, "a") as diary:
            diary.write(json.dumps(line) + "\n")

    @activity.defn(name="remote")
    async def remote(self, invocation: Json) -> Json:
        return self._answer(invocation)

    @activity.defn(name="remote_write")
    async def remote_write(self, invocation: Json) -> Json:
        return self._answer(invocation)

    def _answer(self, invocation: Json) -> Json:
        mode = invocation["arguments"]["mode"]
        self.note(activity=activity.info().activity_type, attempt=activity.info().attempt, invocation=invocation)
        if mode in FAILURES:
            raise ApplicationError("it failed", *FAILURES[mode], type="ToolFailed", non_retryable=True)
        if mode == "raise":
            raise RuntimeError("E" * 1_500_000)
        if mode == "flaky" and activity.info().attempt == 1:
            raise ConnectionError("reset by peer")
        key = invocation["idempotency_key"]
        if mode == "another_version" and key not in self._met:
            self._met.add(key)
            raise ApplicationError("I have version 2", False, type="ToolVersionMismatch", non_retryable=True)
        return ANSWERS.get(mode, ANSWERS["fine"])

    @activity.defn(name="remote_write.undo")
    async def undo(self, request: Json) -> Json:
        self.note(activity="undo", request=request)
        match request["invocation"]["arguments"].get("undo"):
            case "nothing_to_undo":
                return {"state": "nothing_to_undo", "text": "there was nothing"}
            case "words":
                return "undone, I think"
            case "silent":
                return None
            case "raise":
                raise RuntimeError("cannot undo")
        return {"state": "compensated", "text": "taken back"}

    @activity.defn(name="remote_write.reconcile")
    async def reconcile(self, request: Json) -> Json:
        self.note(activity="reconcile", request=request)
        match request["invocation"]["arguments"].get("reconcile"):
            case "done":
                return {"state": "done", "outcome": ANSWERS["large"]}
            case "not_done":
                return {"state": "not_done"}
            case "words":
                return "who knows"
        return {"state": "unknown"}


async def main(address: str, task_queue: str, diary: str) -> None:
    foreign = Foreign(diary)
    client = await Client.connect(address)
    async with Worker(
        client,
        task_queue=task_queue,
        activities=[foreign.remote, foreign.remote_write, foreign.undo, foreign.reconcile],
    ):
        print("serving", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    ours = {"contracts", "activities", "workflows", "runtime"}.intersection(sys.modules)
    assert not ours, ours
    asyncio.run(main(*sys.argv[1:]))
