"""Where images, ids, weights and labels of a batch lie in its slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.core.spec import StreamSpec
from streamd.limits import PAGE_BYTES, TENSOR_ALIGN_BYTES


@dataclass(frozen=True, slots=True)
class Tensor:
    """One array in a slot: `offset` in bytes, C-contiguous."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def view(self, memory: memoryview, start: int = 0) -> npt.NDArray[Any]:
        """The array at its place in `memory`, the slot's bytes from `start` on; writable when the memory is."""
        return np.ndarray(self.shape, self.dtype, memory, self.offset - start)


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors of one batch and the bytes they take together."""

    images: Tensor
    sample_ids: Tensor
    weights: Tensor
    labels: Mapping[str, Tensor]
    nbytes: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in their order."""
        return self.images, self.sample_ids, self.weights, *self.labels.values()


def _aligned(offset: int, to: int) -> int:
    return -(-offset // to) * to


def layout(spec: StreamSpec, rows: int) -> Layout:
    """The layout of a batch of `rows`. Equal on both sides, since both compute it from the spec alone."""
    key = tuple((label.name, label.dtype, label.width) for label in spec.labels.values())
    return _layout(spec.image_shape, key, rows)


@lru_cache(maxsize=256)
def _layout(image_shape: tuple[int, int, int], labels: tuple[tuple[str, str, int], ...], rows: int) -> Layout:
    offset = 0
    placed: list[Tensor] = []
    wanted = [
        ("images", "uint8", (rows, *image_shape)),
        ("sample_ids", "int64", (rows,)),
        ("weights", "float32", (rows,)),
    ]
    wanted += [(name, dtype, (rows, width) if width else (rows,)) for name, dtype, width in labels]
    for name, dtype, shape in wanted:
        tensor = Tensor(name, dtype, shape, _aligned(offset, TENSOR_ALIGN_BYTES))
        offset = tensor.offset + tensor.nbytes
        placed.append(tensor)
    images, sample_ids, weights, *rest = placed
    return Layout(images, sample_ids, weights, {tensor.name: tensor for tensor in rest}, max(offset, 1))


def slot_bytes(spec: StreamSpec) -> int:
    """Bytes of a slot for any batch of the stream, whole pages."""
    return _aligned(layout(spec, spec.batch_size).nbytes, PAGE_BYTES)
