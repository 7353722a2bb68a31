"""Rows are prefetched while they come from a disk, and no longer once they come from memory."""

from __future__ import annotations

import os
import resource
import time
from types import SimpleNamespace

import pytest

from streamd.dataset.arrays.store import RowPrefetcher

ROW = 4096
GROUP = [(0, ROW * row) for row in range(32)]


class Disk:
    """Counts what is asked for, and takes its time over each row."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.row_s = 0.0
        self.now_s = 0.0
        self.faults: dict[int, int] = {}

    def ask(self, descriptor: int, offset: int, nbytes: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        self.asked.append((descriptor, offset, nbytes))
        self.now_s += self.row_s


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(os, "posix_fadvise", disk.ask)
    monkeypatch.setattr(time, "monotonic", lambda: disk.now_s)
    return disk


def groups_asked(rows: RowPrefetcher, most: int = 1000) -> int:
    """How many groups are asked for until nobody asks any more."""
    for count in range(most):
        if not rows.is_worthwhile:
            return count
        rows.prefetch_rows(GROUP)
    return most


def test_prefetching_advises_the_system_of_each_row(disk: Disk) -> None:
    RowPrefetcher(ROW).prefetch_rows([(7, 128), (9, 5000)])
    assert disk.asked == [(7, 128, ROW), (9, 5000, ROW)]


def test_prefetching_stops_after_64_groups_that_came_from_memory(disk: Disk) -> None:
    disk.row_s = 1e-6
    assert groups_asked(RowPrefetcher(ROW)) == 64
    assert len(disk.asked) == 64 * 32


def test_large_rows_may_take_longer_to_prefetch(disk: Disk) -> None:
    disk.row_s = 15e-6
    assert groups_asked(RowPrefetcher(1_000_000)) == 64


def test_prefetching_continues_while_rows_come_from_a_disk(disk: Disk) -> None:
    disk.row_s = 15e-6
    assert groups_asked(RowPrefetcher(ROW)) == 1000


def test_a_page_fault_from_a_disk_resumes_prefetching(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = RowPrefetcher(ROW)
    rows.record_page_faults()
    groups_asked(rows)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_majflt=disk.faults[who]))
    for asks in (True, False):  # faults are counted since the thread began
        disk.faults = {resource.RUSAGE_THREAD: 1 << 40}
        rows.record_page_faults()
        assert rows.is_worthwhile == asks
        assert groups_asked(rows) == 64 * asks
