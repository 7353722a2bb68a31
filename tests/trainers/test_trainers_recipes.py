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
from support.trainer_recipes import FOLDER, PYTHON, list_epochs, train, train_through_kills

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(600)]  # it may have to install the libraries

STEPS: Final = 11  # of 8, the last of 2
EPOCHS: Final = 3
PAGE: Final = EXAMPLES.parent / "docs" / "trainers.md"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Serves 82 pictures as `train` in 11 steps, and 19 as `validation`."""
    python_of("trainers")  # installs the libraries if they are not there
    place = tmp_path_factory.mktemp("d")
    write_images(place / "photos", {"birch": 51, "oak": 50}, size=(40, 40))
    with serving(FOLDER, place) as daemon:
        yield daemon


def test_each_program_stands_in_the_page_as_it_is() -> None:
    shown = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)

    assert {path.name for path in FOLDER.glob("*.py") if path.read_text(encoding="utf-8") not in shown} == set()


def is_whole(run: Path) -> bool:
    """Whether the receipts of all ranks have each batch of each epoch once."""
    epochs = [line.partition(f": one epoch, {STEPS} batches in ") for line in list_epochs(run)]
    return [(begin, bool(found)) for begin, found, _ in epochs] == [(f"train epoch {n}", True) for n in range(EPOCHS)]


TORCHRUN: Final = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
RESUMING: Final[dict[str, tuple[object, ...]]] = {
    "torch_loop.py": (PYTHON,),
    "hf_trainer.py": (PYTHON,),
    "accelerate_loop.py": (PYTHON,),
    "lightning_module.py": (PYTHON,),
    "ignite_engine.py": (PYTHON,),
    "ddp_torchrun.py": TORCHRUN,
}


@pytest.mark.parametrize("program", RESUMING)
def test_a_training_that_is_killed_ends_with_the_weights_of_one_that_is_not(
    program: str, daemon: DaemonProcess, tmp_path: Path
) -> None:
    whole, killed, python = tmp_path / "whole", tmp_path / "killed", RESUMING[program]
    train(program, daemon.endpoint, whole, python=python)
    train_through_kills(program, daemon.endpoint, killed, python=python, kills=2, batches=STEPS, seed=1)

    assert (killed / "weights.pt").read_bytes() == (whole / "weights.pt").read_bytes()
    assert [is_whole(whole), is_whole(killed)] == [True, True]


def test_ranks_that_are_spawned_train_as_those_of_torchrun_do(daemon: DaemonProcess, tmp_path: Path) -> None:
    train("ddp_spawn.py", daemon.endpoint, tmp_path / "spawn")
    train("ddp_torchrun.py", daemon.endpoint, tmp_path / "torchrun", python=TORCHRUN)

    weights = [(tmp_path / run / "weights.pt").read_bytes() for run in ("spawn", "torchrun")]
    assert weights[0] == weights[1]
    assert is_whole(tmp_path / "spawn")
