"""Samples of several images, or with boxes and points, that a cache keeps whole: see `dataset.cache.record`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streamd.core.sampler import Ids
from streamd.dataset.arrays.store import Mask, Pixels
from streamd.dataset.cache.record import RecordLayout
from streamd.dataset.cache.store import DecodedCache
from streamd.worker.record_store import RecordStore, ReportRow, SampleDraws, SampleGeometries, ignore_row_report


class CachedRecords(RecordStore):
    """The records of a cache. Its images are not cropped at random, so a sample looks the same in every epoch."""

    def __init__(self, cache: DecodedCache, layout: RecordLayout) -> None:
        self._cache = cache
        self._layout = layout

    def find_gatherable(self, ids: Ids) -> Mask:
        """See `RecordStore`."""
        return self._cache.find_gatherable(ids)

    def prefetch_rows(self, ids: Ids) -> None:
        """See `RecordStore`."""
        self._cache.prefetch_rows(ids)

    def gather_records(
        self, ids: Ids, rows: Mapping[str, Pixels], draws: SampleDraws, report_row: ReportRow = ignore_row_report
    ) -> tuple[Mask, Mapping[int, SampleGeometries]]:
        """See `RecordStore`. A record found damaged is not held from then on."""
        del draws, report_row  # records are copied, which takes no time worth mentioning
        held = self._cache.find_sound_rows(ids)
        landed: dict[int, SampleGeometries] = {}
        for place in np.flatnonzero(held).tolist():
            record = self._cache.read_row(int(ids[place]))
            self._layout.unpack_images(record, {name: each[place] for name, each in rows.items()})
            landed[place] = self._layout.unpack_geometries(record)
        self._cache.record_page_faults()
        return held, landed

    def write_record(self, sample_id: int, rows: Mapping[str, Pixels], landed: SampleGeometries) -> None:
        """Writes a sample that was just decoded, if it is one of those that are kept; see `DecodedCache.write_row`."""
        if self._cache.takes_row(sample_id):
            self._cache.write_row(sample_id, self._layout.pack_record(rows, landed))

    def find_permanent_fault(self, sample_id: int) -> str:
        """See `RecordStore`. A sample that is not held is decoded."""
        return self._cache.find_permanent_fault(sample_id)

    def close(self) -> None:
        """Publishes the remaining records, and closes the file."""
        self._cache.close()
