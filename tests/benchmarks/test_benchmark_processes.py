"""What the kernel says about processes, and what a batch costs by the clocks of a daemon, its workers and a trainer."""

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
from processes import BatchCost, Drained, run_trainer
from support.daemon_process import DaemonProcess, stream_config, write_images

import streamd

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
    looks_ns = [time.process_time_ns(), processes.cpu_ns([os.getpid()]), time.process_time_ns()]
    sum(range(1_000_000))
    looks_ns += [time.process_time_ns(), processes.cpu_ns([os.getpid()]), time.process_time_ns()]
    assert looks_ns == sorted(looks_ns)
    assert looks_ns[3] > looks_ns[2]
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


def test_a_cost_is_the_time_of_all_batches_shared_among_them() -> None:
    cost = Drained("", batches=100, daemon_ns=300_000_000, trainer_ns=50_000_000).cost
    assert cost == BatchCost(3.0, 0.5)
    assert cost.total_ms == 3.5


@pytest.mark.long
def test_a_trainer_counts_the_batches_and_the_time_of_the_epochs_that_count(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 16, "dog": 20})
    daemon = DaemonProcess(tmp_path, {"workers": 1, "streams": {"train": stream_config(folder)}}).start()
    try:
        began_ns = time.monotonic_ns()
        drained = run_trainer(daemon.endpoint, daemon.pid, epochs=3)
        took_ns = time.monotonic_ns() - began_ns
    finally:
        daemon.kill()
    assert drained.batches == 3 * 5
    assert drained.package == str(Path(streamd.__file__).parent)
    assert 0 < drained.daemon_ns < 2 * took_ns  # of the daemon and its one worker
    assert 0 < drained.trainer_ns < 2 * took_ns


@pytest.mark.long
def test_a_trainer_that_fails_ends_the_benchmark_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"processes: the trainer ended with 1:\n(.|\n)*nonsense"):
        run_trainer(f"nonsense://{tmp_path}", 1, epochs=1)
