"""Ctrl-C in a `streamd-train` of its own on a real daemon."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemon_process import DaemonProcess, Start, stream_config, wait_until, write_images

from streamd.frameworks.keras import load_keras

pytestmark = pytest.mark.train

TRAIN = [sys.executable, "-m", "streamd.cli.train.command", "--stream", "train"]


@pytest.fixture
def daemon(start_daemon: Start, tmp_path: Path) -> DaemonProcess:
    folder = write_images(tmp_path / "data", {"cat": 24, "dog": 24})
    return start_daemon({"streams": {"train": stream_config(folder)}})


class Trainer:
    """A `streamd-train` whose output is in `said`."""

    def __init__(self, daemon: DaemonProcess, folder: Path, *options: str) -> None:
        self._log = folder / "said"
        self.save = folder / "pets.keras"
        where = ["--endpoint", daemon.endpoint, "--save", str(self.save), "--receipts", str(folder / "receipts.json")]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*TRAIN, *where, *options], stdout=log, stderr=subprocess.STDOUT, cwd=folder
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def signal_at(self, line: str, number: signal.Signals = signal.SIGINT) -> None:
        wait_until(lambda: line in self.said or self.process.poll() is not None, f"it says {line!r}", 120)
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(120)


def count_said_steps(said: str) -> int:
    """Returns the steps, in epochs of three, that a training had done when it was stopped, by its own words."""
    within = re.search(r"stopped the training in epoch (\d+) of 2000, after step (\d) of 3", said)
    if within:
        return (int(within.group(1)) - 1) * 3 + int(within.group(2))
    after = re.search(r"stopped the training after epoch (\d+) of 2000", said)
    assert after, said
    return int(after.group(1)) * 3


def test_ctrl_c_saves_the_model_and_the_receipts_and_the_same_command_resumes(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    options = ["--resume", str(tmp_path / "states"), "--epochs", "2000", "--batch-size", "16"]
    trainer = Trainer(daemon, tmp_path, *options)
    trainer.signal_at("Epoch 3/")
    assert trainer.wait() == 130, trainer.said
    interrupted = tmp_path / "pets.interrupted.keras"
    *whole, last = json.loads((tmp_path / "receipts.json").read_text())
    assert all(each["complete"] and each["ok"] and each["steps"] == 3 for each in whole)
    received = len(whole) * 3 + last["steps"]
    assert last["ok"]
    trained = int(load_keras().models.load_model(interrupted).optimizer.iterations)
    # Ctrl-C may come when a batch has been received and its step has not begun. Receipts count what was received.
    assert trained in (received - 1, received)
    assert trained == count_said_steps(trainer.said)
    assert not trainer.save.exists()
    assert "stopping after the current step" in trainer.said
    epoch = re.search(r"to continue, run the same command again; it continues (?:in|with) epoch (\d+) of", trainer.said)
    assert epoch

    trainer = Trainer(daemon, tmp_path, *options)
    trainer.signal_at("Epoch ", signal.SIGTERM)
    assert trainer.wait() == 143, trainer.said
    assert f"Epoch {epoch.group(1)}/2000" in trainer.said


def test_ctrl_c_ends_a_wait_for_other_trainers_and_saves_nothing(daemon: DaemonProcess, tmp_path: Path) -> None:
    trainer = Trainer(daemon, tmp_path, "--epochs", "2", "--together", "2")
    trainer.signal_at("Epoch 1/2")
    assert trainer.wait() == 130, trainer.said
    assert "Ctrl-C stopped the training before its first step\nno model was saved" in trainer.said
    assert list(tmp_path.glob("*pets*")) == []


def test_ctrl_c_ends_a_wait_for_a_missing_daemon_and_saves_the_model(daemon: DaemonProcess, tmp_path: Path) -> None:
    trainer = Trainer(daemon, tmp_path, "--epochs", "2000")
    wait_until(lambda: "Epoch 2/" in trainer.said, "an epoch is over", 120)
    daemon.process.send_signal(signal.SIGKILL)
    trainer.signal_at("Epoch 2/")
    assert trainer.wait() == 130, trainer.said
    assert (tmp_path / "pets.interrupted.keras").exists()


def test_a_second_ctrl_c_ends_the_training_at_once_and_leaves_no_partial_model(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    trainer = Trainer(daemon, tmp_path, "--epochs", "2000")
    trainer.signal_at("Epoch 2/")
    trainer.signal_at("stopping after the current step")
    assert trainer.wait() == 130, trainer.said
    for model in tmp_path.glob("*.keras"):
        load_keras().models.load_model(model)


def test_ctrl_c_before_the_training_begins_prints_one_line(daemon: DaemonProcess, tmp_path: Path) -> None:
    (tmp_path / "slowmodel.py").write_text(
        "import threading\ndef build(spec):\n    print('building', flush=True)\n    threading.Event().wait()\n"
    )
    trainer = Trainer(daemon, tmp_path, "--epochs", "2", "--model", "slowmodel:build")
    trainer.signal_at("building")
    assert trainer.wait() == 130, trainer.said
    assert trainer.said.splitlines()[-1] == ("streamd-train: Ctrl-C came before the training began: nothing is saved")
    assert "Traceback" not in trainer.said
