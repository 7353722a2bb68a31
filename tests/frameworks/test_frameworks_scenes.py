"""torch and JAX learn from pictures on the disk, several a sample: one damaged, and with weights."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from loader_process import python_of
from support.daemon_process import Start
from support.recorded_scenes import configure_scenes, write_scenes

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]  # it may have to install the framework


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_network_learns_from_several_pictures_of_a_sample(
    tmp_path: Path, start_daemon: Start, framework: str
) -> None:
    table = write_scenes(tmp_path / "scenes", damaged=True)
    bad: dict[str, Any] = {"bad_samples": {"policy": "mask", "max_fraction": 0.5}}
    streams = {
        "train": configure_scenes(table, weighted=True, **bad),
        "plain": configure_scenes(table, shuffle="none", **bad),
    }
    daemon = start_daemon({"streams": streams})
    done = subprocess.run(
        [python_of(f"keras_{framework}"), HERE / f"scenes_{framework}_program.py", daemon.endpoint],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{HERE.parent}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
