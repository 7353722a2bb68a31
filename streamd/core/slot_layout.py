"""The offsets of a batch's images, ids, weights and labels in its slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.core.spec import LabelSpec, StreamSpec
from streamd.limits import PAGE_BYTES, TENSOR_ALIGN_BYTES


@dataclass(frozen=True, slots=True)
class SlotTensor:
    """One array in a slot: `offset` in bytes, C-contiguous."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def build_array_in_memory(self, memory: memoryview, start: int = 0) -> npt.NDArray[Any]:
        """Returns the array in `memory`, which holds the slot's bytes from `start` on; writable if the memory is."""
        return np.ndarray(self.shape, self.dtype, memory, self.offset - start)


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """The tensors of one batch, and the bytes that they take together. `arrays` has the tensor of each image."""

    arrays: Mapping[str, SlotTensor]
    sample_ids: SlotTensor
    weights: SlotTensor
    labels: Mapping[str, SlotTensor]
    size_bytes: int

    @property
    def images(self) -> SlotTensor:
        """The tensor of the first image."""
        return next(iter(self.arrays.values()))

    @property
    def all_tensors(self) -> tuple[SlotTensor, ...]:
        """All tensors in the order in which they lie in the slot."""
        return *self.arrays.values(), self.sample_ids, self.weights, *self.labels.values()


def compute_layout(spec: StreamSpec, rows: int) -> SlotLayout:
    """Returns the layout of a batch of `rows` rows. Both sides compute the same one, from the spec alone."""
    images = tuple((name, image.dtype, image.shape) for name, image in spec.images.items())
    labels = tuple((label.name, label.dtype, label.shape) for label in spec.labels.values())
    return _place_tensors(images, labels, rows)


@lru_cache(maxsize=256)
def _place_tensors(
    images: tuple[tuple[str, str, tuple[int, ...]], ...],
    labels: tuple[tuple[str, str, tuple[int, ...]], ...],
    rows: int,
) -> SlotLayout:
    offset = 0
    placed: list[SlotTensor] = []
    # The images come first: the mapping begins at a page, so the first of them does too. The others are aligned for
    # DLPack. No label has the name of an image, but either may be called as the two in the middle.
    wanted = [(name, dtype, (rows, *shape)) for name, dtype, shape in images]
    wanted += [("sample_ids", "int64", (rows,)), ("weights", "float32", (rows,))]
    wanted += [(name, dtype, (rows, *shape)) for name, dtype, shape in labels]
    for name, dtype, shape in wanted:
        tensor = SlotTensor(name, dtype, shape, -(-offset // TENSOR_ALIGN_BYTES) * TENSOR_ALIGN_BYTES)
        offset = tensor.offset + tensor.size_bytes
        placed.append(tensor)
    (sample_ids, weights, *rest), pictures = placed[len(images) :], placed[: len(images)]
    return SlotLayout(
        {tensor.name: tensor for tensor in pictures},
        sample_ids,
        weights,
        {tensor.name: tensor for tensor in rest},
        max(offset, 1),
    )


def build_blank_label(label: LabelSpec, rows: int) -> npt.NDArray[Any]:
    """Returns a label of rows without a sample: 0, an empty text, or -1 for boxes and points."""
    values: npt.NDArray[Any] = np.zeros((rows, *label.shape), label.dtype)  # for text, these are "" and not "0"
    if label.blank_value:
        values[...] = label.blank_value
    return values


def compute_slot_bytes(spec: StreamSpec, rows: int | None = None) -> int:
    """Returns the bytes of a slot for so many rows, in whole pages; None: for any batch of the stream."""
    layout = compute_layout(spec, spec.batch_size if rows is None else rows)
    return -(-layout.size_bytes // PAGE_BYTES) * PAGE_BYTES
