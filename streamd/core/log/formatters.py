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

from streamd.core.text import escape_unprintable
from streamd.limits import LOG_LINE_VALUE_CHARS, LOG_TEXT_CHARS

JsonScalar = str | int | float | bool | None

_QUOTED: Final = frozenset(" \t\"'=")
_TRACEBACKS: Final = logging.Formatter()


def event_name(record: logging.LogRecord) -> str:
    """The event's name; a library's record has its logger's."""
    return str(getattr(record, "event", record.name))


def event_fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """The values as they were handed over."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def message_text(record: logging.LogRecord) -> str:
    """What is said, in one line."""
    return _truncate_text(escape_unprintable(record.getMessage()), LOG_TEXT_CHARS)


def traceback_text(record: logging.LogRecord) -> str | None:
    """Where it came from, in several lines, if an exception was logged."""
    if not record.exc_info:
        return None
    return "\n".join(escape_unprintable(line) for line in _TRACEBACKS.formatException(record.exc_info).splitlines())


def to_json_scalar(value: object) -> JsonScalar:
    """A value as JSON can have it; its text is printable and bounded."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _truncate_text(escape_unprintable(str(value)), LOG_TEXT_CHARS)


def format_sentence(record: logging.LogRecord) -> str:
    """`event: text  key=value ...`, in one line."""
    tail = "".join(f" {name}={_format_value(value)}" for name, value in event_fields(record).items())
    return f"{event_name(record)}: {message_text(record)}{tail}"


def _format_value(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if not text.isprintable() or any(character in _QUOTED for character in text) or not text:
        text = repr(text)
    return _truncate_text(text, LOG_LINE_VALUE_CHARS)


def _truncate_text(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 3]}..."


class LineFormatter(logging.Formatter):
    """People's lines: time, level, event, text, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname[0]} {format_sentence(record)}"
        traceback = traceback_text(record)
        return line if traceback is None else f"{line}\n{traceback}"


class JsonFormatter(logging.Formatter):
    """Programs' lines: an object each, with time (ISO 8601, UTC), level, event, message and fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: to_json_scalar(value) for name, value in event_fields(record).items()}
        traceback = traceback_text(record)
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": event_name(record),
            "message": message_text(record),
            "fields": fields if traceback is None else fields | {"traceback": traceback},
        }
        return json.dumps(said, allow_nan=False)
