"""A training that can be killed at any step and resumed: its stream, its model and its history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.frameworks import keras as ours
from streamd.frameworks.keras import fit_data, load_keras
from support.stream_fake import ANGLE, FakeStream, make_spec

SAMPLES = 50  # 13 batches of four, the last of two
STEPS = 13
EPOCHS = 3


class KilledError(Exception):
    """Stands for a kill: nothing of the program runs any more."""


def make_stream() -> FakeStream:
    return FakeStream(make_spec(ANGLE, samples=SAMPLES, batches=STEPS))


def make_model(
    seed: int = 1, steps_per_execution: int = 1, width: int = 2, rate: Any = 0.001, *, whole: bool = False
) -> Any:
    """It draws at random in every step; `whole` draws in two layers and counts what it saw, but is slow to begin."""
    keras = load_keras()
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    more = [layers.RandomFlip("horizontal"), layers.BatchNormalization()] if whole else []
    last = [layers.Flatten(), layers.Dense(width), layers.Dropout(0.5), layers.Dense(1)]
    model = keras.Sequential([layers.Rescaling(1 / 50), *more, *last])
    model.compile(keras.optimizers.Adam(rate), "mse", metrics=["mae"], steps_per_execution=steps_per_execution)
    return model


def killed_at(step: int) -> Any:
    """Ends the program when so many steps are finished and the next one begins."""
    left = iter(range(step))

    def count(*_: Any, **__: Any) -> None:
        if next(left, None) is None:
            raise KilledError

    return load_keras().callbacks.LambdaCallback(on_train_batch_begin=count)


def values(model: Any) -> list[npt.NDArray[Any]]:
    """Of every variable there is."""
    return [each.numpy() for each in (*model.variables, *model.optimizer.variables)]


def same_bits(one: list[npt.NDArray[Any]], other: list[npt.NDArray[Any]]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a.dtype == b.dtype and a.tobytes() == np.ascontiguousarray(b).tobytes() for a, b in pairs)


def train(
    directory: Path | None,
    *callbacks: Any,
    every: Any = "epoch",
    epochs: int = EPOCHS,
    steps: int | None = None,
    validated: bool = False,
    **changes: Any,
) -> tuple[Any, Any, FakeStream]:
    """One process's part of a training: the model, its history, and the stream."""
    model, stream = make_model(**changes), make_stream()
    data = fit_data(stream, steps=steps)
    resume = [ours.ResumeCallback(data, directory, every)] if directory else []
    validation = fit_data(FakeStream(make_spec(ANGLE, name="validation"))) if validated else None
    history = model.fit(data, epochs=epochs, verbose=0, validation_data=validation, callbacks=[*resume, *callbacks])
    return model, history.history, stream
