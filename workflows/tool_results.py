"""What each tool call was answered with: short records for the run's result, complete outcomes for the query."""

from collections.abc import Iterable

from contracts.outcomes import ToolOutcome
from contracts.runs import CompleteResult, ToolResultRecord, ToolResultsPage, ToolResultsQuery
from contracts.text import cut

# All texts in one result or carry, and one text in it.
TEXTS_MAX_BYTES = 262_144
TEXT_MAX_BYTES = 16_384
MOST_RECORDS = 1_000


class ToolResults:
    """The results of one run. Records of the latest calls travel along when it continues as new; complete outcomes stay
    in the execution that made them."""

    def __init__(self, records: Iterable[ToolResultRecord] = (), omitted: int = 0) -> None:
        self._records = list(records)
        self._bytes = sum(len(record.text.encode()) for record in self._records)
        self.omitted = omitted
        self._complete: list[CompleteResult] = []
        self._sizes: list[int] = []
        self._first_complete = omitted + len(self._records)

    def add(self, record: ToolResultRecord, outcome: ToolOutcome) -> None:
        """Add a result, the record's text cut; the oldest records make room."""
        complete = CompleteResult(call_id=record.call_id, tool=record.tool, outcome=outcome)
        self._complete.append(complete)
        self._sizes.append(len(complete.model_dump_json().encode()))
        bounded = record.model_copy(update={"text": cut(record.text, TEXT_MAX_BYTES)})
        self._records.append(bounded)
        self._bytes += len(bounded.text.encode())
        while self._bytes > TEXTS_MAX_BYTES or len(self._records) > MOST_RECORDS:
            self._bytes -= len(self._records.pop(0).text.encode())
            self.omitted += 1

    def page(self, query: ToolResultsQuery) -> ToolResultsPage:
        """Complete outcomes from `query.start` on, within `query.max_bytes` but at least one."""
        start = max(0, query.start - self._first_complete)
        end, size = start, 0
        while end < len(self._complete):
            size += self._sizes[end]
            if size > query.max_bytes and end > start:
                break
            end += 1
        return ToolResultsPage(
            records=tuple(self._complete[start:end]),
            next=self._first_complete + end,
            total=self._first_complete + len(self._complete),
            first_available=self._first_complete,
        )

    @property
    def records(self) -> tuple[ToolResultRecord, ...]:
        """The records held, in call order."""
        return tuple(self._records)
