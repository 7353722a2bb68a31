"""Accelerate and the Trainer of transformers treat a loader as one of their own, or are refused in words."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from loader_process import python_of
from support.daemon_process import DaemonProcess, write_images
from support.example_daemons import serving
from support.trainer_recipes import FOLDER, PYTHON, build_environment, list_epochs, train

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(600)]  # it may have to install the libraries

PROGRAM: Final = Path(__file__).with_name("hugging_face_program.py")
TORCHRUN: Final = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
Found = dict[str, Any]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    python_of("trainers")  # installs the libraries if they are not there
    place = tmp_path_factory.mktemp("d")
    write_images(place / "photos", {"birch": 50, "oak": 50}, size=(40, 40))
    with serving(FOLDER, place) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def found(daemon: DaemonProcess, tmp_path_factory: pytest.TempPathFactory) -> Found:
    done = subprocess.run(
        [PYTHON, PROGRAM, tmp_path_factory.mktemp("runs")],
        env=build_environment(daemon.endpoint),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts: Found = json.loads(done.stdout.splitlines()[-1])
    return facts


def test_an_accumulation_of_gradients_ends_with_the_epoch_as_with_a_data_loader(found: Found) -> None:
    assert found["accumulation"] == {"all equal": True, "updates": [3, 7, 10, 14, 18, 21]}


def test_gathered_results_have_each_row_of_a_short_last_step_once(found: Found) -> None:
    gathered = found["gathered_rows"]
    assert sum(gathered["rows"]) == gathered["samples"]
    assert not gathered["left"]


def test_skipping_steps_of_a_restored_loader_reads_none_twice_and_of_another_is_refused(found: Found) -> None:
    is_rest, too_few, unrestored = found["skipping"]
    assert is_rest
    assert "fewer steps were skipped than the restored loader has handed out" in too_few
    assert "loader.load_state_dict(state)" in unrestored


def test_a_trainer_evaluates_the_mean_over_all_samples_each_time(found: Found) -> None:
    are_means, other_batches = found["evaluation"]
    assert are_means == [True, True]
    assert "write  per_device_eval_batch_size=8  in its arguments" in other_batches


def test_a_trainer_goes_on_within_an_epoch_and_within_its_last_accumulation(found: Found) -> None:
    assert found["trainer_resumes"] == {
        "updates": [[0, 4], [0, 8], [1, 0], [1, 4], [1, 8], [2, 0]],
        "equal": {"2": True, "3": True, "4": True, "5": True},
    }


def test_a_trainer_does_not_resume_where_its_position_in_the_data_is_unknown(found: Found) -> None:
    without, unknown = found["trainer_without_callback"]
    assert without.startswith("NoSkippingError")
    assert "callbacks=[StreamCallback()]" in without
    assert "the checkpoint of step 4 has no position in the data" in unknown


def test_a_trainer_does_not_resume_at_another_step_than_the_data(found: Found) -> None:
    other_accumulation, ignoring = found["trainer_with_other_steps"]
    assert "would go on after step 6 of an epoch of 11, and the checkpoint is after step 8" in other_accumulation
    assert "leave it out" in ignoring


def test_two_processes_of_accelerate_share_each_epoch(daemon: DaemonProcess, tmp_path: Path) -> None:
    train("accelerate_loop.py", daemon.endpoint, tmp_path / "run", python=TORCHRUN)

    assert [line.split(": ")[1] for line in list_epochs(tmp_path / "run")] == [
        "one epoch, 11 batches in 2 receipts"
    ] * 3
