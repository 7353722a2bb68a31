"""The list of bad samples of a stream: recorded before the first batch that uses a verdict is sent, read at start."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from streamd.errors import ConfigError
from streamd.verdicts import Verdict


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
        lines = self._path.read_bytes().split(b"\n")
        complete, torn = lines[:-1], lines[-1]
        for number, line in enumerate(complete, 1):
            try:
                verdict = msgspec.json.decode(line, type=Verdict)
            except msgspec.MsgspecError as error:
                raise ConfigError(
                    f"{self._path}:{number} is no verdict ({error}): repair the line or remove the file"
                ) from error
            self.reasons[verdict.sample_id] = verdict.reason
        if torn:
            os.truncate(self._path, sum(len(line) + 1 for line in complete))

    def record(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Writes the verdicts that are new, durably, and returns them. Raises OSError."""
        new = {each.sample_id: each for each in verdicts if each.sample_id not in self.reasons}
        if new:
            lines = b"".join(msgspec.json.encode(each) + b"\n" for each in new.values())
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, lines)
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            self.reasons.update({each.sample_id: each.reason for each in new.values()})
        return list(new.values())
