"""The list of bad samples of a stream: recorded before the first batch that uses a verdict is sent, read at start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from streamd.errors import ConfigError
from streamd.manifest import sync_folder
from streamd.verdicts import Verdict

_verdict: Final = msgspec.json.Decoder(Verdict)


class Quarantine:
    """Sample id -> reason, in memory and in an append-only file of one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reasons: dict[int, str] = {}

    @property
    def path(self) -> Path:
        return self._path

    def move(self, path: Path) -> None:
        """Goes on in another file, which gets the verdicts that it lacks. Raises OSError."""
        there = Quarantine(path)
        there.load()
        there.record([Verdict(*each) for each in self.reasons.items()])
        self._path = path

    def load(self) -> None:
        """Reads what earlier runs recorded. A last line cut short by a crash was never used, and is dropped."""
        if not self._path.exists():
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _drop_torn_line(descriptor)
            lines = os.pread(descriptor, os.fstat(descriptor).st_size, 0).split(b"\n")[:-1]
        finally:
            os.close(descriptor)
        for number, line in enumerate(lines, 1):
            try:
                verdict = _verdict.decode(line)
            except msgspec.MsgspecError as error:
                raise ConfigError(
                    f"{self._path}:{number} is no verdict ({error}): repair the line or remove the file"
                ) from error
            self.reasons[verdict.sample_id] = verdict.reason

    def record(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Writes the verdicts that are new, durably, and returns them. Raises OSError: then none of them is known."""
        new = {each.sample_id: each for each in verdicts if each.sample_id not in self.reasons}
        if new:
            self._append(b"".join(msgspec.json.encode(each) + b"\n" for each in new.values()))
            self.reasons.update({each.sample_id: each.reason for each in new.values()})
        return list(new.values())

    def _append(self, lines: bytes) -> None:
        first = not self._path.exists()
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _drop_torn_line(descriptor)  # of an append that failed, and could not be undone
            _write(descriptor, lines)
        finally:
            os.close(descriptor)
        if first:
            sync_folder(self._path.parent)


def _write(descriptor: int, lines: bytes) -> None:
    """Appends all lines durably, or none."""
    before = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, lines)
        if written < len(lines):  # the disk is full, and says so when it is asked for the rest
            os.write(descriptor, lines[written:])
        os.fdatasync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):  # then it is a torn line, which nobody believes
            os.ftruncate(descriptor, before)
        raise


def _drop_torn_line(descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    kept = os.pread(descriptor, size, 0).rfind(b"\n") + 1
    if kept < size:
        os.ftruncate(descriptor, kept)
