"""What the kernel says about a daemon and its workers, from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_KIB: Final = 1024
_CPU_CLOCK: Final = 2  # of clock_getcpuclockid(3): all threads of a process, user and system
_BLOCK_BYTES: Final = 512  # the unit of st_blocks, whatever the file system's own blocks are


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command, which may hold spaces and brackets: state, ppid, ..."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _parent(pid: int) -> int | None:
    try:
        return int(_stat_fields(pid)[1])
    except (FileNotFoundError, ProcessLookupError):  # it ended while the list was read
        return None


def children(pid: int) -> list[int]:
    """The processes that `pid` has started and that still run."""
    everybody = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return sorted(other for other in everybody if _parent(other) == pid)


def cpu_s(pids: Iterable[int]) -> float:
    """Processor seconds used so far, user and system, all together."""
    ticks = sum(int(field) for pid in pids for field in _stat_fields(pid)[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_ns(pids: Iterable[int]) -> int:
    """The same in nanoseconds, which the kernel keeps for each process. Raises OSError when one has ended."""
    return sum(time.clock_gettime_ns(~pid << 3 | _CPU_CLOCK) for pid in pids)


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    entries = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return {
        os.fsdecode(name): os.fsdecode(value)
        for name, mark, value in (each.partition(b"=") for each in entries)
        if mark
    }


def anonymous_bytes(pid: int) -> int:
    """Memory that is the process's own and backed by no file: heap, stacks, private copies."""
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * _KIB
    raise ValueError(f"/proc/{pid}/status has no RssAnon")


def mapped_bytes(pid: int, suffix: str) -> int:
    """Memory of the process's mappings of files whose names end so; the page cache holds it once for all."""
    total, counts = 0, False
    for line in (_PROC / str(pid) / "smaps").read_text().splitlines():
        key, _, value = line.partition(":")
        if " " in key:  # a mapping begins: its addresses, its rights and the name of its file
            counts = line.endswith(suffix)
        elif counts and key == "Rss":
            total += int(value.split()[0]) * _KIB
    return total


def descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return sum(1 for _ in (_PROC / str(pid) / "fd").iterdir())


def threads(pid: int) -> int:
    return sum(1 for _ in (_PROC / str(pid) / "task").iterdir())


def memfd_bytes(pids: Iterable[int]) -> int:
    """Memory of all memfds that the processes hold a descriptor of, each counted once however many hold it."""
    allocated: dict[int, int] = {}
    for pid in pids:
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            try:
                if str(descriptor.readlink()).startswith("/memfd:"):
                    facts = descriptor.stat()
                    allocated[facts.st_ino] = facts.st_blocks * _BLOCK_BYTES
            except FileNotFoundError:  # closed while the list was read
                continue
    return sum(allocated.values())
