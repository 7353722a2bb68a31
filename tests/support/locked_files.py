"""Waits until a process waits for the lock of a file."""

from __future__ import annotations

from pathlib import Path

from support.daemon_process import wait_until


def until_waited_for(path: Path) -> None:
    """Returns when a process or thread waits for the lock of a file."""

    def is_waited_for() -> bool:
        waiting = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
        return path.exists() and any(line[6].endswith(f":{path.stat().st_ino}") for line in waiting)

    wait_until(is_waited_for, f"somebody waits for the lock of {path.name}")
