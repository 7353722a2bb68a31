"""Softmax regression in NumPy: a model so small that the programs beside it show what is around a model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamd.client import Batch
from streamd.core.spec import StreamSpec

Floats = npt.NDArray[np.float64]


class Softmax:
    """Tells classes apart by single pixels. `weights` are (pixels, classes)."""

    def __init__(self, spec: StreamSpec) -> None:
        self.weights: Floats = np.zeros((int(np.prod(spec.image_shape)), len(spec.labels["label"].classes)))

    def gradient(self, batch: Batch) -> tuple[float, Floats]:
        """The mean loss of a batch, and its gradient, which is like the weights."""
        pixels = batch.images.reshape(len(batch.images), -1) / 127.5 - 1
        scores = pixels @ self.weights
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        rows, labels = np.arange(len(chances)), batch.labels["label"]
        loss = -np.log(chances[rows, labels] + 1e-9).mean()
        chances[rows, labels] -= 1
        return float(loss), pixels.T @ chances / len(chances)
