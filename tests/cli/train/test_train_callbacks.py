"""The wait for data in Keras's progress bar, and the position of a training in words."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.stream_fake import ANGLE, FakeStream, make_spec

from streamd.frameworks.keras import fit_data, load_keras

pytestmark = pytest.mark.train


class Clock(FakeStream):
    """A time that passes when a batch is waited for, and when it is trained on."""

    def __init__(self) -> None:
        super().__init__(make_spec(), wait_s=7.0)
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.wait_s += seconds

    def train(self, seconds: float) -> None:
        self.now_s += seconds


def test_the_progress_bar_shows_the_wait_fraction_and_the_history_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keras = load_keras()
    from streamd.cli.train import callbacks  # noqa: PLC0415 - imports Keras

    clock = Clock()
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=clock.monotonic))
    passing = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda *_, **__: clock.wait(0.5),
        on_train_batch_end=lambda *_, **__: clock.train(9.5),
        on_epoch_begin=lambda epoch, _: clock.train(1000 * epoch),  # a validation, for which nobody waits here
    )
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data: Any = np.zeros((4, 1)), np.zeros((4, 1))
    done = model.fit(*data, batch_size=1, epochs=2, callbacks=[passing, callbacks.WaitBar(clock)])
    shown = capsys.readouterr().out
    assert len(re.findall(r"loss: \S+ - wait: 5% *\n", shown)) == 2
    assert set(re.findall(r"wait: (\d+%)", shown)) == {"5%"}
    assert list(done.history) == ["loss"]


def test_a_share_is_formatted_as_keras_formats_a_number() -> None:
    load_keras()
    from streamd.cli.train.callbacks import WaitFraction  # noqa: PLC0415 - imports Keras

    assert f"{WaitFraction(0.031) / 1:.4f} {WaitFraction(0):.4e} {abs(WaitFraction(0.5)) > 0.1}" == "3% 0% True"


def test_a_place_is_described_by_epoch_and_step_including_earlier_runs() -> None:
    keras = load_keras()
    from streamd.cli.train.callbacks import PlaceRecorder  # noqa: PLC0415 - imports Keras

    class Placing(keras.callbacks.Callback):  # type: ignore[misc, name-defined]  # Keras has no types
        def note(self, *_: Any, **__: Any) -> None:
            places.append(recorder.describe_place())

        on_epoch_begin = on_train_batch_end = on_test_batch_end = on_epoch_end = note

    places: list[str] = []
    data = fit_data(FakeStream(make_spec(ANGLE), index=1))
    held_out = fit_data(FakeStream(make_spec(ANGLE, samples=4, batches=1)), targets="angle")
    recorder = PlaceRecorder(data)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(data, validation_data=held_out, epochs=2, verbose=0, callbacks=[recorder, Placing()])
    assert places[:5] == [
        "after epoch 0 of 2",
        "in epoch 1 of 2, after step 2 of 3",
        "in epoch 1 of 2, after step 3 of 3",
        "during the validation of epoch 1 of 2",
        "in epoch 1 of 2, after step 3 of 3",
    ]
    assert places[5] == "after epoch 1 of 2"
    assert recorder.trained_steps == 5
    assert len(recorder.history["val_loss"]) == 2
