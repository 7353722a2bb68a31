"""Writes the boxes and points of samples beside their images, where the geometry of each image puts them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import Ids
from streamd.core.slot_layout import build_blank_label
from streamd.core.spec import LabelSpec
from streamd.decode.boxes import place_label_rows
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
    column = reader.manifest.ragged_column(label.name)
    for place, geometries in landed.items():
        geometry = find_label_geometry(reader, label, geometries)
        place_label_rows(column.read_sample(int(ids[place])), label, geometry, rows[place])
    return rows


def find_label_geometry(reader: StreamReader, label: LabelSpec, landed: SampleGeometries) -> Geometry:
    """Returns the geometry of the image that boxes or points follow."""
    return landed[label.image or next(iter(reader.spec.images))]
