"""A batch that has the shapes and types of a stream's, and nothing in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import PAD_ID
from streamd.core.spec import LabelSpec, StreamSpec


@dataclass(frozen=True, slots=True)
class BlankBatch:
    """Black images, labels of value 0 and weights of 1: see `streamd.client.batch.Batch`. It is nowhere in a stream."""

    images: npt.NDArray[np.uint8]
    labels: Mapping[str, npt.NDArray[Any]]
    weights: npt.NDArray[np.float32]
    sample_ids: npt.NDArray[np.int64]
    epoch: int = 0
    index: int = 0
    make_token: Callable[[], str] = str


def blank_batch(spec: StreamSpec) -> BlankBatch:
    """A whole batch of the stream. Its images take no memory."""
    rows = spec.batch_size
    images = np.broadcast_to(np.uint8(0), (rows, *spec.image_shape))
    labels = {name: _label(label, rows) for name, label in spec.labels.items()}
    return BlankBatch(images, labels, np.ones(rows, np.float32), np.full(rows, PAD_ID))


def _label(label: LabelSpec, rows: int) -> npt.NDArray[Any]:
    return np.zeros((rows, label.width) if label.width else rows, label.dtype)
