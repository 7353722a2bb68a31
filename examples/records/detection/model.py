"""A small detector: each cell of a grid says whether the middle of a sign lies in it, which sign, and where it ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import layers, ops

CLASSES = 3
EPOCHS = 25
CELL = 16  # pixels
HEIGHT, WIDTH = 96, 128
ROWS, COLUMNS = HEIGHT // CELL, WIDTH // CELL
ENOUGH = 0.5  # of the area of two boxes together, which they have to have in common


def build_detector() -> keras.Model:
    """Returns a model from photos (B, 96, 128, 3) to grids (B, 6, 8, 5 + classes): score, edges, scores of classes."""
    photo = keras.Input((HEIGHT, WIDTH, 3))
    x = layers.Rescaling(1 / 255)(photo)
    for channels in (16, 24, 32, 48):
        x = layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        x = layers.ReLU()(layers.Conv2D(channels, 3, padding="same")(x))
    model = keras.Model(photo, layers.Conv2D(5 + CLASSES, 3, padding="same")(x))
    model.compile(keras.optimizers.Adam(0.003), compute_loss)
    return model


def place_boxes(boxes: Any) -> tuple[Any, Any]:
    """Returns which cells have a sign (B, 6, 8), and its edges and class (B, 6, 8, 5), for boxes (B, max, 5)."""
    middles = ops.cast((boxes[..., :2] + boxes[..., 2:4]) / 2 // CELL, "int32")
    cells = ops.one_hot(middles[..., 1] * COLUMNS + middles[..., 0], ROWS * COLUMNS, dtype="float32")
    cells *= ops.cast(boxes[..., 4:] >= 0, "float32")  # rows behind the last box are -1
    counts = ops.sum(cells, axis=1)
    values = ops.einsum("bmg,bmv->bgv", cells, boxes) / ops.maximum(counts, 1)[..., None]
    return ops.reshape(counts > 0, (-1, ROWS, COLUMNS)), ops.reshape(values, (-1, ROWS, COLUMNS, 5))


def find_cell_middles() -> Any:
    """Returns x, y, x, y of the middle of each cell, float32 (6, 8, 4)."""
    down, across = np.mgrid[0:ROWS, 0:COLUMNS] * CELL + CELL / 2
    return np.stack([across, down] * 2, axis=-1).astype(np.float32)


def compute_loss(boxes: Any, grid: Any) -> Any:
    """Returns one number for each sample: for the scores of all cells, and for edges and classes where a sign is."""
    there, values = place_boxes(boxes)
    there = ops.cast(there, "float32")
    score = ops.binary_crossentropy(there, grid[..., 0], from_logits=True) * (1 + 4 * there)
    edges = ops.abs(grid[..., 1:5] - (values[..., :4] - find_cell_middles()) / CELL)
    classes = ops.one_hot(ops.cast(values[..., 4], "int32"), CLASSES)
    kind = ops.categorical_crossentropy(classes, grid[..., 5:], from_logits=True)
    return ops.mean(score + there * (ops.sum(edges, axis=-1) + kind), axis=(1, 2))


def find_boxes(grid: Any) -> list[Any]:
    """Returns the boxes (n, 5) that a model found in each picture."""
    grid = np.asarray(grid)
    edges = grid[..., 1:5] * CELL + find_cell_middles()
    found = np.concatenate([edges, grid[..., 5:].argmax(axis=-1)[..., None]], axis=-1)
    return [each[score > 0] for each, score in zip(found, grid[..., 0], strict=True)]  # a sigmoid above 0.5


def share_area(one: Any, others: Any) -> Any:
    """Returns the area that a box has in common with others (n, 5), divided by the area of both."""
    common = np.minimum(one[2:4], others[:, 2:4]) - np.maximum(one[:2], others[:, :2])
    both = common.clip(0).prod(axis=1)
    areas = (others[:, 2:4] - others[:, :2]).clip(0).prod(axis=1)
    return both / (areas + (one[2:4] - one[:2]).clip(0).prod() - both)


def judge(model: keras.Model, batches: Iterable[tuple[Any, Any]]) -> float:
    """Returns 2 * right / (signs + found): a sign is found right by a box of its class that shares half of the area."""
    right = signs = found = 0
    for photos, boxes in batches:
        for mine, all_rows in zip(find_boxes(model.predict_on_batch(photos)), np.asarray(boxes), strict=True):
            true = all_rows[all_rows[:, 4] >= 0]
            signs, found = signs + len(true), found + len(mine)
            for box in true:
                right += bool(((share_area(box, mine) > ENOUGH) & (mine[:, 4] == box[4])).any())
    return 2 * right / max(1, signs + found)
