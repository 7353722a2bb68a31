"""Samples that need no decoding: a store copies their pixels straight into the slot.

A stream has a store when its source has one, or when it has a cache. `worker.fill_rows` asks the store first, and reads
and decodes what it does not hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import Ids

Mask = npt.NDArray[np.bool_]
Pixels = npt.NDArray[Any]  # uint8; in mode raw also uint16 and float32


class ListedRows(Protocol):
    """The files of one image of every sample, as a manifest lists them: those of its samples, or of a further image."""

    @property
    def root(self) -> Path:
        """The folder that names are relative to."""

    @property
    def sizes(self) -> npt.NDArray[Any]:
        """The bytes of each file."""

    @property
    def mtimes_ns(self) -> npt.NDArray[Any]:
        """The mtime of each file."""

    def array_file_names(self) -> list[bytes]:
        """Returns the name of each file."""

    def lookup_rows(self, ids: Ids) -> Ids:
        """Returns the row of each sample; -1 for -1, which is no sample."""

    def find_extra_column(self, name: str) -> npt.NDArray[Any]:
        """Returns a column that a store needs."""

    def file_name(self, sample_id: int) -> bytes:
        """Returns the file and the row of a sample."""


class SampleStore(Protocol):
    """Decoded samples by id, as one worker sees them. A store never holds PAD_ID.

    `find_gatherable` may be called from another thread. Where a mapped file has been cut off, access ends the worker
    with SIGBUS; the host is blamed for that, and no sample.
    """

    def find_gatherable(self, ids: Ids) -> Mask:
        """Returns which of `ids` can be gathered, (n,). Their files need not be read ahead."""

    def prefetch_rows(self, ids: Ids) -> None:
        """Requests samples that will be gathered soon, where they are not in memory. Waits for no disk."""

    def gather_rows(self, ids: Ids, images: Pixels) -> Mask:
        """Copies samples into `images`, (n, H, W, C), C-contiguous. Returns which of `ids` were copied, (n,).

        The rows of the other samples may hold anything afterwards. It is called once a task, so implementations avoid
        Python code for each row where they can.
        """

    def find_permanent_fault(self, sample_id: int) -> str:
        """Returns why a sample that was not gathered is bad for good; an empty text if a later attempt may succeed."""

    def close(self) -> None:
        """Closes the files. The store is not used afterwards."""
