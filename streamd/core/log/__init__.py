"""Logs events with fields: as lines for people, as fields for the journal, as JSON for programs.

Modules call `info`, `notice`, `warning` or `error`; entry points call `configure_logging`. `events` has the name and
the meaning of every event (pure). One handler holds back what repeats too often, and hands on the rest.

All text is escaped and bounded: control characters, which a trainer's name or a file's name may contain, are written as
Python writes them. The journal's protocol is one datagram for each event, one line for each field:
https://systemd.io/JOURNAL_NATIVE_PROTOCOL
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from streamd.core.log.events import NEVER_SUPPRESSED, compute_message_id
from streamd.core.stderr_guard import format_unwritten_lines, guard_stderr
from streamd.core.text import escape_unprintable
from streamd.limits import LOG_LINE_VALUE_CHARS, LOG_SPAN_EVENTS, LOG_SPAN_S, LOG_TEXT_CHARS

NOTICE: Final = 25  # between info and warning: events that a user waits for, also logged by a daemon in the background
logging.addLevelName(NOTICE, "NOTICE")


def log_event(level: int, event: str, text: str, **fields: Any) -> None:
    """Logs one event. `event` is one of `events.EVENTS`; outputs escape and bound the text and the values."""
    logging.getLogger("streamd").log(level, text, extra={"event": event, "fields": fields})


info: Final = partial(log_event, logging.INFO)
notice: Final = partial(log_event, NOTICE)
warning: Final = partial(log_event, logging.WARNING)
error: Final = partial(log_event, logging.ERROR)


def current_level() -> int:
    """Returns the lowest level that is logged, for a helper process that logs the same."""
    return logging.getLogger("streamd").getEffectiveLevel()


def output_arguments() -> list[str]:
    """Returns "json" or "journal", or nothing for lines, for a helper process that logs in the same form."""
    return [] if _Output.form is None else [_Output.form]


# --- a record as a line, as JSON, and as fields of the journal

JsonScalar = str | int | float | bool | None

JOURNAL_SOCKET: Final = "/run/systemd/journal/socket"

_QUOTED: Final = frozenset(" \t\"'=")
_TRACEBACKS: Final = logging.Formatter()
_STDERR: Final = 2
_SEND_TIMEOUT_S: Final = 1.0  # as for the service manager: a journal that takes longer is stuck
_TOO_LARGE: Final = frozenset({errno.EMSGSIZE, errno.ENOBUFS})
# Levels of the logging library, from the highest, and syslog's priorities.
_PRIORITIES: Final = ((50, 2), (40, 3), (30, 4), (NOTICE, 5), (20, 6))
_DEBUG: Final = 7


def event_name(record: logging.LogRecord) -> str:
    """Returns the event's name, or the logger's name for a record of a library."""
    return str(getattr(record, "event", record.name))


def event_fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Returns the fields' values as they were logged."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def traceback_text(record: logging.LogRecord) -> str | None:
    """Returns the traceback in several lines, escaped, or None if no exception was logged."""
    if not record.exc_info:
        return None
    return "\n".join(escape_unprintable(line) for line in _TRACEBACKS.formatException(record.exc_info).splitlines())


def to_json_scalar(value: object) -> JsonScalar:
    """Returns a value that JSON can represent; text becomes one line, escaped and bounded."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _truncate_text(escape_unprintable(str(value)), LOG_TEXT_CHARS)


