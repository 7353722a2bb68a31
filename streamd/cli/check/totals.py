"""Sums of a stream's results from the reading processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from streamd.cli.check.duplicates import FileContents
from streamd.cli.check.reader_messages import (
    ClassPixels,
    GroupResult,
    OddBoxes,
    OddSizes,
    PictureOddity,
    SampleFault,
    SampleGroup,
)
from streamd.core.spec import PixelId
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.manifest.types import Int64s
from streamd.limits import MASKS_COUNTED, TASK_ROWS

_COUNTED_SEED: Final = 0


def choose_sample_ids(samples: int, max_samples: int | None) -> Int64s:
    """Returns the sample ids to read: all, or `max_samples` of them, evenly spread."""
    if max_samples is None or max_samples >= samples:
        return np.arange(samples, dtype=np.int64)
    return np.arange(max_samples, dtype=np.int64) * samples // max_samples


def choose_counted_ids(ids: Int64s, most: int = MASKS_COUNTED) -> Int64s:
    """Returns the `ids` whose masks are counted, in rising order: all, or `most` of them, always the same ones."""
    if ids.size <= most:
        return ids
    return np.sort(np.random.default_rng(_COUNTED_SEED).choice(ids, most, replace=False))


def split_into_sample_groups(stream: int, ids: Int64s, counted: Int64s) -> Iterator[SampleGroup]:
    """Splits a stream's `ids` into groups as large as a worker's tasks; the masks of the `counted` ones are counted."""
    is_counted = np.isin(ids, counted)
    for start in range(0, ids.size, TASK_ROWS):
        part = slice(start, start + TASK_ROWS)
        yield SampleGroup(stream, ids[part].tolist(), ids[part][is_counted[part]].tolist())


class StreamTotals:
    """One stream's sums; `ids` are the samples to be read, in rising order."""

    def __init__(self, stream: ServedStream, ids: Int64s) -> None:
        self.stream = stream
        self.ids = ids
        self.samples_read = 0
        self.read_s = 0.0
        self.decode_s = 0.0
        self.unpacked_chunks = 0
        self.unpack_s = 0.0
        self.formats: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.enlarged = 0
        self.pixel_id = PixelId("")  # as long as no process has read anything
        self.transparent = 0
        self.odd_pictures: dict[PictureOddity, list[int]] = {}
        self.odd_boxes: dict[str, OddBoxes] = {}
        self.odd_sizes: dict[str, OddSizes] = {}
        self.class_pixels: dict[str, ClassPixels] = {}
        self.faults: list[SampleFault] = []
        self._digests = np.zeros((ids.size, 2), dtype=np.uint64)
        self._good = np.zeros(ids.size, dtype=np.bool_)

    def add_group_result(self, result: GroupResult) -> None:
        """Adds the result of one group."""
        self.samples_read += len(result.ids)
        self.read_s += result.read_s
        self.decode_s += result.decode_s
        self.unpacked_chunks += result.unpacked
        self.unpack_s += result.unpack_s
        self.formats.update(result.formats)
        self.sizes.update(result.sizes)
        self.enlarged += result.enlarged
        self.pixel_id = PixelId(result.pixel_id) or self.pixel_id
        self.transparent += result.transparent
        for oddity, ids in result.odd_pictures.items():
            self.odd_pictures.setdefault(oddity, []).extend(ids)
        for label, odd in result.odd_boxes.items():
            self.odd_boxes[label] = self.odd_boxes.get(label, OddBoxes()).add_odd_boxes(odd)
        for name, sizes in result.odd_sizes.items():
            self.odd_sizes[name] = self.odd_sizes.get(name, OddSizes()).add_odd_sizes(sizes)
        for name, pixels in result.class_pixels.items():
            self.class_pixels[name] = self.class_pixels.get(name, ClassPixels()).add_class_pixels(pixels)
        self.faults += map(self._judge_fault, result.faults)
        bad = {fault.sample_id for fault in result.faults}
        good = np.searchsorted(self.ids, [sample_id for sample_id in result.ids if sample_id not in bad])
        self._good[good] = True
        self._digests[good] = np.frombuffer(bytes.fromhex("".join(result.digests)), dtype=np.uint64).reshape(-1, 2)

    def _judge_fault(self, fault: SampleFault) -> SampleFault:
        """Returns a fault with its effect in the daemon: with `expect`, one of this host's copy stops the stream."""
        stops = fault.of_this_host and self.stream.expected is not None
        return replace(fault, effect="retry") if stops else fault

    @property
    def comparable_contents(self) -> FileContents:
        """The contents that can be compared: those of all files that were read and are images."""
        ids = self.ids[self._good]
        return FileContents(ids, self.stream.manifest.lookup_sample_bytes(ids), self._digests[self._good])
