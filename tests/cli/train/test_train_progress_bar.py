"""The wait for data in Keras's progress bar."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamd.frameworks.keras import load_keras

pytestmark = pytest.mark.train


class Clock:
    """A time that passes when a batch is waited for, and when it is trained on."""

    def __init__(self) -> None:
        self.now_s, self.wait_s = 100.0, 7.0

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.wait_s += seconds

    def train(self, seconds: float) -> None:
        self.now_s += seconds


def test_the_bar_shows_the_share_of_the_epoch_that_was_waited_for_and_the_history_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keras = load_keras()
    from streamd.cli.train import progress_bar  # noqa: PLC0415 - imports Keras

    clock = Clock()
    monkeypatch.setattr(progress_bar, "time", SimpleNamespace(monotonic=clock.monotonic))
    passing = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda *_, **__: clock.wait(0.5),
        on_train_batch_end=lambda *_, **__: clock.train(9.5),
        on_epoch_begin=lambda epoch, _: clock.train(1000 * epoch),  # a validation, for which nobody waits here
    )
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data: Any = np.zeros((4, 1)), np.zeros((4, 1))
    done = model.fit(*data, batch_size=1, epochs=2, callbacks=[passing, progress_bar.WaitBar(clock)])
    shown = capsys.readouterr().out
    assert len(re.findall(r"loss: \S+ - wait: 5% *\n", shown)) == 2
    assert set(re.findall(r"wait: (\d+%)", shown)) == {"5%"}
    assert list(done.history) == ["loss"]


def test_a_share_is_formatted_as_keras_formats_a_number() -> None:
    load_keras()
    from streamd.cli.train.progress_bar import WaitFraction  # noqa: PLC0415 - imports Keras

    assert f"{WaitFraction(0.031) / 1:.4f} {WaitFraction(0):.4e} {abs(WaitFraction(0.5)) > 0.1}" == "3% 0% True"
