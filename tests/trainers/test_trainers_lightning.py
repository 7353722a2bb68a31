"""Which samples Lightning's Trainer trains and validates on, whatever its arguments."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from loader_process import python_of
from support.daemon_process import Start
from support.trainer_recipes import LIMIT_S, build_environment

PROGRAM = Path(__file__).with_name("lightning_program.py")

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(600)]  # it may have to install the libraries


def test_the_arguments_of_the_trainer_mean_what_they_mean_for_other_loaders(
    tmp_path: Path, start_daemon: Start
) -> None:
    np.save(tmp_path / "images.npy", np.zeros((40, 4, 4, 3), np.uint8))
    np.save(tmp_path / "numbers.npy", np.arange(40))
    served = {
        "source": {"kind": "npy", "path": str(tmp_path / "images.npy")},
        "labels": {"number": {"from": str(tmp_path / "numbers.npy"), "type": "int"}},
        "image": {"size": "stored"},
        "batch_size": 8,
        "shuffle": {"kind": "full"},
    }
    daemon = start_daemon({"streams": {"train": served, "validation": {**served, "shuffle": {"kind": "none"}}}})
    done = subprocess.run(
        [python_of("trainers"), PROGRAM, daemon.endpoint, tmp_path],
        env=dict(build_environment(daemon.endpoint)),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changes nothing" not in done.stderr
    assert "the loader of stream 'train' belongs to this process, and can be neither pickled nor copied" in done.stderr
