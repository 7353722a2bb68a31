"""Text of clients and file names is shown in every format, and can do no harm there."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from streamd.core.log import (
    JsonFormatter,
    LineFormatter,
    OutputHandler,
    encode_event,
    format_sentence,
    is_connected_to_journal,
    send_to_journal,
    to_json_scalar,
)
from streamd.core.log.events import compute_message_id
from streamd.core.stderr_guard import StderrWriter

ALL_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL

# A terminal's escape sequence, lines and fields of their own, a bell, C1, bidi, half a character, what erases.
HOSTILE = [
    "\x1b[31mred",
    "a\nMESSAGE=no\nPRIORITY=0",
    "\a\b\r",
    "\x9b2J",
    "\u202egnp",
    "\udcff.jpg",
    "\x7f",
    "\0",
    "\x85",
]


def record(text: str, *arguments: object, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("streamd", logging.WARNING, __file__, 1, text, arguments, None)
    made.event, made.fields = "wire.malformed", fields
    return made


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_record_is_one_printable_line_whatever_it_contains(hostile: str) -> None:
    line = LineFormatter().format(record(f"no: {hostile}", file=hostile))
    assert line.isprintable()
    assert "\x1b" not in line


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_json_record_is_one_line_with_printable_values(hostile: str) -> None:
    line = JsonFormatter().format(record(f"no: {hostile}", file=hostile, others=[hostile]))
    assert line.isascii()
    assert line.isprintable()
    said = json.loads(line)
    assert [text.isprintable() for text in (said["message"], *said["fields"].values())] == [True, True, True]


def test_an_object_has_time_level_event_message_and_fields() -> None:
    made = record("no: %s", "so", stream="train", epoch=3, rate=0.5, ok=True, verdict=None)
    made.created = 1700000000.25
    said = json.loads(JsonFormatter().format(made))
    assert said == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "warning",
        "event": "wire.malformed",
        "message": "no: so",
        "fields": {"stream": "train", "epoch": 3, "rate": 0.5, "ok": True, "verdict": None},
    }
    assert datetime.fromisoformat(said["time"]) == datetime.fromtimestamp(made.created, UTC)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_lacks_becomes_text(value: float) -> None:
    assert to_json_scalar(value) == str(value)
    assert json.loads(JsonFormatter().format(record("no", seconds=value)))["fields"] == {"seconds": str(value)}


def test_an_endless_text_is_cut_in_every_format() -> None:
    endless = record("t" * 100_000, file="\0" * 100_000)
    assert len(format_sentence(endless)) < 70_000
    assert len(LineFormatter().format(endless)) < 70_000
    assert len(JsonFormatter().format(endless)) < 300_000


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()])
def test_a_traceback_escapes_control_characters_in_the_error(formatter: logging.Formatter) -> None:
    made = record("a request failed")
    try:
        int("\x1b[31mred\x9b")
    except ValueError as error:
        made.exc_info = (OSError, OSError(f"\x1b[31m{error}"), error.__traceback__)
    said = formatter.format(made)
    assert "Traceback (most recent call last):" in said
    assert "OSError: \\" in said
    assert "\x1b" not in said


# --- the journal: the fields of its own protocol, and a line on stderr when it cannot be reached


def log_to(address: str, made: logging.LogRecord, tmp_path: Path) -> str:
    """Logs a record where stderr is connected to the journal at an address; returns what is on stderr."""
    stderr = os.open(tmp_path / "stderr", os.O_CREAT | os.O_WRONLY)
    writer = StderrWriter(stderr)
    writer.send_event = lambda event: send_to_journal(event, address)
    OutputHandler(writer.write, LineFormatter(), has_journal=True).handle(made)
    writer.close()
    os.close(stderr)
    return (tmp_path / "stderr").read_text()


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


def test_an_event_has_its_fields_its_priority_and_its_id(journal: socket.socket, tmp_path: Path) -> None:
    otherwise = log_to(journal.getsockname(), record("no: %s", "so", stream="train", samples=63), tmp_path)
    assert fields_in(journal.recv(1 << 16)) == [
        ("MESSAGE", "wire.malformed: no: so stream=train samples=63"),
        ("PRIORITY", "4"),
        ("MESSAGE_ID", compute_message_id("wire.malformed")),
        ("SYSLOG_IDENTIFIER", "streamd"),
        ("STREAMD_EVENT", "wire.malformed"),
        ("STREAMD_STREAM", "train"),
        ("STREAMD_SAMPLES", "63"),
    ]
    assert otherwise == ""


@pytest.mark.parametrize(("level", "priority"), [(50, "2"), (40, "3"), (30, "4"), (25, "5"), (20, "6"), (10, "7")])
def test_each_level_has_its_journal_priority(level: int, priority: str) -> None:
    made = record("said")
    made.levelno = level
    assert dict(fields_in(encode_event(made)))["PRIORITY"] == priority


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_adds_no_journal_field_and_is_escaped(hostile: str) -> None:
    fields = fields_in(encode_event(record(f"no: {hostile}", file=hostile)))
    assert [name for name, _ in fields] == [
        "MESSAGE", "PRIORITY", "MESSAGE_ID", "SYSLOG_IDENTIFIER", "STREAMD_EVENT", "STREAMD_FILE",
    ]  # fmt: skip
    assert all(value.isprintable() for _, value in fields)


def test_a_traceback_is_one_journal_field_of_several_lines() -> None:
    made = record("a request failed")
    made.exc_info = (ValueError, ValueError("a\nPRIORITY=0"), None)
    name, value = fields_in(encode_event(made))[-1]
    assert (name, value) == ("STREAMD_TRACEBACK", "ValueError: a\nPRIORITY=0")
    assert dict(fields_in(encode_event(made)))["PRIORITY"] == "4"


def test_an_event_too_large_for_a_datagram_is_sent_in_a_sealed_file(journal: socket.socket, tmp_path: Path) -> None:
    large = [60_000 * each for each in "abcdefgh"]
    made = record("large", **{f"part_{each[0]}": each for each in large})
    otherwise = log_to(journal.getsockname(), made, tmp_path)
    data, descriptors, _, _ = socket.recv_fds(journal, 1 << 16, 4)
    assert (data, len(descriptors), otherwise) == (b"", 1, "")
    with os.fdopen(descriptors[0], "rb") as file:
        assert fcntl.fcntl(file, fcntl.F_GET_SEALS) == ALL_SEALS
        found = dict(fields_in(os.pread(file.fileno(), 1 << 20, 0)))
    assert [found[f"STREAMD_PART_{each[0].upper()}"] for each in large] == large


def test_a_missing_journal_still_logs_the_line(tmp_path: Path) -> None:
    assert log_to(str(tmp_path / "gone"), record("said"), tmp_path).endswith("W wire.malformed: said\n")


def test_stderr_is_the_journal_only_if_journal_stream_names_that_file(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as file:
        found = os.fstat(file.fileno())
        names = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert is_connected_to_journal(names, file.fileno())
        assert not is_connected_to_journal({"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"}, file.fileno())
        assert not is_connected_to_journal({}, file.fileno())
        closed = os.dup(file.fileno())
        os.close(closed)
        assert not is_connected_to_journal(names, closed)
