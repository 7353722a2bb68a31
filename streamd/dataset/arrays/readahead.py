"""Asking a disk for rows before they are gathered.

A mapped row that is not in memory is read when it is touched, one after another, and a good deal around each: so cold
rows came at 1,100 a second, of 49,152 bytes each, and at 15,000 when asked for a task or more ahead. Rows that are in
memory gain nothing, and asking costs up to a fifth of gathering them, so after many groups that took no time nobody is
asked; a page that had to come from a disk after all brings it back.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from typing import Final

_QUICK_ASK_S: Final = 5e-6  # for a row in memory a fifth of this; to put one on a disk's list takes three times as long
_QUICK_BYTE_S: Final = 0.02e-9
_QUIET_GROUPS: Final = 64  # a cold row that was not asked for costs a millisecond, asking for a warm group 30 us


class RowPrefetcher:
    """Knows whether rows of so many bytes come from memory, and asks for them where they do not."""

    def __init__(self, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._quick_s = _QUICK_ASK_S + row_bytes * _QUICK_BYTE_S
        self._faults = 0
        self._quiet_groups = 0

    @property
    def is_worthwhile(self) -> bool:
        """Whether to ask for what is to be gathered."""
        return self._quiet_groups < _QUIET_GROUPS

    def prefetch_rows(self, rows: Iterable[tuple[int, int]]) -> None:
        """Has rows read, each a descriptor and an offset in bytes, without waiting for them."""
        started_s, count = time.monotonic(), 0
        for descriptor, offset in rows:
            os.posix_fadvise(descriptor, offset, self._row_bytes, os.POSIX_FADV_WILLNEED)
            count += 1
        self._quiet_groups += 1
        if time.monotonic() - started_s > count * self._quick_s:
            self._quiet_groups = 0

    def record_page_faults(self) -> None:
        """Learns from a group that this thread has gathered."""
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        if faults != self._faults:
            self._faults, self._quiet_groups = faults, 0
