"""What a batch costs is read from the clocks of a daemon, its workers and a trainer, all of them real."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from batch_cost import BatchCost, Drained, run_trainer
from support.daemon_process import DaemonProcess, stream_config, write_images

import streamd


def test_a_cost_is_the_time_of_all_batches_shared_among_them() -> None:
    cost = Drained("", batches=100, daemon_ns=300_000_000, trainer_ns=50_000_000).cost
    assert cost == BatchCost(3.0, 0.5)
    assert cost.total_ms == 3.5


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


def test_a_trainer_that_fails_ends_the_benchmark_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"batch_cost: the trainer ended with 1:\n(.|\n)*nonsense"):
        run_trainer(f"nonsense://{tmp_path}", 1, epochs=1)
