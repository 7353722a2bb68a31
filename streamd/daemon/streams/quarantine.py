"""The durable list of a stream's bad samples. A verdict is recorded before the first batch that uses it is sent.

The list is read at start. Each verdict names the list of samples in which its number counts; a verdict on another list
is ignored. A verdict without such a name was written by a version that recorded none, and belongs to the list beside
it. Several daemons may append.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from streamd.core import log
from streamd.core.host import open_regular_descriptor
from streamd.core.sampler import BadSample
from streamd.core.text import escape_unprintable, format_count
from streamd.dataset.manifest.manifest import sync_folder
from streamd.errors import ConfigError
from streamd.ipc.worker_messages import TRANSFORM_RAISED

# --- Bad samples by kind.
#
# Kinds are few enough for the labels of a metric; there may be as many reasons as files.

# `stale`: changed since it was listed. `gone`: cannot be opened. `damaged`: cut off or broken. `large`: beyond a bound.
# `crash`: ended a worker. `transform`: the user's function raised. `unfit`: no decoder reads it, since it is a video, a
# page of HTML, or an unsupported kind of image.
FaultKind = Literal["stale", "gone", "damaged", "large", "crash", "transform", "unfit"]

FAULT_KINDS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)

_FAULT_PATTERNS: Final[tuple[tuple[FaultKind, re.Pattern[str]], ...]] = (
    ("transform", re.compile(re.escape(TRANSFORM_RAISED))),
    ("stale", re.compile(r"stale\b|removed, or replaced")),
    ("gone", re.compile(r"No such file|Permission denied|(Is|Not) a directory|not a regular|it lies outside")),
    ("crash", re.compile(r"crashes |takes more than |needs more memory ")),
    ("large", re.compile(r"(\d+x\d+ pixels are |\d+ bytes are )?more than |the file has \d+ bytes")),
    ("damaged", re.compile(
        r"(a damaged|an empty|its chunk|a file that begins with) |\d+ zero bytes|unreadable EXIF|a size |its size is "
        r"|a TIFF (cut|truncated|whose)|a pixel"
    )),
)  # fmt: skip


def classify_fault_reason(reason: str) -> FaultKind:
    """Returns the kind of fault that a verdict's reason describes; `unfit` where no pattern matches."""
    return next((kind for kind, sign in _FAULT_PATTERNS if sign.match(reason)), "unfit")


# --- their list


@dataclass(frozen=True, slots=True)
class _BadSampleLine:
    """A verdict as it is written; `list_id` is empty, and `of_bytes` false, if an older version did not record them."""

    sample_id: int
    reason: str
    list_id: str = ""
    of_bytes: bool = False


_verdict_decoder: Final = msgspec.json.Decoder(_BadSampleLine)


