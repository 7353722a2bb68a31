"""What the journal hears: the fields of its own protocol, and a line on stderr when it does not listen."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_log_outputs import HOSTILE, record

from streamd.core.log.events import compute_message_id
from streamd.core.log.outputs import JournalHandler, encode_event, event_name, is_connected_to_journal

ALL_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Kept(logging.Handler):
    """What is said otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.on_event: dict[str, Callable[[], None]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.on_event.get(event_name(record), bool)()


@pytest.fixture
def journal() -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory(prefix="sd") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.bind(f"{folder}/socket")
        link.settimeout(10)
        yield link


def fields_in(data: bytes) -> list[tuple[str, str]]:
    """As journald reads a datagram."""
    fields = []
    while data:
        line, _, rest = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + size], rest[9 + size :]
        fields.append((name.decode(), value.decode()))
        data = rest
    return fields


def test_an_event_has_its_fields_its_priority_and_its_id(journal: socket.socket) -> None:
    otherwise = Kept()
    JournalHandler(journal.getsockname(), otherwise).handle(record("no: %s", "so", stream="train", samples=63))
    assert fields_in(journal.recv(1 << 16)) == [
        ("MESSAGE", "wire.malformed: no: so stream=train samples=63"),
        ("PRIORITY", "4"),
        ("MESSAGE_ID", compute_message_id("wire.malformed")),
        ("SYSLOG_IDENTIFIER", "streamd"),
        ("STREAMD_EVENT", "wire.malformed"),
        ("STREAMD_STREAM", "train"),
        ("STREAMD_SAMPLES", "63"),
    ]
    assert otherwise.records == []


@pytest.mark.parametrize(("level", "priority"), [(50, "2"), (40, "3"), (30, "4"), (25, "5"), (20, "6"), (10, "7")])
def test_levels_are_priorities(level: int, priority: str) -> None:
    made = record("said")
    made.levelno = level
    assert dict(fields_in(encode_event(made)))["PRIORITY"] == priority


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_that_a_client_says_becomes_a_field_or_is_raw(hostile: str) -> None:
    fields = fields_in(encode_event(record(f"no: {hostile}", file=hostile)))
    assert [name for name, _ in fields] == [
        "MESSAGE", "PRIORITY", "MESSAGE_ID", "SYSLOG_IDENTIFIER", "STREAMD_EVENT", "STREAMD_FILE",
    ]  # fmt: skip
    assert all(value.isprintable() for _, value in fields)


def test_a_traceback_is_a_field_of_several_lines() -> None:
    made = record("a request failed")
    made.exc_info = (ValueError, ValueError("a\nPRIORITY=0"), None)
    name, value = fields_in(encode_event(made))[-1]
    assert (name, value) == ("STREAMD_TRACEBACK", "ValueError: a\nPRIORITY=0")
    assert dict(fields_in(encode_event(made)))["PRIORITY"] == "4"


def test_what_is_too_large_for_a_datagram_comes_in_a_sealed_file(journal: socket.socket) -> None:
    otherwise, large = Kept(), [60_000 * each for each in "abcdefgh"]
    JournalHandler(journal.getsockname(), otherwise).handle(
        record("large", **{f"part_{each[0]}": each for each in large})
    )
    data, descriptors, _, _ = socket.recv_fds(journal, 1 << 16, 4)
    assert (data, len(descriptors), otherwise.records) == (b"", 1, [])
    with os.fdopen(descriptors[0], "rb") as file:
        assert fcntl.fcntl(file, fcntl.F_GET_SEALS) == ALL_SEALS
        found = dict(fields_in(os.pread(file.fileno(), 1 << 20, 0)))
    assert [found[f"STREAMD_PART_{each[0].upper()}"] for each in large] == large


def test_a_journal_that_is_gone_costs_its_fields_and_not_the_line(tmp_path: Path) -> None:
    otherwise = Kept()
    JournalHandler(str(tmp_path / "gone"), otherwise).handle(record("said"))
    assert [each.getMessage() for each in otherwise.records] == ["said"]


def test_stderr_is_the_journal_when_systemd_says_so_of_that_very_file(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as file:
        found = os.fstat(file.fileno())
        names = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert is_connected_to_journal(names, file.fileno())
        assert not is_connected_to_journal({"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"}, file.fileno())
        assert not is_connected_to_journal({}, file.fileno())
        closed = os.dup(file.fileno())
        os.close(closed)
        assert not is_connected_to_journal(names, closed)
