"""Requests rows from the disk before they are gathered.

A mapped row that is not in memory is read when it is first touched: one row at a time, with much of the file around it.
Cold rows of 49,152 bytes came at 1,100 a second that way, and at 15,000 when they were requested a task or more ahead.
Rows in memory gain nothing, and requesting them costs up to a fifth of the time it takes to gather them. So requests
stop after many groups that took no time. They resume when a page had to come from a disk after all.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from typing import Final

_QUICK_ASK_S: Final = 5e-6  # a row in memory takes a fifth of this; queueing one for a disk takes three times as long
_QUICK_BYTE_S: Final = 0.02e-9
_QUIET_GROUPS: Final = 64  # a cold row that was not requested costs 1 ms; requesting a warm group costs 30 us


class RowPrefetcher:
    """Learns whether rows of `row_bytes` come from memory, and requests them from the disk where they do not."""

    def __init__(self, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._quick_s = _QUICK_ASK_S + row_bytes * _QUICK_BYTE_S
        self._faults = 0
        self._quiet_groups = 0

    @property
    def is_worthwhile(self) -> bool:
        """Whether the next rows should be requested."""
        return self._quiet_groups < _QUIET_GROUPS

    def prefetch_rows(self, rows: Iterable[tuple[int, int]]) -> None:
        """Requests rows, each given as a descriptor and an offset in bytes, without waiting for them."""
        started_s, count = time.monotonic(), 0
        for descriptor, offset in rows:
            os.posix_fadvise(descriptor, offset, self._row_bytes, os.POSIX_FADV_WILLNEED)
            count += 1
        # The time of the calls themselves shows where the rows were: queueing a read takes longer than finding a page
        # in memory.
        self._quiet_groups += 1
        if time.monotonic() - started_s > count * self._quick_s:
            self._quiet_groups = 0

    def record_page_faults(self) -> None:
        """Records whether the group that the calling thread has just gathered had to wait for a disk."""
        # The count is the thread's own, so that faults of a reading or publishing thread do not count. All groups of
        # one store must be gathered by the same thread.
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        if faults != self._faults:
            self._faults, self._quiet_groups = faults, 0
