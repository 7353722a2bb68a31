"""What the reading processes tell of a stream, added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from streamd.cli.check.duplicates import Contents
from streamd.cli.check.reader_messages import Fault, Group, Seen
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.manifest.types import Int64s
from streamd.limits import TASK_ROWS


def chosen(samples: int, most: int | None) -> Int64s:
    """The sample ids to read: all, or `most` of them, evenly spread."""
    if most is None or most >= samples:
        return np.arange(samples, dtype=np.int64)
    return np.arange(most, dtype=np.int64) * samples // most


def groups(stream: int, ids: Int64s) -> Iterator[Group]:
    """`ids` of a stream, in groups as large as a worker's tasks."""
    for start in range(0, ids.size, TASK_ROWS):
        yield Group(stream, ids[start : start + TASK_ROWS].tolist())


class Tally:
    """One stream's sums; `ids` are the samples to be read, in rising order."""

    def __init__(self, stream: ServedStream, ids: Int64s) -> None:
        self.stream = stream
        self.ids = ids
        self.read = 0
        self.read_s = 0.0
        self.decode_s = 0.0
        self.unpacked = 0
        self.unpack_s = 0.0
        self.formats: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.enlarged = 0
        self.faults: list[Fault] = []
        self._digests = np.zeros((ids.size, 2), dtype=np.uint64)
        self._good = np.zeros(ids.size, dtype=np.bool_)

    def add(self, seen: Seen) -> None:
        """One group more."""
        self.read += len(seen.ids)
        self.read_s += seen.read_s
        self.decode_s += seen.decode_s
        self.unpacked += seen.unpacked
        self.unpack_s += seen.unpack_s
        self.formats.update(seen.formats)
        self.sizes.update(seen.sizes)
        self.enlarged += seen.enlarged
        self.faults += seen.faults
        bad = {fault.sample_id for fault in seen.faults}
        good = np.searchsorted(self.ids, [sample_id for sample_id in seen.ids if sample_id not in bad])
        self._good[good] = True
        self._digests[good] = np.frombuffer(bytes.fromhex("".join(seen.digests)), dtype=np.uint64).reshape(-1, 2)

    @property
    def contents(self) -> Contents:
        """What can be compared: all that was read and is an image."""
        ids = self.ids[self._good]
        return Contents(ids, self.stream.manifest.lookup_sample_bytes(ids), self._digests[self._good])
