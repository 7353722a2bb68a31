"""A training that Ctrl-C ends: the saved model, the message, and where the same command resumes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.stream_fake import ANGLE, FakeClient, make_spec
from support.transform_programs import forgotten

from streamd.cli.terminal import StopSignals
from streamd.cli.train.run import TrainingOptions, train_model
from streamd.core.receipt import Receipt
from streamd.decode.inference import read_spec, spec_file_path
from streamd.frameworks.keras import load_keras

KERAS_SAVES = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"  # Keras 3.15, NumPy 2
pytestmark = [pytest.mark.train, pytest.mark.filterwarnings(KERAS_SAVES)]

TRAIN = make_spec(ANGLE)  # three steps an epoch
VALIDATION = make_spec(ANGLE, name="validation", shuffle="none")
SIGNALLING = """
import signal
import keras

class Signalling(keras.callbacks.Callback):
    place = None
    def on_epoch_begin(self, epoch, logs=None):
        type(self).place = epoch
        self.signal_at("begin")
    def on_train_batch_end(self, batch, logs=None):
        self.signal_at(batch)
    def on_test_batch_end(self, batch, logs=None):
        self.signal_at("test")
    def signal_at(self, what):
        if (self.place, what) == {moment}:
            signal.raise_signal(signal.SIGINT)
"""

Train = Callable[..., list[Receipt]]


@pytest.fixture
def job(tmp_path: Path) -> TrainingOptions:
    return TrainingOptions("train", 3, tmp_path / "pets.keras", seed=1, command_line="streamd-train --epochs 3")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> Train:
    """Trains, with a Ctrl-C at `moment`: an epoch, and in it "begin", "test", or the step at its end."""
    monkeypatch.chdir(tmp_path)

    def run(job: TrainingOptions, moment: object = None) -> list[Receipt]:
        Path("signalling.py").write_text(SIGNALLING.format(moment=moment))
        with forgotten(tmp_path), StopSignals() as stop:
            named = replace(job, callbacks=("signalling:Signalling",))
            receipts = train_model(FakeClient([TRAIN, VALIDATION]), named, said.append, stop)
            assert stop.number == (signal.SIGINT if moment else None)
        return receipts

    return run


def list_files(job: TrainingOptions) -> set[str]:
    return {path.name for path in job.save.parent.glob("*pets*")}


def test_an_interrupted_model_is_saved_under_another_name_and_reported(
    job: TrainingOptions, train: Train, said: list[str]
) -> None:
    receipts = train(job, (1, 1))
    assert [(each.epoch, each.steps, each.complete, each.ok) for each in receipts] == [
        (0, 3, True, True),
        (1, 2, False, True),
    ]
    assert list_files(job) == {
        "pets.interrupted.keras",
        "pets.interrupted.curves.png",
        "pets.interrupted.streamd.json",
    }
    assert said[:2] == ["", "Ctrl-C stopped the training in epoch 2 of 3, after step 2 of 3"]
    assert said[2].startswith("after 1 epoch: loss ")
    assert said[-3:] == [
        f"to use the model, or train it further:  keras.models.load_model({str(job.interrupted_save)!r})",
        "this training run cannot continue where it stopped; a run that is started with  --resume DIR  can:",
        f"  streamd-train --epochs 3 --resume {job.save.with_suffix('.resume')}",
    ]
    assert load_keras().models.load_model(job.interrupted_save).optimizer.iterations == 5
    assert read_spec(spec_file_path(job.interrupted_save)) == TRAIN


def test_a_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(
    job: TrainingOptions, train: Train, said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(job)
    weights = load_keras().models.load_model(job.save).get_weights()
    resumed = replace(job, resume=tmp_path / "states")
    train(resumed, (1, 1))
    assert said[-2:] == [
        "to continue, run the same command again; it continues in epoch 2 of 3, after step 2:",
        "  streamd-train --epochs 3",
    ]
    train(resumed, (2, 0))
    assert "Ctrl-C stopped the training in epoch 3 of 3, after step 1 of 3" in said
    assert [(each.epoch, each.steps) for each in train(resumed)] == [(2, 3)]
    for one, other in zip(load_keras().models.load_model(job.save).get_weights(), weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert "cannot be kept" not in capsys.readouterr().err


def test_an_epoch_interrupted_in_its_validation_is_trained_again(
    job: TrainingOptions, train: Train, said: list[str], tmp_path: Path
) -> None:
    resumed = replace(job, validation="validation", resume=tmp_path / "states")
    train(resumed, (1, "test"))
    assert "Ctrl-C stopped the training during the validation of epoch 2 of 3" in said
    assert said[-2] == "to continue, run the same command again; it continues with epoch 2 of 3:"
    assert (job.interrupted_save).exists()


def test_an_epoch_interrupted_after_its_last_step_is_complete(
    job: TrainingOptions, train: Train, said: list[str], tmp_path: Path
) -> None:
    train(replace(job, resume=tmp_path / "states"), (1, 2))
    assert "Ctrl-C stopped the training after epoch 2 of 3" in said
    assert said[-2] == "to continue, run the same command again; it continues with epoch 3 of 3:"


def test_a_training_interrupted_after_its_end_is_saved_under_its_name(job: TrainingOptions, train: Train) -> None:
    assert [each.complete for each in train(job, (2, 2))] == [True] * 3
    assert list_files(job) == {"pets.keras", "pets.curves.png", "pets.streamd.json"}


def test_nothing_is_saved_before_the_first_step(
    job: TrainingOptions, train: Train, said: list[str], tmp_path: Path
) -> None:
    assert train(replace(job, resume=tmp_path / "states"), (0, "begin")) == []
    assert list_files(job) == set()
    assert said == [
        "",
        "Ctrl-C stopped the training before its first step",
        "no model was saved: it has learned nothing yet",
        "to continue, run the same command again; it begins with epoch 1, since no state was saved yet:",
        "  streamd-train --epochs 3",
    ]
