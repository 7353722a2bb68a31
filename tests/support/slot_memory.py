"""The memory that slots take on this host; each slot counts once, however many processes map it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_NAME: Final = "/memfd:streamd-"
_MAPPED: Final = re.compile(rf"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+) +{_NAME}\d+ ")


def slot_memory_bytes(pids: Iterable[int]) -> int:
    """The bytes that lie in slots which any of these processes maps or has open; pages that were freed do not count."""
    found: dict[int, int] = {}
    for pid in pids:
        with suppress(ProcessLookupError, FileNotFoundError):  # it has ended, and holds nothing
            for inode, nbytes in (*_opened(pid), *_mapped(pid)):
                found[inode] = max(found.get(inode, 0), nbytes)
    return sum(found.values())


def family(pid: int) -> list[int]:
    """A process and its children, such as a daemon and its workers."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def _opened(pid: int) -> Iterator[tuple[int, int]]:
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed in between
            if Path(entry.path).readlink().as_posix().startswith(_NAME):
                facts = Path(entry.path).stat()
                yield facts.st_ino, facts.st_blocks * 512


def _mapped(pid: int) -> Iterator[tuple[int, int]]:
    """What is present of each mapping: where a process has read or written, and nobody has freed the page since."""
    inode = 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if found := _MAPPED.match(line):
            inode = int(found[3])
        elif inode and line.startswith("Rss:"):
            yield inode, int(line.split()[1]) * 1024
            inode = 0
