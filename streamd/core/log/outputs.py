"""Formats the record of one event for people, programs and systemd's journal. All text is escaped and bounded.

Control characters, which a trainer's name or a file's name may contain, are written as Python writes them.

The journal's protocol: one datagram for each event, one line for each field.
https://systemd.io/JOURNAL_NATIVE_PROTOCOL
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Final

from streamd.core.log.events import compute_message_id
from streamd.core.stderr_guard import format_unwritten_lines
from streamd.core.text import escape_unprintable
from streamd.limits import LOG_LINE_VALUE_CHARS, LOG_TEXT_CHARS

JsonScalar = str | int | float | bool | None

JOURNAL_SOCKET: Final = "/run/systemd/journal/socket"

_QUOTED: Final = frozenset(" \t\"'=")
_TRACEBACKS: Final = logging.Formatter()
_STDERR: Final = 2
_SEND_TIMEOUT_S: Final = 1.0  # as for the service manager: a journal that takes longer is stuck
_TOO_LARGE: Final = frozenset({errno.EMSGSIZE, errno.ENOBUFS})
# Levels of the logging library, from the highest, and syslog's priorities. 25 is NOTICE.
_PRIORITIES: Final = ((50, 2), (40, 3), (30, 4), (25, 5), (20, 6))
_DEBUG: Final = 7


def event_name(record: logging.LogRecord) -> str:
    """Returns the event's name, or the logger's name for a record of a library."""
    return str(getattr(record, "event", record.name))


def event_fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Returns the fields' values as they were logged."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def message_text(record: logging.LogRecord) -> str:
    """Returns the record's message as one line, escaped and bounded."""
    return _truncate_text(escape_unprintable(record.getMessage()), LOG_TEXT_CHARS)


def traceback_text(record: logging.LogRecord) -> str | None:
    """Returns the traceback in several lines, escaped, or None if no exception was logged."""
    if not record.exc_info:
        return None
    return "\n".join(escape_unprintable(line) for line in _TRACEBACKS.formatException(record.exc_info).splitlines())


def to_json_scalar(value: object) -> JsonScalar:
    """Returns a value that JSON can represent; text is escaped and bounded."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _truncate_text(escape_unprintable(str(value)), LOG_TEXT_CHARS)


def format_sentence(record: logging.LogRecord) -> str:
    """Returns `event: text key=value ...` as one line."""
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
    """Formats lines for people: time, level, event, text, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname[0]} {format_sentence(record)}"
        traceback = traceback_text(record)
        return line if traceback is None else f"{line}\n{traceback}"


class JsonFormatter(logging.Formatter):
    """Formats lines for programs: one object each, with time (ISO 8601, UTC), level, event, message and fields."""

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


def is_connected_to_journal(environment: Mapping[str, str], descriptor: int = _STDERR) -> bool:
    """Whether a descriptor is connected to the journal.

    systemd writes the device and inode of the stream that it connected into $JOURNAL_STREAM.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:  # the descriptor is closed
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def encode_event(record: logging.LogRecord) -> bytes:
    """Returns one event in the journal's format."""
    return b"".join(_encode_field(name, value) for name, value in _build_fields(record))


def _build_fields(record: logging.LogRecord) -> Iterator[tuple[str, str]]:
    event, traceback = event_name(record), traceback_text(record)
    yield "MESSAGE", format_sentence(record)
    yield "PRIORITY", str(_find_priority(record.levelno))
    yield "MESSAGE_ID", compute_message_id(event)
    yield "SYSLOG_IDENTIFIER", "streamd"
    yield "STREAMD_EVENT", event
    for name, value in event_fields(record).items():
        yield f"STREAMD_{name.upper()}", str(to_json_scalar(value))
    if traceback is not None:
        yield "STREAMD_TRACEBACK", traceback


def _encode_field(name: str, value: str) -> bytes:
    """Returns one field. A value of several lines is preceded by its length, so that no line is taken for a field."""
    data = value.encode()
    if b"\n" in data:
        return b"%b\n%b%b\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
    return b"%b=%b\n" % (name.encode(), data)


def _find_priority(level: int) -> int:
    return next((priority for least, priority in _PRIORITIES if level >= least), _DEBUG)


def send_to_journal(data: bytes, address: str) -> None:
    """Sends one event to the journal at `address`, in a sealed memfd if it is too large for a datagram.

    Waits no longer than _SEND_TIMEOUT_S for room in the journal's queue. Raises OSError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.settimeout(_SEND_TIMEOUT_S)
        try:
            link.sendto(data, address)
        except OSError as error:
            if error.errno not in _TOO_LARGE:
                raise
            _send_as_memfd(link, data, address)


def _send_as_memfd(link: socket.socket, data: bytes, address: str) -> None:
    descriptor = os.memfd_create("streamd-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with closing(os.fdopen(descriptor, "wb", buffering=0)) as file:
        file.write(data)
        # The journal reads only a memfd with these seals: otherwise the sender could change it meanwhile.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        link.connect(address)
        socket.send_fds(link, [b""], [descriptor])


def build_unwritten_record(count: int) -> logging.LogRecord:
    """Returns the event about lines that nobody read."""
    return logging.makeLogRecord(
        {
            "name": "streamd",
            "levelno": logging.WARNING,
            "levelname": "WARNING",
            "msg": format_unwritten_lines(count),
            "event": "log.unwritten",
            "fields": {"count": count},
        }
    )


class OutputHandler(logging.Handler):
    """Hands each event to `write(lines, event)`: its lines, and for the journal the event with its fields, else b""."""

    def __init__(
        self, write: Callable[[bytes, bytes], None], formatter: logging.Formatter, *, has_journal: bool = False
    ) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._write = write
        self.has_journal = has_journal

    def emit(self, record: logging.LogRecord) -> None:
        lines = f"{self.format(record)}\n".encode(errors="backslashreplace")
        self._write(lines, encode_event(record) if self.has_journal else b"")
