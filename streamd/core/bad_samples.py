"""What becomes of a batch when some of its samples are known to be bad: a pure rule, so that all productions agree."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import PAD_ID, Ids
from streamd.core.spec import BadPolicy

RowStatus = npt.NDArray[np.uint8]

GOOD: Final = 0
SUBSTITUTED: Final = 1
MASKED: Final = 2


@dataclass(frozen=True, slots=True)
class BadSample:
    """Why a sample is bad: recorded once, before the first batch that uses it is sent."""

    sample_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row whose planned sample was bad, as `batch.bad` and the receipt show it."""

    row: int
    sample_id: int
    file: str
    reason: str
    action: str  # "substituted" or "masked"


@lru_cache(maxsize=64)
def build_all_good_row_status(rows: int) -> RowStatus:
    """The marks of a batch without bad rows, read-only."""
    marks = np.zeros(rows, dtype=np.uint8)
    marks.setflags(write=False)
    return marks


def replace_bad_sample_ids(planned: Ids, bad: Collection[int], policy: BadPolicy) -> tuple[Ids, RowStatus]:
    """The samples really delivered for the `planned` ids, and a mark for each row.

    Under `substitute` the next good row of the same batch, cyclically, takes a bad one's place; a batch without a
    good row, and every bad row under `mask`, becomes PAD_ID: zeros with weight 0.
    """
    rows = [sample_id in bad for sample_id in planned.tolist()] if bad else []
    if not any(rows):
        return planned, build_all_good_row_status(planned.size)
    delivered, marks = planned.copy(), np.zeros(planned.size, dtype=np.uint8)
    good = [row for row, is_bad in enumerate(rows) if not is_bad and planned[row] != PAD_ID]
    for row, is_bad in enumerate(rows):
        if not is_bad:
            continue
        if policy == "substitute" and good:
            delivered[row] = planned[next((other for other in good if other > row), good[0])]
            marks[row] = SUBSTITUTED
        else:
            delivered[row], marks[row] = PAD_ID, MASKED
    return delivered, marks
