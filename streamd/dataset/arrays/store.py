"""Samples that need no decoding: a store copies their pixels straight into the slot.

A source has one when its stream does. `worker.fill_rows` asks it first; what it does not hold is read and decoded.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import Ids

Mask = npt.NDArray[np.bool_]
Pixels = npt.NDArray[np.uint8]


class SampleStore(Protocol):
    """Decoded samples by their id, as one worker sees them. PAD_ID is never held.

    `find_gatherable` may come from another thread. A mapping whose file is cut off ends the worker by SIGBUS, which
    is held against the host and no sample.
    """

    def find_gatherable(self, ids: Ids) -> Mask:
        """Which of `ids` can be gathered, (n,): their files need not be read ahead."""

    def prefetch_rows(self, ids: Ids) -> None:
        """These will be gathered soon: what is not in memory may be read meanwhile. Waits for no disk."""

    def gather_rows(self, ids: Ids, images: Pixels) -> Mask:
        """Copies samples into `images`, (n, H, W, C) uint8, C-contiguous; which of them, (n,).

        Rows that it does not hold may hold anything afterwards. Once a task: no Python for each row where possible.
        """

    def find_permanent_fault(self, sample_id: int) -> str:
        """What is wrong for good with a sample that was not gathered; nothing, if it may be another time."""

    def close(self) -> None:
        """Lets go of files; nothing is asked of it any more."""
