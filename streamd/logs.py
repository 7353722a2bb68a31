"""One event, one line, with fields: `event.name  text  key=value ...` to stderr."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

from streamd.printable import printable

NOTICE: Final = 25  # between info and warning: what somebody is waiting for, said also by a daemon in the background
logging.addLevelName(NOTICE, "NOTICE")

_QUOTED: Final = frozenset(" \t\"'=")


def log(level: int, event: str, text: str, **fields: Any) -> None:
    """Writes one event. `event` is a stable dotted name; values are escaped and bounded by the formatter."""
    logging.getLogger("streamd").log(level, text, extra={"event": event, "fields": fields})


def info(event: str, text: str, **fields: Any) -> None:
    log(logging.INFO, event, text, **fields)


def notice(event: str, text: str, **fields: Any) -> None:
    log(NOTICE, event, text, **fields)


def warning(event: str, text: str, **fields: Any) -> None:
    log(logging.WARNING, event, text, **fields)


def error(event: str, text: str, **fields: Any) -> None:
    log(logging.ERROR, event, text, **fields)


class LineFormatter(logging.Formatter):
    """People's lines: time, level, text, then the fields."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname).1s %(event)s: %(text)s%(tail)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record.event = getattr(record, "event", record.name)
        record.text = printable(record.getMessage())  # one line, whatever a file in it is called
        fields = getattr(record, "fields", {})
        record.tail = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        return super().format(record)


def _shown(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if not text.isprintable() or any(character in _QUOTED for character in text) or not text:
        text = repr(text)
    return text if len(text) <= 200 else text[:197] + "..."  # noqa: PLR2004 - a line stays a line


def level() -> int:
    """The least that is said, for a process that shall say as much."""
    return logging.getLogger("streamd").getEffectiveLevel()


def configure(*, level: int = logging.INFO) -> None:
    """Sends streamd's events from `level` on to stderr. Called by entry points only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logger = logging.getLogger("streamd")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
