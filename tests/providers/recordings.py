"""Recorded traffic of real providers, read from `../shared/recordings` beside the repository."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import JsonValue

from tests.providers.model_server import Response

ROOT = Path(__file__).resolve().parents[3] / "shared" / "recordings"


@dataclass(frozen=True)
class Recording:
    """One exchange, and what a correct adapter makes of it. `position` is its place in conversation `sequence`."""

    id: str
    api: str
    streaming: bool
    request: dict[str, JsonValue]
    response: Response
    expected: dict[str, JsonValue]
    sequence: str | None = None
    position: int = 0


@cache
def recordings(api: str, streaming: bool) -> tuple[Recording, ...]:
    """All recordings of an API: `openai.chat`, `openai.responses` or `anthropic.messages`. None is left out."""
    expected = json.loads((ROOT / "expected.json").read_text())
    read = (json.loads(path.read_text()) for path in sorted(ROOT.glob("*/*.json")))
    return tuple(
        Recording(
            id=exchange["id"],
            api=api,
            streaming=streaming,
            request=exchange["request"]["json"],
            response=Response(
                exchange["response"]["status"], exchange["response"]["headers"], exchange["response"]["body"].encode()
            ),
            expected=expected[exchange["id"]],
            sequence=exchange["meta"].get("sequence", {}).get("id"),
            position=exchange["meta"].get("sequence", {}).get("index", 0),
        )
        for exchange in read
        if exchange["api"] == api and exchange["streaming"] == streaming
    )


def conversation(api: str, streaming: bool, sequence: str) -> tuple[Recording, ...]:
    """The exchanges of one recorded conversation, in order."""
    found = [recording for recording in recordings(api, streaming) if recording.sequence == sequence]
    return tuple(sorted(found, key=lambda recording: recording.position))
