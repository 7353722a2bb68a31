"""Runs one snippet of the migration page, and says what its model saw and how long that took.

    python benchmarks/migration_run.py SNIPPET FOLDER category|angle|torch IMAGES

The snippet finds its data in FOLDER, where it runs, and by name what a user has already: `model`, a compiled Keras
model that does next to nothing, or `step(images, labels)`. It trains for two epochs; the outcome is one line of JSON.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

SIDE: Final = 128  # pixels of an image, either way
CLASSES: Final = 10
EPOCHS: Final = 2
_MIDDLE: Final = 8  # pixels that the model looks at


@dataclass(slots=True)
class Outcome:
    """What came of a snippet: seconds to the first step and of each epoch; sums over all that the model saw.

    `levels` adds each batch's mean pixel, weighted by its images; of pixels in 0-1 or 0-255, as the snippet has them.
    """

    first_s: float = 0.0
    ends_s: list[float] = field(default_factory=list)
    images: int = 0
    labels: float = 0.0
    levels: float = 0.0

    @property
    def last_epoch_s(self) -> float:
        """Of the second epoch, when everything is in its stride."""
        return self.ends_s[-1] - self.ends_s[-2]


class Steps:
    """`step` of snippets without Keras: an epoch ends when `images` have come."""

    def __init__(self, outcome: Outcome, images: int) -> None:
        self._outcome = outcome
        self._images = images
        self._started_s = time.perf_counter()

    def __call__(self, images: Any, labels: Any) -> None:
        """Takes a batch: (B, 3, H, W) pixels and (B,) labels."""
        outcome = self._outcome
        outcome.images += len(labels)
        outcome.labels += float(labels.sum())
        outcome.levels += float(images[:, :, ::16, ::16].float().mean()) * len(labels)
        now_s = time.perf_counter() - self._started_s
        outcome.first_s = outcome.first_s or now_s
        if outcome.images % self._images == 0:
            outcome.ends_s.append(now_s)


def compiled_model(kind: str) -> Any:
    """The model that a user has: a few pixels of the middle, and one layer."""
    import keras  # noqa: PLC0415 - takes seconds, which snippets without it need not wait for

    last = keras.layers.Dense(CLASSES, activation="softmax") if kind == "category" else keras.layers.Dense(1)
    crop = keras.layers.Cropping2D((SIDE - _MIDDLE) // 2)
    layers = [keras.Input((SIDE, SIDE, 3)), crop, keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), last]
    model = keras.Sequential(layers)
    model.compile("sgd", "sparse_categorical_crossentropy" if kind == "category" else "mse", jit_compile=False)
    return model


@contextlib.contextmanager
def watched(outcome: Outcome) -> Iterator[None]:
    """Every Keras model tells what goes into it, and when."""
    import keras  # noqa: PLC0415 - as above
    import tensorflow as tf  # noqa: PLC0415 - as above

    images, labels, levels = (tf.Variable(0.0, dtype="float64") for _ in range(3))
    fit, compute_loss, started_s = keras.Model.fit, keras.Model.compute_loss, time.perf_counter()

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            del batch, logs
            outcome.first_s = outcome.first_s or time.perf_counter() - started_s

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            del epoch, logs
            outcome.ends_s.append(time.perf_counter() - started_s)

    def counting_loss(self: Any, x: Any = None, y: Any = None, *rest: Any, **named: Any) -> Any:
        count = tf.cast(tf.shape(y)[0], tf.float64)
        images.assign_add(count)
        labels.assign_add(tf.reduce_sum(tf.cast(y, tf.float64)))
        levels.assign_add(tf.reduce_mean(tf.cast(x[:, ::16, ::16], tf.float64)) * count)
        return compute_loss(self, x, y, *rest, **named)

    def clocked_fit(self: Any, *arguments: Any, **named: Any) -> Any:
        return fit(self, *arguments, callbacks=[Clock()], verbose=0, **named)

    keras.Model.fit, keras.Model.compute_loss = clocked_fit, counting_loss
    try:
        yield
    finally:
        keras.Model.fit, keras.Model.compute_loss = fit, compute_loss
    outcome.images, outcome.labels = int(images.numpy()), float(labels.numpy())
    outcome.levels = float(levels.numpy())


def run(snippet: Path, folder: Path, kind: str, images: int) -> Outcome:
    """Runs a snippet in `folder`, where there are so many `images`."""
    outcome = Outcome()
    with contextlib.chdir(folder):
        if kind == "torch":
            allow_torchvision_without_operators()
            runpy.run_path(str(snippet), {"step": Steps(outcome, images)})
        else:
            model = compiled_model(kind)
            with watched(outcome):
                runpy.run_path(str(snippet), {"model": model})
    return outcome


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    snippet, folder, kind, images = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    outcome = run(snippet, folder, kind, images)
    print(msgspec.json.encode(outcome).decode(), flush=True)


def allow_torchvision_without_operators() -> None:
    """Call it before the first import of torchvision.

    The index has torchvision built for CUDA only. Beside a torch for CPUs its compiled operators do not load, and the
    two modules that describe them to torch fail its import. Folders, and transforms of Pillow's images and of tensors,
    need none of these operators.
    """
    if version("torch").endswith("+cpu") and not version("torchvision").endswith("+cpu"):
        for name in ("torchvision._meta_registrations", "torchvision._autograd_registrations"):
            sys.modules.setdefault(name, ModuleType(name))


if __name__ == "__main__":
    main()
