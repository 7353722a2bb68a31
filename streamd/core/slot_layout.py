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
    """The tensors of one batch, and the bytes that they take together."""

    images: SlotTensor
    sample_ids: SlotTensor
    weights: SlotTensor
    labels: Mapping[str, SlotTensor]
    size_bytes: int

    @property
    def all_tensors(self) -> tuple[SlotTensor, ...]:
        """All tensors in the order in which they lie in the slot."""
        return self.images, self.sample_ids, self.weights, *self.labels.values()


def _align_up(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def compute_layout(spec: StreamSpec, rows: int) -> SlotLayout:
    """Returns the layout of a batch of `rows` rows. Both sides compute the same one, from the spec alone."""
    key = tuple((label.name, label.dtype, label.shape) for label in spec.labels.values())
    return _place_tensors(spec.image_shape, key, rows)


@lru_cache(maxsize=256)
def _place_tensors(
    image_shape: tuple[int, int, int], labels: tuple[tuple[str, str, tuple[int, ...]], ...], rows: int
) -> SlotLayout:
    offset = 0
    placed: list[SlotTensor] = []
    # The images come first: the mapping begins at a page, so they do too. The others are aligned for DLPack.
    wanted = [
        ("images", "uint8", (rows, *image_shape)),
        ("sample_ids", "int64", (rows,)),
        ("weights", "float32", (rows,)),
    ]
    wanted += [(name, dtype, (rows, *shape)) for name, dtype, shape in labels]
    for name, dtype, shape in wanted:
        tensor = SlotTensor(name, dtype, shape, _align_up(offset, TENSOR_ALIGN_BYTES))
        offset = tensor.offset + tensor.size_bytes
        placed.append(tensor)
    images, sample_ids, weights, *rest = placed
    return SlotLayout(images, sample_ids, weights, {tensor.name: tensor for tensor in rest}, max(offset, 1))


def build_blank_label(label: LabelSpec, rows: int) -> npt.NDArray[Any]:
    """Returns a label of rows without a sample: 0, an empty text, or -1 for boxes and points."""
    values: npt.NDArray[Any] = np.zeros((rows, *label.shape), label.dtype)  # for text, these are "" and not "0"
    if label.blank_value:
        values[...] = label.blank_value
    return values


def compute_slot_bytes(spec: StreamSpec) -> int:
    """Returns the bytes of a slot for any batch of the stream, in whole pages."""
    return _align_up(compute_layout(spec, spec.batch_size).size_bytes, PAGE_BYTES)
