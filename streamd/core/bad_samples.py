"""The rule that replaces the known bad samples of a batch. It is pure, so every production of a batch agrees on it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import PAD_ID, Ids
from streamd.core.spec import BadPolicy
from streamd.limits import SMALL_SET_BAD_FRACTION, SMALL_SET_MOST_BAD, TOLERATED_BAD

RowStatus = npt.NDArray[np.uint8]

GOOD: Final = 0
SUBSTITUTED: Final = 1
MASKED: Final = 2


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample of which no row can be made, for `reason`: first a worker's report, then the daemon's verdict.

    A verdict is recorded once, before the first batch that uses it is sent. It is `lasting`: other reports say that
    another attempt may succeed, as after an I/O error. `away`: it can succeed only when the data of the stream are
    back; the sample itself is not judged. `of_this_host`: the file is missing, forbidden, or not the listed one, which
    says nothing about the sample on another host.
    """

    sample_id: int
    reason: str
    lasting: bool = True
    away: bool = False
    of_this_host: bool = False

    @property
    def of_bytes(self) -> bool:
        """Whether its listed bytes were read, so that the verdict holds wherever they are."""
        return not self.of_this_host


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
    """Returns the marks of a batch without bad rows, (rows,) uint8, read-only."""
    marks = np.zeros(rows, dtype=np.uint8)
    marks.setflags(write=False)
    return marks


def compute_most_bad(count: int, max_fraction: float, *, is_default: bool) -> int:
    """Returns how many of `count` pictures may be bad before their stream stops.

    `is_default`: the configuration names no fraction, so a small set may have more, see SMALL_SET_BAD_FRACTION.
    """
    by_default = min(SMALL_SET_BAD_FRACTION * count, SMALL_SET_MOST_BAD) if is_default else 0
    return max(TOLERATED_BAD, int(max(max_fraction * count, by_default)))


def replace_bad_sample_ids(planned: Ids, bad: Collection[int], policy: BadPolicy) -> tuple[Ids, RowStatus]:
    """Returns the ids delivered for the `planned` ids, and a mark for each row.

    Under `substitute`, a bad row shows the next good row of the same batch, cyclically. Under `mask`, and in a batch
    without a good row, a bad row becomes PAD_ID: zeros with weight 0. The result may be `planned` itself.
    """
    # Daemon and client both apply this rule, and the client refuses a batch for which they differ. So the choice may
    # depend on nothing but the arguments.
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
