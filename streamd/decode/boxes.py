"""Boxes and points of a picture in the pixels of the delivered image: mapped by its geometry, clipped, and dropped.

Pixel edges are whole numbers: an image of W pixels reaches from 0 to W. Boxes are clipped to the part of the row that
shows the picture, so none reaches into the padding of `pad`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core.spec import LabelSpec
from streamd.decode.geometry import Geometry

Rows = npt.NDArray[np.float32]

_CORNERS: Final = 4  # numbers of a box before its class
# Rounding moves an edge by less than this part of a box. A box that is wholly visible must not count as cut.
_ROUNDING: Final = 1e-6
_SLACK: Final = 0.5  # pixels by which an edge may lie outside of its picture before anybody is told


def place_label_rows(found: Rows, label: LabelSpec, geometry: Geometry, row: Rows) -> None:
    """Writes the boxes or points of one sample into `row`, (max, 5) or (max, 2), -1 where there is none.

    `found` holds them as the data do, (m, 5) or (m, 2), in the label's unit, of the upright picture of the geometry.
    """
    height, width = geometry.source
    scale = np.array([width, height], np.float64) if label.unit == "fraction" else np.ones(2)
    row[...] = label.blank_value
    if label.type == "boxes":
        corners = found[:, :_CORNERS].astype(np.float64).reshape(-1, 2) * scale
        placed = _clip_boxes(geometry.map_points(corners).reshape(-1, _CORNERS), geometry, label.min_visible)
        kept = (placed[:, 2:] > placed[:, :2]).all(axis=1)
        count = int(kept.sum())
        row[:count, :_CORNERS] = placed[kept]
        row[:count, _CORNERS:] = found[kept, _CORNERS:]
    else:
        row[: len(found)] = _hide_outside_points(geometry.map_points(found.astype(np.float64) * scale), geometry)


def find_odd_rows(found: Rows, label: LabelSpec, source: tuple[int, int]) -> tuple[int, int]:
    """Counts the boxes of a sample that have no area, and the boxes or points that reach out of their picture.

    `source` is the (height, width) of the upright picture. An edge may lie half a pixel outside, since numbers in files
    are often rounded.
    """
    height, width = source
    scale = np.array([width, height], np.float64) if label.unit == "fraction" else np.ones(2)
    corners = found[:, : len(found.T) // 2 * 2].astype(np.float64).reshape(-1, 2) * scale
    with np.errstate(invalid="ignore"):  # points that are not visible are NaN, and are nowhere
        outside = ((corners < -_SLACK) | (corners > (width + _SLACK, height + _SLACK))).any(axis=1)
    if label.type == "points":
        return 0, int(outside.sum())
    sides = corners.reshape(-1, 2, 2)
    empty = (sides[:, 1] <= sides[:, 0]).any(axis=1)
    return int(empty.sum()), int((outside.reshape(-1, 2).any(axis=1) & ~empty).sum())


def _clip_boxes(corners: npt.NDArray[np.float64], geometry: Geometry, min_visible: float) -> Rows:
    """Returns the boxes (m, 4) clipped to `place`; those that are not delivered have no area."""
    left, top, right, bottom = geometry.place
    clipped = np.clip(corners, (left, top, left, top), (right, bottom, right, bottom))
    areas, seen = (np.prod(each[:, 2:] - each[:, :2], axis=1) for each in (corners, clipped))
    clipped[seen < areas * min_visible * (1 - _ROUNDING)] = 0
    return clipped.astype(np.float32)


def _hide_outside_points(points: npt.NDArray[np.float64], geometry: Geometry) -> Rows:
    """Returns the points (m, 2), with -1, -1 for those that lie outside `place` or are NaN."""
    left, top, right, bottom = geometry.place
    # Compared as they are delivered: a point just left of the edge may be rounded onto it.
    placed = points.astype(np.float32)
    x, y = placed[:, 0], placed[:, 1]
    inside = np.asarray((x >= left) & (x < right) & (y >= top) & (y < bottom))
    return np.where(inside[:, None], placed, np.float32(-1))
