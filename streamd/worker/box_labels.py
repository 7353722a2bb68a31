"""Writes the boxes and points of samples beside their images, where the geometry of each image puts them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import Ids
from streamd.core.slot_layout import build_blank_label
from streamd.core.spec import LabelSpec
from streamd.decode.boxes import LabelFit, Rows, align_label_rows, find_label_fit, place_label_rows
from streamd.decode.decoders import BadImageError
from streamd.decode.geometry import Geometry
from streamd.worker.record_store import SampleGeometries
from streamd.worker.stream_reader import StreamReader


def build_box_label(
    reader: StreamReader, label: LabelSpec, ids: Ids, landed: Mapping[int, SampleGeometries]
) -> npt.NDArray[np.float32]:
    """Returns the boxes or points of the samples `ids`, (len(ids), max, 5) or (len(ids), max, 2).

    `landed` has the geometries of the samples with pixels, by their place in `ids`. The other rows are -1.
    """
    rows = build_blank_label(label, len(ids))
    for place, geometries in landed.items():
        geometry = find_label_geometry(reader, label, geometries)
        place_label_rows(read_label_rows(reader, label, int(ids[place]), geometry), label, geometry, rows[place])
    return rows


def read_label_rows(reader: StreamReader, label: LabelSpec, sample_id: int, geometry: Geometry) -> Rows:
    """Returns the boxes or points of a sample, in the label's unit, for the upright picture of `geometry`.

    Raises BadImageError where they were drawn on another picture.
    """
    found = reader.manifest.ragged_column(label.name).read_sample(sample_id)
    return align_label_rows(found, label, reader.manifest.lookup_drawn_size(sample_id), geometry)


def find_label_fits(reader: StreamReader, sample_id: int, landed: SampleGeometries) -> dict[str, LabelFit]:
    """Returns how the boxes and points of a sample come onto its pictures, by label; none where no size is known.

    Raises BadImageError, which names the label, where they were drawn on another picture.
    """
    drawn = reader.manifest.lookup_drawn_size(sample_id)
    fits: dict[str, LabelFit] = {}
    for name, label in reader.spec.labels.items() if drawn is not None else ():
        if label.is_ragged and drawn is not None:
            geometry = find_label_geometry(reader, label, landed)
            try:
                read_label_rows(reader, label, sample_id, geometry)
                fits[name] = find_label_fit(drawn, geometry)
            except BadImageError as error:
                raise BadImageError(f"{name}: {error}") from error
    return fits


def format_label_fit(label: str, fit: LabelFit) -> str:
    """Formats what became of a label whose pictures have other sizes than those that it was drawn on."""
    if fit == "turned":
        return (
            f"labels.{label} was drawn on pictures as their files store them, before EXIF data turn them, so it is "
            "turned with them; streamd check counts them"
        )
    return (
        f"labels.{label} was drawn on pictures of another size, so it is scaled to the size that they have; streamd "
        "check counts them"
    )


def find_label_geometry(reader: StreamReader, label: LabelSpec, landed: SampleGeometries) -> Geometry:
    """Returns the geometry of the image that boxes or points follow."""
    return landed[label.image or next(iter(reader.spec.images))]