class Quarantine:
    """Sample id -> reason, in memory and in an append-only file of one JSON object a line; and how many of each kind.

    `get_list_id` returns the identity of the list of samples; a reload sets that of another version of the same list.
    It is called only when there is a verdict, since it digests a column of the whole list. `needs_bytes`: verdicts are
    read only if they are on bytes that were read; what one host could not read is another matter where several hosts
    serve the same stream.
    """

    def __init__(self, path: Path, get_list_id: Callable[[], str], *, needs_bytes: bool = False) -> None:
        self.path = path
        self.get_list_id = get_list_id
        self._needs_bytes = needs_bytes
        self.reasons: dict[int, str] = {}
        self._kinds: Counter[FaultKind] = Counter()
        self._classified_count = 0
        self._judged_by_bytes: set[int] = set()
        self._pictures: set[bytes] = set()
        self._counted = 0

    def list_bad_samples(self) -> list[BadSample]:
        """Returns all verdicts, in the order in which they were recorded."""
        return [
            BadSample(each, reason, of_this_host=each not in self._judged_by_bytes)
            for each, reason in self.reasons.items()
        ]

    def count_bad_pictures(self, find_picture: Callable[[int, str], bytes]) -> int:
        """Returns how many pictures are at fault. `find_picture(sample_id, reason)` is called once for a verdict."""
        # Verdicts are never removed, and keep their order.
        new = islice(self.reasons.items(), self._counted, None)
        self._pictures.update(find_picture(sample_id, reason) for sample_id, reason in new)
        self._counted = len(self.reasons)
        return len(self._pictures)

    def count_kinds(self) -> dict[FaultKind, int]:
        """Returns how many verdicts there are of each kind. It looks at each of them once."""
        new = islice(self.reasons.values(), self._classified_count, None)  # as above
        self._kinds.update(map(classify_fault_reason, new))
        self._classified_count = len(self.reasons)
        return dict(self._kinds)

    def copy_and_switch_file(self, path: Path) -> None:
        """Switches to another file, after it has received the verdicts that it lacks.

        Raises OSError, and then keeps the previous file.
        """
        there = Quarantine(path, self.get_list_id)
        there.load_bad_samples()
        there.append_new_bad_samples(self.list_bad_samples())
        self.path = path

    def load_bad_samples(self) -> None:
        """Reads the verdicts of earlier runs. Raises ConfigError for a line that is none.

        A last line cut short by a crash is dropped: no batch has used it.
        """
        if not self.path.exists():
            return
        # Opening cuts off a torn last line, so the piece after the last line break is always empty.
        with _open_quarantine_file(self.path, os.O_RDWR) as descriptor:
            lines = os.pread(descriptor, os.fstat(descriptor).st_size, 0).split(b"\n")[:-1]
        foreign = of_copies = 0
        for number, line in enumerate(lines, 1):
            try:
                verdict = _verdict_decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"{self.path}:{number} is not a verdict ({error}): repair the line or remove the file"
                ) from error
            if verdict.list_id not in {"", self.get_list_id()}:
                foreign += 1
            elif self._needs_bytes and not verdict.of_bytes:
                of_copies += 1
            else:
                self._remember(BadSample(verdict.sample_id, verdict.reason, of_this_host=not verdict.of_bytes))
        if of_copies:
            count = format_count(of_copies, "verdict")
            file = escape_unprintable(self.path.name)
            log.notice("sample.forgiven", f"{count} in {file} left out: with expect, only bytes that were read count")
        if foreign:
            count = format_count(foreign, "verdict")
            log.notice("sample.forgiven", f"{count} in {escape_unprintable(self.path.name)} left out: of another list")

    def _remember(self, verdict: BadSample) -> None:
        if verdict.sample_id not in self.reasons:
            self.reasons[verdict.sample_id] = verdict.reason
            if verdict.of_bytes:
                self._judged_by_bytes.add(verdict.sample_id)

    def append_new_bad_samples(self, verdicts: Iterable[BadSample]) -> list[BadSample]:
        """Writes the new ones among `verdicts` durably, and returns them. After OSError none of them is known."""
        new = {each.sample_id: each for each in verdicts if each.sample_id not in self.reasons}
        if new:
            list_id = self.get_list_id()
            verdict_lines = (
                _BadSampleLine(each.sample_id, each.reason, list_id, each.of_bytes) for each in new.values()
            )
            lines = b"".join(msgspec.json.encode(each) + b"\n" for each in verdict_lines)
            # The disk comes before memory. Otherwise a batch could use a verdict that a crash then loses, and the batch
            # would differ when it is made again.
            is_first = not self.path.exists()
            with _open_quarantine_file(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as descriptor:
                before = os.fstat(descriptor).st_size
                try:
                    written = os.write(descriptor, lines)
                    if written < len(lines):  # the disk is full: writing the rest raises the error
                        os.write(descriptor, lines[written:])
                    os.fdatasync(descriptor)
                except OSError:
                    with contextlib.suppress(OSError):  # otherwise a torn line remains, which every reader drops
                        os.ftruncate(descriptor, before)
                    raise
            # A new file is durable only when its name in the folder is.
            if is_first:
                sync_folder(self.path.parent)
            for each in new.values():
                self._remember(each)
        return list(new.values())


@contextlib.contextmanager
def _open_quarantine_file(path: Path, flags: int) -> Iterator[int]:
    """Opens the file under an exclusive lock, and cuts off a torn last line.

    A torn line remains of an append that failed and could not be undone. The lock keeps this process from mistaking a
    line that another daemon is writing for a torn one.
    """
    descriptor = open_regular_descriptor(path, flags)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: logged for the lists in this folder already
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        kept = os.pread(descriptor, size, 0).rfind(b"\n") + 1
        if kept < size:
            os.ftruncate(descriptor, kept)
        yield descriptor
    finally:
        os.close(descriptor)
