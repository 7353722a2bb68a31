"""The programs of examples/trainers do in the libraries of their names what docs/trainers.md says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from loader_process import python_of
from support.daemon_process import DaemonProcess, write_images
from support.example_daemons import EXAMPLES, serving
from support.trainer_recipes import FOLDER, list_epochs, train, train_through_kills

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(600)]  # it may have to install the libraries

STEPS: Final = 11  # of 8, the last of 2
EPOCHS: Final = 3
PAGE: Final = EXAMPLES.parent / "docs" / "trainers.md"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Serves 82 pictures as `train` in 11 steps, and 18 as `validation`."""
    python_of("trainers")  # installs the libraries if they are not there
    place = tmp_path_factory.mktemp("d")
    write_images(place / "photos", {"birch": 50, "oak": 50}, size=(40, 40))
    with serving(FOLDER, place) as daemon:
        yield daemon


def test_each_program_stands_in_the_page_as_it_is() -> None:
    shown = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)

    assert {path.name for path in FOLDER.glob("*.py") if path.read_text(encoding="utf-8") not in shown} == set()


@pytest.mark.parametrize(("program", "kills"), [("torch_loop.py", 3), ("hf_trainer.py", 2), ("accelerate_loop.py", 2)])
def test_a_training_that_is_killed_ends_with_the_weights_of_one_that_is_not(
    program: str, kills: int, daemon: DaemonProcess, tmp_path: Path
) -> None:
    train(program, daemon.endpoint, tmp_path / "whole")
    train_through_kills(program, daemon.endpoint, tmp_path / "killed", kills=kills, batches=STEPS, seed=1)

    assert (tmp_path / "killed" / "weights.pt").read_bytes() == (tmp_path / "whole" / "weights.pt").read_bytes()
    for run in ("whole", "killed"):
        assert list_epochs(tmp_path / run) == [
            f"train epoch {epoch}: one epoch, {STEPS} batches in 1 receipt" for epoch in range(EPOCHS)
        ]
