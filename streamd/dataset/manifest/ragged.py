"""Columns of rows of numbers, any number of them a sample: the boxes or points that the data hold. Pure.

A label of this kind takes the memory of the boxes that there are, and not of the most that a sample may have: COCO has
seven boxes a picture, and `max` is often a hundred.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.dataset.manifest.columns import TextColumn, narrow_integers

Int64s = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]

ROWS_PREFIX: Final = "boxes."  # in a manifest, of the column with the rows of all boxes or points of a label


@dataclass(frozen=True, slots=True, eq=False)
class RaggedColumn:
    """`numbers`, float32 (total, k), are the rows of all samples one after another.

    Those of sample i end before row `ends[i]`; `ends` is (n,), whole numbers of any type.
    """

    ends: npt.NDArray[Any]
    numbers: Rows

    def __len__(self) -> int:
        return int(self.ends.size)

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        return np.dtype(np.float32)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Returns the rows of all samples, (total, k)."""
        del copy  # the array is always new
        return self.numbers.astype(dtype or self.dtype)

    def tolist(self) -> list[Any]:
        """Returns the rows of each sample, as nested lists."""
        return [self.read_sample(sample).tolist() for sample in range(len(self))]

    @property
    def counts(self) -> Int64s:
        """The number of rows of each sample, (n,)."""
        ends = self.ends.astype(np.int64)
        return np.concatenate([ends[:1], ends[1:] - ends[:-1]])

    def read_sample(self, sample: int) -> Rows:
        """Returns the rows of one sample, (m, k)."""
        start = int(self.ends[sample - 1]) if sample else 0
        return self.numbers[start : int(self.ends[sample])]

    def __getitem__(self, samples: Int64s) -> RaggedColumn:
        """Returns the column of the samples at these positions."""
        counts = self.counts[samples]
        ends = np.cumsum(counts, dtype=np.int64)
        # The place of each row in the old column: the start of its sample there, and its number within the sample.
        starts = self.ends.astype(np.int64)[samples] - counts
        places = np.repeat(starts - (ends - counts), counts) + np.arange(int(counts.sum()), dtype=np.int64)
        return RaggedColumn(ends, self.numbers[places])


def build_label_columns(
    name: str, values: npt.NDArray[Any] | TextColumn | RaggedColumn
) -> Mapping[str, npt.NDArray[Any] | TextColumn]:
    """Returns the columns of a manifest that hold a label: one, or two for boxes and points."""
    if isinstance(values, RaggedColumn):
        ends = narrow_integers(values.ends.astype(np.int64))
        return {f"label.{name}": ends, f"{ROWS_PREFIX}{name}": values.numbers.astype("<f4", copy=False)}
    return {f"label.{name}": values if isinstance(values, TextColumn) else narrow_integers(values)}
