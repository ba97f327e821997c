"""What each tool call was answered with, for the run's result."""

from collections.abc import Iterable

from contracts.outcomes import MODEL_TEXT_MAX_BYTES, ToolOutcome, full_text
from contracts.runs import ToolResultRecord
from contracts.text import cut

# All texts in one result or carry, and one text in it.
TEXTS_MAX_BYTES = 262_144
TEXT_MAX_BYTES = 16_384


def answer_text(outcome: ToolOutcome) -> tuple[str, bool]:
    """What the model reads of an outcome, and whether it was cut."""
    whole = full_text(outcome)
    original_bytes = outcome.metadata.get("original_bytes")
    shown = cut(whole, MODEL_TEXT_MAX_BYTES, original_bytes if isinstance(original_bytes, int) else 0)
    return shown, shown != whole


class ToolResults:
    """The latest results within a bound; older ones are counted and left to the transcript."""

    def __init__(self, records: Iterable[ToolResultRecord] = (), omitted: int = 0) -> None:
        self._records = list(records)
        self.omitted = omitted
        self._bytes = sum(len(record.text.encode()) for record in self._records)

    def add(self, record: ToolResultRecord) -> None:
        """Add a result, its text cut; the oldest make room."""
        bounded = record.model_copy(update={"text": cut(record.text, TEXT_MAX_BYTES)})
        self._records.append(bounded)
        self._bytes += len(bounded.text.encode())
        while self._bytes > TEXTS_MAX_BYTES or len(self._records) > 1_000:
            self._bytes -= len(self._records.pop(0).text.encode())
            self.omitted += 1

    @property
    def records(self) -> tuple[ToolResultRecord, ...]:
        """The results held, in call order."""
        return tuple(self._records)
