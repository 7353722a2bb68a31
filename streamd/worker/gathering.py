"""Gathers stored samples, rows of arrays or of a cache, into the rows of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamd.core.sampler import Ids
from streamd.core.spec import ImageSpec
from streamd.dataset.arrays.store import Mask, Pixels, SampleStore
from streamd.decode.geometry import Geometry, compute_fixed_geometry
from streamd.worker.record_store import RecordStore, ReportRow, SampleDraws, SampleGeometries, ignore_row_report


def gather_samples(
    store: SampleStore | RecordStore,
    images: Mapping[str, ImageSpec],
    ids: Ids,
    rows: Mapping[str, Pixels],
    draws: SampleDraws,
    report_row: ReportRow = ignore_row_report,
) -> tuple[Mask, Mapping[int, SampleGeometries]]:
    """Writes the samples that a store holds into `rows` by image, each (n, ...).

    Returns which of `ids` were written, (n,), and how their pictures land, by place in `ids`. `draws` are those of
    images that are cropped at random.
    """
    if isinstance(store, RecordStore):
        return store.gather_records(ids, rows, draws, report_row)
    held = store.gather_rows(ids, next(iter(rows.values())))
    return held, build_stored_geometries(images, held.tolist())


def build_stored_geometries(
    images: Mapping[str, ImageSpec], is_gathered: Sequence[bool]
) -> dict[int, dict[str, Geometry]]:
    """Returns the geometries of the rows that were copied from arrays, which are served as they are."""
    stored = {name: compute_fixed_geometry(image, (image.height, image.width)) for name, image in images.items()}
    return {place: stored for place, is_there in enumerate(is_gathered) if is_there}
