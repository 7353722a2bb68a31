"""Boxes and points of a picture in the pixels of the delivered image: mapped by its geometry, clipped, and dropped.

Pixel edges are whole numbers: an image of W pixels reaches from 0 to W. Boxes are clipped to the part of the row that
shows the picture, so none reaches into the padding of `pad`.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from streamd.core.spec import LabelSpec
from streamd.decode.geometry import Geometry, Size, are_in_proportion
from streamd.decode.resize import BadImageError

LabelFit = Literal["same", "scaled", "turned"]
Rows = npt.NDArray[np.float32]

_CORNERS: Final = 4  # numbers of a box before its class
# Rounding moves an edge by less than this part of a box. A box that is wholly visible must not count as cut.
_ROUNDING: Final = 1e-6
_CROWD: Final = 8  # boxes of one picture that lie in one quarter by chance once in 65,000 pictures
_SLACK: Final = 0.5  # pixels by which an edge may lie outside of its picture before anybody is told


def place_label_rows(found: Rows, label: LabelSpec, geometry: Geometry, row: Rows) -> None:
    """Writes the boxes or points of one sample into `row`, (max, 5) or (max, 2), -1 where there is none.

    `found` holds them as the data do, (m, 5) or (m, 2), in the label's unit, of the upright picture of the geometry.
    """
    height, width = geometry.source
    scale = np.array([width, height], np.float64) if label.unit == "fraction" else np.ones(2)
    left, top, right, bottom = geometry.place
    row[...] = label.blank_value
    if label.type == "boxes":
        corners = found[:, :_CORNERS].astype(np.float64).reshape(-1, 2) * scale
        whole = geometry.map_points(corners).reshape(-1, _CORNERS)
        # Clipped to the part that shows the picture; boxes that are not delivered have no area.
        clipped = np.clip(whole, (left, top, left, top), (right, bottom, right, bottom))
        areas, seen = (np.prod(each[:, 2:] - each[:, :2], axis=1) for each in (whole, clipped))
        clipped[seen < areas * label.min_visible * (1 - _ROUNDING)] = 0
        placed = clipped.astype(np.float32)
        kept = (placed[:, 2:] > placed[:, :2]).all(axis=1)
        count = int(kept.sum())
        row[:count, :_CORNERS] = placed[kept]
        row[:count, _CORNERS:] = found[kept, _CORNERS:]
    else:
        # Compared as they are delivered: a point just left of the edge may be rounded onto it. NaN is never inside.
        placed = geometry.map_points(found.astype(np.float64) * scale).astype(np.float32)
        x, y = placed[:, 0], placed[:, 1]
        inside = (x >= left) & (x < right) & (y >= top) & (y < bottom)
        row[: len(found)] = np.where(inside[:, None], placed, np.float32(-1))


def find_label_fit(drawn: Size, geometry: Geometry) -> LabelFit:
    """Returns how labels that were drawn on a picture of size `drawn` come onto the upright picture of `geometry`.

    They may have been drawn on the upright picture or on the picture as its file stores it, each larger or smaller.
    Raises BadImageError if they were drawn on another one, or if both may be meant. A picture that is turned by half or
    mirrored, or is square, has one size both ways: labels are those of the upright one then.
    """
    upright, stored = geometry.source, geometry.stored_size
    if drawn == upright:
        return "same"
    if drawn == stored:
        return "turned"
    fits_upright, fits_stored = are_in_proportion(drawn, upright), are_in_proportion(drawn, stored)
    if upright != stored and fits_upright and fits_stored:
        fault = "may be meant for it as it is stored or as it is turned upright"
    elif fits_upright:
        return "scaled"
    elif fits_stored:
        return "turned"
    else:
        fault = "has other proportions"
    raise BadImageError(_format_unfit_size(drawn, geometry, fault))


def align_label_rows(found: Rows, label: LabelSpec, drawn: Size | None, geometry: Geometry) -> Rows:
    """Returns boxes or points for the upright picture of `geometry`: as they are, or scaled and turned.

    `drawn` is the size of the picture that they were drawn on, if the data say it. Raises BadImageError where that is
    another picture; see `find_label_fit`.
    """
    if drawn is None or label.unit == "fraction" or (fit := find_label_fit(drawn, geometry)) == "same":
        return found
    corners = 2 if label.type == "boxes" else 1
    points = found[:, : 2 * corners].astype(np.float64).reshape(-1, 2)
    if _reaches_out(points, drawn) and not _reaches_out(points, geometry.source):
        raise BadImageError(
            _format_unfit_size(drawn, geometry, "is too small for them, and that of the picture is not")
        )
    if fit == "turned":
        # The quarter turn of its orientation, 5 to 8.
        across, down = points[:, 0], points[:, 1]
        x = drawn[0] - down if geometry.orientation in {6, 7} else down
        y = drawn[1] - across if geometry.orientation in {7, 8} else across
        points, drawn = np.stack([x, y], axis=1), drawn[::-1]
    points *= np.array([geometry.source[1] / drawn[1], geometry.source[0] / drawn[0]])
    if label.type == "boxes":  # a turn makes other corners the first and the last
        pairs = points.reshape(-1, 2, 2)
        points = np.concatenate([pairs.min(axis=1), pairs.max(axis=1)], axis=1)
    return np.concatenate([points.reshape(len(found), -1), found[:, 2 * corners :]], axis=1).astype(np.float32)


def _reaches_out(points: npt.NDArray[np.float64], size: Size) -> bool:
    return bool((points > (size[1] + _SLACK, size[0] + _SLACK)).any())  # points that are not visible are NaN


def _format_unfit_size(drawn: Size, geometry: Geometry, fault: str) -> str:
    height, width = geometry.stored_size
    turned = " before its EXIF data turn it" if geometry.stored_size != geometry.source else ""
    return (
        f"its labels were drawn on {drawn[1]}x{drawn[0]} pixels, width x height, but the picture has "
        f"{width}x{height}{turned}: the size in the data {fault}; correct or remove it"
    )


def find_odd_rows(found: Rows, label: LabelSpec, source: Size) -> dict[str, int]:
    """Counts what is odd about the boxes or points of a sample; `source` is the (height, width) of the upright picture.

    `empty` boxes have no area, and `outside` boxes or points reach out of the picture; an edge may lie half a pixel
    outside, since numbers in files are often rounded. `filled` is 1 if there are any, `cornered` if all of these lie in
    the top left quarter, and `crowded` if these are so many that it is no chance.
    """
    height, width = source
    scale = np.array([width, height], np.float64) if label.unit == "fraction" else np.ones(2)
    corners = found[:, : len(found.T) // 2 * 2].astype(np.float64).reshape(-1, 2) * scale
    seen = ~np.isnan(corners).any(axis=1)  # points that are not visible are NaN, and are nowhere
    outside = seen & ((corners < -_SLACK) | (corners > (width + _SLACK, height + _SLACK))).any(axis=1)
    cornered = bool(seen.any()) and bool((corners[seen] <= (width / 2, height / 2)).all())
    odd = {
        "filled": int(seen.any()),
        "cornered": int(cornered),
        "crowded": int(cornered and len(found) >= _CROWD),
        "outside": int(outside.sum()),
    }
    if label.type == "points":
        return odd
    sides = corners.reshape(-1, 2, 2)
    empty = (sides[:, 1] <= sides[:, 0]).any(axis=1)
    return odd | {"empty": int(empty.sum()), "outside": int((outside.reshape(-1, 2).any(axis=1) & ~empty).sum())}
