"""fit_data under tf.distribute, in a process of its own: TensorFlow divides its devices only before it uses them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

pytestmark = [pytest.mark.train, pytest.mark.timeout(120)]


def test_replicas_have_every_property_of_fit_data() -> None:
    options = f"-q --noconftest -c {os.devnull} --rootdir={ROOT} -p no:cacheprovider -o markers=train".split()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-W", "error", HERE / "replica_properties.py"],
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": f"{ROOT}:{HERE.parents[1]}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout.splitlines()[-1]
