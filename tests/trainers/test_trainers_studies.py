"""Many trainings on one daemon, and what a tracker keeps of one: Optuna, Ray Train and MLflow by their recipes."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from loader_process import python_of
from support.daemon_process import DaemonProcess, wait_until, write_images
from support.example_daemons import serving
from support.trainer_recipes import FOLDER, STREAMD, list_epochs, train

import streamd

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(600)]  # it may have to install the libraries

WHOLE: Final = [f"train epoch {epoch}: one epoch, 11 batches in 1 receipt" for epoch in range(3)]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    python_of("trainers")  # installs the libraries if they are not there
    place = tmp_path_factory.mktemp("d")
    write_images(place / "photos", {"birch": 50, "oak": 50}, size=(40, 40))
    with serving(FOLDER, place) as daemon:
        yield daemon


def test_a_study_that_was_killed_ends_with_all_its_trials_and_leaves_no_stream_open(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train("optuna_study.py", daemon.endpoint, run, batches=60)  # of 42 a trial, which come two at a time
    train("optuna_study.py", daemon.endpoint, run)

    # Each line of Optuna's log is an operation; those of code 6 set a trial's state: 1 done, 2 pruned, 3 failed.
    operations = [json.loads(line) for line in (run / "study.log").read_text(encoding="utf-8").splitlines()]
    states = {each["trial_id"]: each["state"] for each in operations if each["op_code"] == 6}
    ended = Counter(states.values())
    assert ended[1] + ended[2] == 6
    for trial in (trial for trial, state in states.items() if state == 1):
        assert list_epochs(run / str(trial)) == WHOLE
    wait_until(lambda: not list_sessions(daemon), "all streams are closed")


def list_sessions(daemon: DaemonProcess) -> list[object]:
    command: list[str | Path] = [STREAMD, "status", "--json", "--endpoint", daemon.endpoint]
    sessions: list[object] = json.loads(subprocess.check_output(command))["sessions"]
    return sessions


def test_a_tracker_has_the_names_of_the_worst_samples_and_receipts_that_add_up(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    train("mlflow_tracking.py", daemon.endpoint, tmp_path / "run")

    [kept] = (tmp_path / "run" / "artifacts").glob("*/artifacts")
    assert list_epochs(kept) == WHOLE
    with streamd.connect(daemon.endpoint) as client:
        validation = client.streams()["validation"]
        names = set(client.names("validation", range(validation.samples)))
    for epoch in range(3):
        losses = json.loads((kept / f"worst-{epoch}.json").read_text(encoding="utf-8"))
        assert set(losses) <= names
        assert len(losses) == 5
        assert list(losses.values()) == sorted(losses.values())


def test_workers_of_ray_share_each_epoch(
    daemon: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", short_folder := tempfile.mkdtemp(prefix="ray"))  # Ray's sockets lie there
    try:
        train("ray_train.py", daemon.endpoint, tmp_path / "run")
    finally:
        shutil.rmtree(short_folder, ignore_errors=True)

    assert [line.split(": ")[1] for line in list_epochs(tmp_path / "run")] == [
        "one epoch, 11 batches in 2 receipts"
    ] * 3
    assert (tmp_path / "run" / "weights.pt").exists()
