"""What the kernel says about this process."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

import processes

PAGES: Final = 16


def test_only_pages_that_were_touched_of_files_of_that_name_count_as_mapped(tmp_path: Path) -> None:
    for name in ("one.touched", "two.other"):
        (tmp_path / name).write_bytes(bytes(PAGES * mmap.PAGESIZE))
    with (
        (tmp_path / "one.touched").open("rb") as one,
        (tmp_path / "two.other").open("rb") as two,
        mmap.mmap(one.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        mmap.mmap(two.fileno(), 0, prot=mmap.PROT_READ) as other,
    ):
        assert processes.mapped_bytes(os.getpid(), ".touched") == 0
        assert len(bytes(mapped)) == len(bytes(other))
        assert processes.mapped_bytes(os.getpid(), ".touched") == PAGES * mmap.PAGESIZE
    assert processes.mapped_bytes(os.getpid(), ".touched") == 0
