"""A Keras model that records the samples it was given, by their pixels, in the compiled steps of any backend."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from streamd.frameworks.keras import load_keras
from support.stream_fake import FakeStream

_ROOM = 400  # samples that can be written down


@cache
def _writer_type() -> type[Any]:
    keras = load_keras()
    ops = keras.ops

    class Writer(keras.layers.Layer):  # type: ignore[misc, name-defined]  # Keras has no types
        """Passes on the number of each sample. Writes n for a sample n that is trained on, -1 - n for any other."""

        def __init__(self) -> None:
            super().__init__()
            self.ids = self.add_weight(shape=(_ROOM,), dtype="int32", initializer="zeros", trainable=False)
            self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

        def call(self, images: Any, training: bool = False) -> Any:
            ids = ops.cast(ops.max(images, axis=(1, 2, 3)), "int32")
            rows = ops.shape(ids)[0]
            places = ops.expand_dims(self.count + ops.arange(rows, dtype="int32"), 1)
            self.ids.assign(ops.scatter_update(self.ids, places, ids if training else -1 - ids))
            self.count.assign(self.count + ops.cast(rows, "int32"))
            return ops.expand_dims(ops.cast(ids, "float32"), 1)

        def compute_output_shape(self, shape: tuple[int, ...]) -> tuple[int, int]:
            return shape[0], 1

    return Writer


class Recorder:
    """A model with a weight that is not changed, and what it was given so far. `compiling` goes to `compile`."""

    def __init__(self, head: Any = None, **compiling: Any) -> None:
        keras = load_keras()
        self.writer = _writer_type()()
        images = keras.Input((8, 8, 3), dtype="uint8", name="images")
        self.model = keras.Model(images, (head or keras.layers.Dense(1))(self.writer(images)))
        rate = keras.optimizers.SGD(0.0)
        self.model.compile(**{"optimizer": rate, "loss": "mse", **compiling})

    @property
    def everything(self) -> list[int]:
        count = int(np.asarray(self.writer.count.value))
        assert count <= _ROOM
        ids: list[int] = np.asarray(self.writer.ids.value)[:count].tolist()
        return ids

    @property
    def trained(self) -> list[int]:
        return [number for number in self.everything if number >= 0]

    @property
    def validated(self) -> list[int]:
        return [-1 - number for number in self.everything if number < 0]


def stop_after(batch: int, model: Any) -> Any:
    """A callback that ends `fit` after that batch of an epoch."""

    def stop(at: int, **_: object) -> None:
        model.stop_training = at >= batch

    return load_keras().callbacks.LambdaCallback(on_train_batch_end=stop)


def ids_of(stream: FakeStream, *batches: tuple[int, int]) -> list[int]:
    """The samples of the batches (epoch, index)."""
    return np.concatenate([stream.ids(*batch) for batch in batches]).tolist() if batches else []


def steps(first: int, count: int) -> list[tuple[int, int]]:
    """So many batches (epoch, index) from the step `first` of all, three an epoch."""
    return [divmod(step, 3) for step in range(first, first + count)]
