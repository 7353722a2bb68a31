"""The loader with torch itself, which lives in the benchmarks' environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from compare_environments import python_of
from daemons import DaemonProcess, stream_config
from PIL import Image

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]  # it may have to install torch


def write_levels(folder: Path) -> Path:
    """Fifteen dark images and as many bright ones."""
    for name, level in (("bright", 200), ("dark", 50)):
        (folder / name).mkdir(parents=True)
        for number in range(15):
            Image.fromarray(np.full((8, 8, 3), level + number, np.uint8)).save(folder / name / f"{number:02}.png")
    return folder


def test_a_network_in_torch_learns_from_a_stream(tmp_path: Path, start_daemon: Callable[..., DaemonProcess]) -> None:
    folder = write_levels(tmp_path / "data")
    daemon = start_daemon({"streams": {"train": stream_config(folder, normalize="minus_one_one")}})
    python = python_of("keras_torch")
    done = subprocess.run(
        [python, HERE / "torch_program.py", daemon.endpoint],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{HERE.parent}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
