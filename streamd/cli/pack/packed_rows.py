"""The rows of a pack: the images of some samples, with their boxes and points as they are delivered. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.cli.pack.checksums import combine_checksums, compute_row_checksums
from streamd.core.permutation import Ids, Words
from streamd.core.spec import StreamSpec
from streamd.dataset.arrays.store import Mask, Pixels

BoxRows = npt.NDArray[np.float32]  # (n, max, 5) or (n, max, 2)
_BOX_NUMBER_BYTES: Final = np.dtype(np.float32).itemsize


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """The samples `ids`: `images` has the rows of each image, and `boxes` those of each label of boxes or points.

    Both are in the order of the stream. The memory may be that of a slot.
    """

    ids: Ids
    images: Mapping[str, Pixels]
    boxes: Mapping[str, BoxRows] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.iterate_arrays())

    def iterate_arrays(self) -> Iterator[npt.NDArray[Any]]:
        """Yields all images, then all boxes and points."""
        yield from self.images.values()
        yield from self.boxes.values()

    def select_rows(self, kept: Mask) -> PackedRows:
        """Returns a copy of the rows where `kept` is true."""
        return PackedRows(
            self.ids[kept],
            {name: images[kept] for name, images in self.images.items()},
            {name: boxes[kept] for name, boxes in self.boxes.items()},
        )

    def compute_checksums(self) -> Words:
        """Returns a checksum of each row, over all of its arrays, (n,) uint64."""
        return combine_checksums([compute_row_checksums(view_row_bytes(array)) for array in self.iterate_arrays()])


def view_row_bytes(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Returns the bytes of each row, (n, bytes); a view where the rows are contiguous."""
    return np.ascontiguousarray(rows).reshape(len(rows), prod(rows.shape[1:])).view(np.uint8)


def compute_box_bytes(spec: StreamSpec) -> dict[str, int]:
    """Returns how many bytes the boxes or points of one sample take as they are delivered, by label."""
    return {
        name: label.rows * label.width * _BOX_NUMBER_BYTES for name, label in spec.labels.items() if label.is_ragged
    }
