"""Made-up batches for tests that show them: no daemon, any shape, any label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.client import Batch
from streamd.core.sampler import BadRow, Ids
from streamd.core.spec import ImageSpec, LabelSpec
from support.sample_specs import some_spec

CLASS = LabelSpec("label", "category", classes=("cat", "Zoë"), counts=(60, 43))


def some_batch(
    images: npt.NDArray[np.uint8],
    labels: Sequence[tuple[LabelSpec, Any]] = (),
    *,
    without: Sequence[int] = (),
    bad: Sequence[BadRow] = (),
) -> Batch:
    """Batch 0:12 of stream `train`, its sample ids counting from 100; rows `without` a sample have weight 0.

    `labels` are specifications with the values of all rows; without any, rows are cats and Zoës in turn.
    """
    rows = len(images)
    weights, ids = np.ones(rows, dtype=np.float32), np.arange(100, 100 + rows)
    weights[list(without)], ids[list(without)] = 0, -1
    given = [(label, np.asarray(values)) for label, values in labels] or [(CLASS, np.arange(rows) % 2)]
    height, width, channels = images.shape[1:]
    spec = some_spec(
        labels={label.name: label for label, _ in given}, images={"image": ImageSpec(height, width, channels)}
    )
    named = {label.name: values for label, values in given}
    return Batch({"image": images}, named, weights, ids, tuple(bad), 0, 12, lambda: "", spec)


def some_masked_batch(rows: int, height: int, width: int, views: int = 0) -> Batch:
    """Grey photos with masks of the same geometry: class 0 above, below it 1 and 2, and a left column without any.

    With `views` both have an axis of views before the height.
    """
    masks = np.zeros((rows, height, width), np.uint8)
    masks[:, height // 2 :, : width // 2] = 1
    masks[:, height // 2 :, width // 2 :] = 2
    masks[:, :, 0] = 255
    photos = flat(rows, height, width, colour=100)
    images = {
        "photo": ImageSpec(height, width, 3),
        "mask": ImageSpec(height, width, 1, mode="index", like="photo", fill=255),
    }
    if views:
        masks, photos = (np.repeat(each[:, np.newaxis], views, axis=1) for each in (masks, photos))
    spec, ids = some_spec(labels={}, images=images), np.arange(100, 100 + rows)
    return Batch({"photo": photos, "mask": masks}, {}, np.ones(rows, np.float32), ids, (), 0, 12, lambda: "", spec)


def flat(rows: int, height: int = 6, width: int = 8, channels: int = 3, colour: int = 128) -> npt.NDArray[np.uint8]:
    """Images of one colour."""
    return np.full((rows, height, width, channels), colour, dtype=np.uint8)


def noise(rows: int, height: int, width: int, channels: int = 3) -> npt.NDArray[np.uint8]:
    """Images that cannot be compressed."""
    return np.random.default_rng(0).integers(0, 256, (rows, height, width, channels), dtype=np.uint8)


def joined(batches: Iterable[Ids]) -> tuple[Ids, Ids]:
    """The ids of batches, one after the other, and the rows of each, as `expected_digest` takes them."""
    listed = list(batches)
    return np.concatenate(listed), np.array([each.size for each in listed], dtype=np.int64)
