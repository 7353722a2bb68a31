"""What the kernel says about this process."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import processes
import pytest

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


def test_processor_time_is_that_of_the_kernels_clock_of_each_process() -> None:
    before_ns, own_before_ns = processes.cpu_ns([os.getpid()]), time.process_time_ns()
    sum(range(1_000_000))
    spent_ns, own_ns = processes.cpu_ns([os.getpid()]) - before_ns, time.process_time_ns() - own_before_ns
    assert spent_ns > 0
    assert spent_ns == pytest.approx(own_ns, abs=5_000_000)
    with pytest.raises(OSError, match="Invalid argument"):
        processes.cpu_ns([ended_pid()])


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_process_is_known_by_the_environment_that_it_was_started_with() -> None:
    program = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], env={"A": "b=c"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes.environment_of(process.pid)["A"] == "b=c"
        process.kill()
