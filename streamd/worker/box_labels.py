"""Writes the boxes and points of samples beside their images, where the geometry of each image puts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import Ids
from streamd.core.spec import ImageSpec, LabelSpec
from streamd.dataset.manifest.manifest import Manifest
from streamd.decode.boxes import place_label_rows
from streamd.decode.geometry import Geometry

Geometries = Mapping[int, Geometry]  # of the samples of a task that have pixels, by their place in the task


def build_box_label(manifest: Manifest, label: LabelSpec, ids: Ids, geometries: Geometries) -> npt.NDArray[np.float32]:
    """Returns the boxes or points of the samples `ids`, (len(ids), max, 5) or (len(ids), max, 2).

    Rows without a geometry, which hold no sample, are -1.
    """
    rows = np.full((len(ids), *label.shape), label.blank_value, label.dtype)
    column = manifest.ragged_column(label.name)
    for place, geometry in geometries.items():
        place_label_rows(column.read_sample(int(ids[place])), label, geometry, rows[place])
    return rows


def build_stored_geometry(image: ImageSpec) -> Geometry:
    """Returns the geometry of rows of arrays, which are served as they are."""
    size = image.height, image.width
    whole = 0, 0, image.width, image.height
    return Geometry(size, whole, size, whole)


def build_stored_geometries(image: ImageSpec, is_gathered: Sequence[bool]) -> dict[int, Geometry]:
    """Returns the geometries of the rows that were copied from arrays."""
    stored = build_stored_geometry(image)
    return {place: stored for place, is_there in enumerate(is_gathered) if is_there}
