"""The programs for Keras, KerasTuner, tf.distribute and JAX do what docs/trainers.md says of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from loader_process import python_of
from support.daemon_process import DaemonProcess, write_images
from support.example_daemons import serving
from support.trainer_recipes import FOLDER, PYTHON, list_epochs, train, train_through_kills

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(600)]  # it may have to install the libraries

STEPS: Final = 11  # of 8, the last of 2
EPOCHS: Final = 3
WHOLE: Final = [f"train epoch {epoch}: one epoch, {STEPS} batches in 1 receipt" for epoch in range(EPOCHS)]
TENSORFLOW: Final = Path(sys.executable)  # TensorFlow is in the environment of the tests


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Serves 82 pictures as `train` in 11 steps, and 19 as `validation`."""
    python_of("trainers")  # installs the libraries if they are not there
    place = tmp_path_factory.mktemp("d")
    write_images(place / "photos", {"birch": 51, "oak": 50}, size=(40, 40))
    with serving(FOLDER, place) as daemon:
        yield daemon


@pytest.mark.parametrize(
    ("program", "python", "weights", "kills", "batches"),
    [
        ("keras_loop.py", TENSORFLOW, "model.weights.h5", 2, STEPS),
        ("jax_flax.py", PYTHON, "weights.msgpack", 2, STEPS),
        ("kerastuner_search.py", PYTHON, "model.weights.h5", 1, 2 * EPOCHS * STEPS),
    ],
)
def test_a_training_that_is_killed_ends_with_the_weights_of_one_that_is_not(
    program: str, python: Path, weights: str, kills: int, batches: int, daemon: DaemonProcess, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(program, daemon.endpoint, whole, python=[python])
    train_through_kills(program, daemon.endpoint, killed, python=[python], kills=kills, batches=batches, seed=1)

    assert (killed / weights).read_bytes() == (whole / weights).read_bytes()
    folders = [path.parent for run in (whole, killed) for path in run.rglob("receipts-0.jsonl")]
    assert [list_epochs(folder) for folder in folders] == [WHOLE] * len(folders)
    assert len(folders) == (4 if program == "kerastuner_search.py" else 2)  # a folder for each trial


def test_replicas_train_on_each_sample_once_an_epoch(daemon: DaemonProcess, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train("tf_distribute.py", daemon.endpoint, run, python=[TENSORFLOW])

    assert list_epochs(run) == WHOLE
    receipts = [json.loads(line) for line in (run / "receipts-0.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [each["samples"] for each in receipts] == [82] * EPOCHS
    assert (run / "model.weights.h5").stat().st_size
