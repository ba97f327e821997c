"""The process's log: lines on stderr that are safe to look at, whoever wrote what is in them."""

import logging
import sys

from activities.visible import visible

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class VisibleFormatter(logging.Formatter):
    """Formats a record with what a terminal would obey or hide as escapes: a message is one line, and a traceback keeps
    its newlines and tabs."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The record's own line."""
        return visible(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """The line, and what belongs to it."""
        # The whole once more: a traceback may have been put into the record by another formatter.
        return visible(super().format(record), keep="\n\t")


def set_up() -> None:
    """Log warnings and worse to stderr. A failed attempt is told by the activity itself, in `steadyhand.model` and
    `steadyhand.tools`, instead of in a traceback by Temporal's SDK: failures are a part of the work."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(VisibleFormatter(_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("temporalio.activity").setLevel(logging.ERROR)
