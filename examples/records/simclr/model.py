"""SimCLR: two views of one photo are to be close to each other, and far from those of all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import layers, ops

EPOCHS = 80
TEMPERATURE = 0.2


def compute_nt_xent(points: Any) -> Any:
    """Returns the normalised cross entropy of views (2 B, D), where views n and B + n are of one photo."""
    points = ops.normalize(points, axis=-1)
    count = ops.shape(points)[0]
    alike = ops.matmul(points, ops.transpose(points)) / TEMPERATURE - 1e9 * ops.eye(count)
    partners = (ops.arange(count) + count // 2) % count
    return ops.mean(ops.sparse_categorical_crossentropy(partners, alike, from_logits=True))


class SimCLR(keras.Model):  # type: ignore[misc]  # Keras has no types
    """Takes pairs (B, 2, H, W, 3), and has no targets. What it learns is in `encoder`, (B, H, W, 3) to (B, 48)."""

    def __init__(self) -> None:
        super().__init__()
        # Each trainer draws these for itself; streamd has drawn the crops, which all trainers share.
        self.augment = keras.Sequential(
            [layers.RandomFlip(), layers.RandomHue(1.0, value_range=(0, 255)), layers.RandomGrayscale(0.5)]
        )
        steps: list[keras.Layer] = [layers.Rescaling(1 / 127.5, -1)]
        for channels in (16, 32, 48):
            steps += [layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False)]
            steps += [layers.BatchNormalization(momentum=0.9), layers.ReLU()]
        self.encoder = keras.Sequential([*steps, layers.GlobalAveragePooling2D()])
        self.head = keras.Sequential([layers.Dense(48, activation="relu"), layers.Dense(24)])
        self.compile(keras.optimizers.Adam(0.003))

    def call(self, pairs: Any, training: bool = False) -> Any:
        """Returns the points of all first views, then those of all second ones, (2 B, 24)."""
        views = ops.cast(ops.concatenate([pairs[:, 0], pairs[:, 1]]), "float32")
        points = self.head(self.encoder(self.augment(views, training=training), training=training))
        self.add_loss(compute_nt_xent(points))
        return points


def judge(encoder: keras.Model, batches: Iterable[tuple[Any, Any]]) -> float:
    """Returns the share of photos whose nearest other photo, as the encoder sees them, is of the same class."""
    seen = [(encoder.predict_on_batch(photos), np.asarray(labels)) for photos, labels in batches]
    points, labels = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    alike = points @ points.T
    np.fill_diagonal(alike, -1)
    return float((labels[alike.argmax(axis=1)] == labels).mean())
