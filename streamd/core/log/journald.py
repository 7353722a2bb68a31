"""systemd's journal, by its native protocol: one datagram an event, a field a line.

https://systemd.io/JOURNAL_NATIVE_PROTOCOL
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Final

from streamd.core.log.events import compute_message_id
from streamd.core.log.formatters import event_fields, event_name, format_sentence, to_json_scalar, traceback_text

JOURNAL_SOCKET: Final = "/run/systemd/journal/socket"

_STDERR: Final = 2
_SEND_TIMEOUT_S: Final = 1.0  # as for the service manager: a journal that takes so long stands still
_TOO_LARGE: Final = frozenset({errno.EMSGSIZE, errno.ENOBUFS})
# Levels of the logging library, from the highest, and syslog's priorities. 25 is ours: a notice.
_PRIORITIES: Final = ((50, 2), (40, 3), (30, 4), (25, 5), (20, 6))
_DEBUG: Final = 7


def leads_to_journal(environment: Mapping[str, str], descriptor: int = _STDERR) -> bool:
    """Whether a descriptor leads to the journal: systemd names the device and inode of what it connected."""
    try:
        found = os.fstat(descriptor)
    except OSError:  # there is none
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def encode_event(record: logging.LogRecord) -> bytes:
    """One event as the journal takes it."""
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
    """What has several lines brings its length along, so that none of them is taken for a field."""
    data = value.encode()
    if b"\n" in data:
        return b"%b\n%b%b\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
    return b"%b=%b\n" % (name.encode(), data)


def _find_priority(level: int) -> int:
    return next((priority for least, priority in _PRIORITIES if level >= least), _DEBUG)


def send_to_journal(data: bytes, address: str) -> None:
    """Hands one event over, in a sealed memfd when it is too large for a datagram. Raises OSError."""
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
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        link.connect(address)
        socket.send_fds(link, [b""], [descriptor])


class JournalHandler(logging.Handler):
    """Tells the journal at `address`; what it refuses is said by `fallback`."""

    def __init__(self, address: str, fallback: logging.Handler) -> None:
        super().__init__()
        self._address = address
        self._fallback = fallback

    def emit(self, record: logging.LogRecord) -> None:
        try:
            send_to_journal(encode_event(record), self._address)
        except OSError:
            self._fallback.handle(record)
