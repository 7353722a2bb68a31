"""The interface between a pack run and the formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from streamd.cli.pack.packed_rows import PackedRows
from streamd.core.permutation import Ids, Words
from streamd.core.text import escape_unprintable
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import PackError

_BLOCK_BATCHES: Final = 64  # batches whose ids are planned at a time


@dataclass(frozen=True, slots=True)
class PackJob:
    """The stream to pack, whose batches are in the order of the pack, and the folder or file to write.

    `scratch_path` is a path for a temporary file; others may begin with its name. They last until the pack is in place.
    """

    stream: ServedStream
    product_path: Path
    scratch_path: Path

    @property
    def row_bytes(self) -> int:
        """The bytes of all images of a sample."""
        return self.stream.spec.sample_bytes

    def iterate_kept_ids(self, bad_ids: Ids) -> Iterator[Ids]:
        """Yields the sample ids of the pack's rows in order, a block at a time."""
        batches = self.stream.spec.batches
        for first in range(0, batches, _BLOCK_BATCHES):
            ids, _ = self.stream.compute_planned_ids_of_batches(0, range(first, min(first + _BLOCK_BATCHES, batches)))
            yield ids[~np.isin(ids, bad_ids)] if bad_ids.size else ids


class PackWriter(Protocol):
    """Writes one format. Used by one thread at a time.

    Everything raises OSError when the disk refuses.
    """

    def resume_after_rows(self, rows: int, position: Mapping[str, int]) -> None:
        """Continues after the first `rows` rows, which are safe on the disk. Must be called before anything else.

        `position` is the value that `sync_to_disk` returned for these rows.
        """

    def append_rows(self, rows: PackedRows) -> Words:
        """Writes more rows, and returns a checksum of each, (n,) uint64."""

    def sync_to_disk(self) -> dict[str, int]:
        """Syncs all rows to the disk, and returns the `position` for `resume_after_rows`."""

    def finish_pack(self, bad_ids: Ids) -> None:
        """Completes the pack after the last row; the samples `bad_ids` were left out. May be called again."""

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        """Yields the checksums of all rows, read back from the disk, a block at a time.

        Raises PackError if labels differ from those that were written.
        """

    def estimate_bytes(self) -> int:
        """Returns about how many bytes the whole pack takes on the disk."""

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        """Returns the keys of a stream's configuration that serve the pack at `pack_path`."""

    def close(self) -> None:
        """Closes all files."""


def build_read_mismatch_error(path: Path) -> PackError:
    """Builds the error for a pack whose content differs from what was written."""
    return PackError(
        f"{escape_unprintable(str(path))} does not read back from the disk as it was written: the disk or this "
        "machine's memory is failing. Nothing was put in place; check the disk, then pack again with --restart"
    )
