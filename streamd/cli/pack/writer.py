"""The seam between the job and a format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from streamd.core.permutation import Ids, Words
from streamd.core.text import escape_unprintable
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.arrays.store import Pixels
from streamd.errors import PackError

_BLOCK_BATCHES: Final = 64  # of ids, planned at a time


@dataclass(frozen=True, slots=True)
class PackJob:
    """What is packed: the stream, whose batches are in the order of the pack, and the folder or file it is made at.

    `scratch_path` is a path for a file that is needed for a moment.
    """

    stream: ServedStream
    product_path: Path
    scratch_path: Path

    @property
    def row_bytes(self) -> int:
        return self.stream.spec.image.row_bytes

    def iterate_kept_ids(self, bad_ids: Ids) -> Iterator[Ids]:
        """The ids of the rows of the pack, in their order, some at a time."""
        batches = self.stream.spec.batches
        for first in range(0, batches, _BLOCK_BATCHES):
            ids, _ = self.stream.compute_planned_ids_of_batches(0, range(first, min(first + _BLOCK_BATCHES, batches)))
            yield ids[~np.isin(ids, bad_ids)] if bad_ids.size else ids


class PackWriter(Protocol):
    """Writes one format. Used by one thread at a time.

    Everything raises OSError when the disk refuses.
    """

    def resume_after_rows(self, rows: int, position: Mapping[str, int]) -> None:
        """Goes on behind the first `rows`, which are safe; `place` is what `sync_to_disk` said then. Comes first."""

    def append_rows(self, ids: Ids, images: Pixels) -> Words:
        """Writes more rows; a checksum of each, (n,) uint64."""

    def sync_to_disk(self) -> dict[str, int]:
        """Returns when all rows are safe on the disk, with what `resume_after_rows` has to know."""

    def finish_pack(self, bad_ids: Ids) -> None:
        """All rows are written, and those of `bad_ids` were left out: adds what belongs to them.

        May be called again.
        """

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        """The checksums of all rows, read back from the disk, some at a time. Raises PackError for other labels."""

    def estimate_bytes(self) -> int:
        """About what the whole pack takes on the disk."""

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        """The keys of a stream's configuration that serve the pack at `place`."""

    def close(self) -> None:
        """Lets go of all files."""


def build_read_mismatch_error(path: Path) -> PackError:
    """What is said of a pack that is not read as it was written."""
    return PackError(
        f"{escape_unprintable(str(path))} is read from the disk otherwise than it was written: its disk, or this "
        "machine's memory, fails. Nothing was put in place; see to the disk, then pack again with --restart"
    )
