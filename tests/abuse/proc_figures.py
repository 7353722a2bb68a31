"""What /proc says of a process: its memory, its descriptors, its processor time."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from streamd.limits import KIB

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_BLOCK_BYTES: Final = 512
_TIMES: Final = slice(11, 15)  # in /proc/PID/stat, behind the name: its own, and that of children it has waited for


def read_rss_bytes(pid: int, kind: str) -> int:
    """Returns `RssAnon` or `RssShmem` of a process; 0 if it has ended."""
    try:
        found = re.findall(rf"^{kind}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[0]) * KIB if found else 0


def read_slot_bytes(pids: Iterable[int]) -> int:
    """Returns the memory of all slots of batches that these processes have open or mapped, each counted once."""
    found = {}
    for pid in pids:
        for link in _list_open_and_mapped(pid):
            try:
                if "/memfd:streamd-" in os.readlink(link):  # noqa: PTH115 - the target is no path
                    status = link.stat()
                    found[status.st_ino] = status.st_blocks * _BLOCK_BYTES
            except FileNotFoundError:  # closed or unmapped in between
                continue
    return sum(found.values())


def _list_open_and_mapped(pid: int) -> list[Path]:
    try:
        return [*Path(f"/proc/{pid}/fd").iterdir(), *Path(f"/proc/{pid}/map_files").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def count_cpu_s(pid: int) -> float:
    """Returns the processor time of a process and of its children that have ended, 0 if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[_TIMES])) / _TICKS_PER_S


def find_children(pid: int, role: str) -> list[int]:
    """Returns the daemon's children that run a part of streamd: `gate`, which is the door too, or `worker`."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if f"streamd.{role}" in _read_command(int(child))]


def _read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""
