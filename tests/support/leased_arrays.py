"""Images in leased memory, and how many of them are still held."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.core.slot_layout import SlotTensor
from streamd.ipc.mapping import build_leased_array

IMAGES = SlotTensor("images", "uint8", (4, 8, 8, 3), 0)


class Lender:
    """Lends batches of four images, whose pixels all are their row's number; `held` counts those not given back."""

    def __init__(self) -> None:
        self.held = 0

    def lend(self) -> npt.NDArray[np.uint8]:
        """uint8 (4, 8, 8, 3), read-only, at a page's beginning."""
        memory = memoryview(mmap.mmap(-1, IMAGES.size_bytes))
        IMAGES.build_array_in_memory(memory)[:] = np.arange(4, dtype=np.uint8)[:, None, None, None]
        self.held += 1
        return build_leased_array(memory, IMAGES, self._give_back)

    def _give_back(self) -> None:
        self.held -= 1


def address(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