def format_sentence(record: logging.LogRecord) -> str:
    """Returns `event: text key=value ...` as one line."""
    tail = ""
    for name, value in event_fields(record).items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        if not text.isprintable() or any(character in _QUOTED for character in text) or not text:
            text = repr(text)
        tail += f" {name}={_truncate_text(text, LOG_LINE_VALUE_CHARS)}"
    return f"{event_name(record)}: {to_json_scalar(record.getMessage())}{tail}"


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
            "message": to_json_scalar(record.getMessage()),
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
    event, traceback = event_name(record), traceback_text(record)
    fields = [
        ("MESSAGE", format_sentence(record)),
        ("PRIORITY", str(next((priority for least, priority in _PRIORITIES if record.levelno >= least), _DEBUG))),
        ("MESSAGE_ID", compute_message_id(event)),
        ("SYSLOG_IDENTIFIER", "streamd"),
        ("STREAMD_EVENT", event),
        *((f"STREAMD_{name.upper()}", str(to_json_scalar(value))) for name, value in event_fields(record).items()),
    ]
    if traceback is not None:
        fields.append(("STREAMD_TRACEBACK", traceback))
    encoded = bytearray()
    for name, value in fields:
        data = value.encode()
        # A value of several lines is preceded by its length, so that no line is taken for a field.
        if b"\n" in data:
            encoded += b"%b\n%b%b\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
        else:
            encoded += b"%b=%b\n" % (name.encode(), data)
    return bytes(encoded)


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
        else:
            return
        descriptor = os.memfd_create("streamd-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with closing(os.fdopen(descriptor, "wb", buffering=0)) as file:
            file.write(data)
            # The journal reads only a memfd with these seals: otherwise the sender could change it meanwhile.
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            link.connect(address)
            socket.send_fds(link, [b""], [descriptor])


# --- the handler


class OutputHandler(logging.Handler):
    """Hands each event to `write(lines, event)`: its lines, and for the journal the event with its fields, else b"".

    Of one name, at most `max_events` are written within `span_s` seconds from the first. The number of the others is
    logged when their span ends, at the latest when this handler closes. The logging library calls `emit` with the
    handler's lock held, from any thread.
    """

    def __init__(
        self,
        write: Callable[[bytes, bytes], None],
        formatter: logging.Formatter,
        *,
        has_journal: bool = False,
        max_events: int = LOG_SPAN_EVENTS,
        span_s: float = LOG_SPAN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._write = write
        self._has_journal = has_journal
        self._max_events, self._span_s, self._clock = max_events, span_s, clock
        # When the span of an event began, and how many there were in it. It needs no bound: only the program itself
        # names events, and they are few.
        self._counted_spans: dict[str, tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now_s, event = self._clock(), event_name(record)
        self._log_held_repetitions(now_s)
        if event not in NEVER_SUPPRESSED:
            began_s, earlier = self._counted_spans.get(event, (now_s, 0))
            self._counted_spans[event] = began_s, earlier + 1
            # The first one too many: on the event loop of this thread, a timer ends the span. Without a loop, the count
            # is logged with the next event, or when the handler closes.
            if earlier == self._max_events:
                with suppress(RuntimeError):
                    span_end_s = began_s + self._span_s
                    asyncio.get_running_loop().call_later(span_end_s - now_s, self.end_span, span_end_s)
            if earlier >= self._max_events:
                return
        self._write_record(record)

    def end_span(self, span_end_s: float) -> None:
        """Logs what is counted up to this time. For a timer, which may fire slightly before it."""
        self.acquire()  # the lock that the logging library takes around `emit`
        try:
            self._log_held_repetitions(max(self._clock(), span_end_s))
        finally:
            self.release()

    def close(self) -> None:
        self._log_held_repetitions(math.inf)
        super().close()

    def _log_held_repetitions(self, now_s: float) -> None:
        """Ends the spans that are over at `now_s`, and logs for each how many of its events were not logged."""
        for event, (began_s, count) in [*self._counted_spans.items()]:
            if now_s >= began_s + self._span_s:
                del self._counted_spans[event]
                if count > self._max_events:
                    text = "an event was repeated so often that some repetitions were not logged"
                    self._write_record(_build_warning("log.held", text, of=event, count=count - self._max_events))

    def _write_record(self, record: logging.LogRecord) -> None:
        self._write(_format_lines(self, record), encode_event(record) if self._has_journal else b"")


def _format_lines(by: logging.Formatter | logging.Handler, record: logging.LogRecord) -> bytes:
    return f"{by.format(record)}\n".encode(errors="backslashreplace")


def _build_warning(event: str, text: str, **fields: Any) -> logging.LogRecord:
    """Returns an event about the log itself."""
    name = logging.getLevelName(logging.WARNING)
    facts = {"name": "streamd", "levelno": logging.WARNING, "levelname": name, "msg": text}
    return logging.makeLogRecord({**facts, "event": event, "fields": fields})


class _Output:
    form: str | None = None


def configure_logging(*, level: int = logging.INFO, as_json: bool = False, to_journal: bool = False) -> None:
    """Sends streamd's events of `level` and above to stderr, or to the journal if stderr is connected to it.

    From then on nothing that this process or a child of it writes to stderr waits for a reader: see `stderr_guard`.
    `as_json`: one JSON object a line on stderr, whatever it is connected to. `to_journal`: as if stderr were connected
    to the journal, for a child of a process that logs there. Only entry points call this.
    """
    logger = logging.getLogger("streamd")
    formatter = JsonFormatter() if as_json else LineFormatter()
    has_journal = not as_json and (to_journal or is_connected_to_journal(os.environ))
    _Output.form = "json" if as_json else "journal" if has_journal else None
    writer = guard_stderr(replace=True)
    if writer is not None:
        writer.send_event = lambda event: send_to_journal(event, JOURNAL_SOCKET)
        writer.build_notice = lambda count: _format_lines(
            formatter, _build_warning("log.unwritten", format_unwritten_lines(count), count=count)
        )
    output = OutputHandler(_write_now if writer is None else writer.write, formatter, has_journal=has_journal)
    logger.handlers[:] = [output]
    logger.setLevel(level)
    logger.propagate = False


def _write_now(lines: bytes, event: bytes) -> None:
    """Writes to a sys.stderr that somebody has replaced."""
    if event:
        try:
            send_to_journal(event, JOURNAL_SOCKET)
        except OSError:
            pass
        else:
            return
    sys.stderr.write(lines.decode())
