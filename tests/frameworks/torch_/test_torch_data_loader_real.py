"""The loader with torch itself, which lives in the benchmarks' environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from loader_process import python_of
from PIL import Image
from support.daemon_process import Start, stream_config

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]  # it may have to install torch


def write_levels(folder: Path) -> Path:
    """Fifteen dark images and as many bright ones."""
    for name, level in (("bright", 200), ("dark", 50)):
        (folder / name).mkdir(parents=True)
        for number in range(15):
            Image.fromarray(np.full((8, 8, 3), level + number, np.uint8)).save(folder / name / f"{number:02}.png")
    return folder


def test_a_network_in_torch_learns_from_a_stream(tmp_path: Path, start_daemon: Start) -> None:
    folder = write_levels(tmp_path / "data")
    held_back = write_levels(tmp_path / "validation")
    (held_back / "dark" / "07.png").write_bytes(bytes(100))
    limits = {"bad_samples": {"max_fraction": 0.5}}
    streams = {
        "train": stream_config(folder, normalize="minus_one_one"),
        "validation": stream_config(held_back, shuffle="none", **limits),
    }
    daemon = start_daemon({"streams": streams})
    python = python_of("keras_torch")
    done = subprocess.run(
        [python, HERE / "torch_program.py", daemon.endpoint],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{HERE.parents[1]}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_two_ranks_in_step_see_each_sample_once_but_for_the_tail(tmp_path: Path, start_daemon: Start) -> None:
    """Five batches: every rank has two, and the last one is dropped."""
    daemon = start_daemon({"streams": {"train": stream_config(write_levels(tmp_path / "data"), batch_size=6)}})
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [python_of("keras_torch"), *torchrun, HERE / "ddp_program.py", daemon.endpoint, tmp_path],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{HERE.parents[1]}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    every = {*range(50, 65), *range(200, 215)}
    for epoch in range(2):
        both = [level for rank in ranks for level in rank["levels"][epoch]]
        assert len(both) == len(set(both)) == len(every) - 6
        assert set(both) < every
        assert [rank["receipts"][epoch] for rank in ranks] == [[6, True]] * 2
    assert ranks[0]["levels"][0] != ranks[0]["levels"][1]
    assert ranks[0]["weights"] == ranks[1]["weights"]
