"""A record of one event as people and programs read it. Nothing of it is raw, and nothing without end.

What a trainer or a file name brings along is told with its control characters written as Python would.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from streamd.core.text import printable
from streamd.limits import LOG_LINE_VALUE_CHARS, LOG_TEXT_CHARS

Plain = str | int | float | bool | None

_QUOTED: Final = frozenset(" \t\"'=")
_TRACEBACKS: Final = logging.Formatter()


def event_of(record: logging.LogRecord) -> str:
    """The event's name; a library's record has its logger's."""
    return str(getattr(record, "event", record.name))


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """The values as they were handed over."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def text_of(record: logging.LogRecord) -> str:
    """What is said, in one line."""
    return _bounded(printable(record.getMessage()), LOG_TEXT_CHARS)


def traceback_of(record: logging.LogRecord) -> str | None:
    """Where it came from, in several lines, if an exception was logged."""
    if not record.exc_info:
        return None
    return "\n".join(printable(line) for line in _TRACEBACKS.formatException(record.exc_info).splitlines())


def plain(value: object) -> Plain:
    """A value as JSON can have it; its text is printable and bounded."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _bounded(printable(str(value)), LOG_TEXT_CHARS)


def sentence(record: logging.LogRecord) -> str:
    """`event: text  key=value ...`, in one line."""
    tail = "".join(f" {name}={_shown(value)}" for name, value in fields_of(record).items())
    return f"{event_of(record)}: {text_of(record)}{tail}"


def _shown(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if not text.isprintable() or any(character in _QUOTED for character in text) or not text:
        text = repr(text)
    return _bounded(text, LOG_LINE_VALUE_CHARS)


def _bounded(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


class LineFormatter(logging.Formatter):
    """People's lines: time, level, event, text, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname[0]} {sentence(record)}"
        traceback = traceback_of(record)
        return line if traceback is None else f"{line}\n{traceback}"


class JsonFormatter(logging.Formatter):
    """Programs' lines: an object each, with time (ISO 8601, UTC), level, event, message and fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: plain(value) for name, value in fields_of(record).items()}
        traceback = traceback_of(record)
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": event_of(record),
            "message": text_of(record),
            "fields": fields if traceback is None else fields | {"traceback": traceback},
        }
        return json.dumps(said, allow_nan=False)
