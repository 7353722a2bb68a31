"""Boxes and points beside the images of a pack: as the data have them, or as they are delivered. Pure.

Encoded files keep their own size, so their boxes stay in the pixels of the files. Decoded images have the size of the
stream, so their boxes are in its pixels. In both, a box is left, top, right, bottom and class, and a point is x, y and
whether it is visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.cli.pack.packed_rows import BoxRows
from streamd.core.permutation import Ids
from streamd.core.spec import LabelSpec
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.ragged import RaggedColumn

_CORNERS: Final = 4  # the numbers of a box before its class
_HIDDEN: Final = -1.0  # both numbers of a point that is not visible

BoxLists = list[list[list[float]]]


def list_upright_boxes(label: LabelSpec, rows: Iterable[BoxRows]) -> BoxLists:
    """Returns the boxes or points of some samples for their upright pictures, in the unit of the data."""
    return [_list_values(label, each) for each in rows]


def collect_delivered_boxes(manifest: Manifest, name: str, ids: Ids, delivered: BoxRows) -> RaggedColumn:
    """Returns the boxes or points that a batch of the samples `ids` carries, without the rows behind the last one."""
    label = manifest.labels[name]
    values = build_fixed_boxes(label, delivered)
    if label.type == "boxes":
        counts = (delivered[..., _CORNERS] >= 0).sum(axis=1)
    else:  # a hidden point keeps its place, so only the data tell how many there are
        counts = manifest.ragged_column(name)[ids].counts
    kept = np.arange(label.rows) < counts[:, None]
    return RaggedColumn(np.cumsum(counts, dtype=np.int64), values[kept])


def list_delivered_boxes(manifest: Manifest, name: str, ids: Ids, delivered: BoxRows) -> BoxLists:
    """Returns what `collect_delivered_boxes` does as lists, one for each sample."""
    return collect_delivered_boxes(manifest, name, ids, delivered).tolist()


def build_fixed_boxes(label: LabelSpec, delivered: BoxRows) -> BoxRows:
    """Returns delivered boxes with their classes as the data write them, or points with their visibility.

    Boxes are (n, max, 5), -1 where there is none; points are (n, max, 3).
    """
    if label.type == "points":
        visible = (delivered[..., :1] >= 0).astype(np.float32)
        return np.concatenate([delivered, visible], axis=-1)
    values = delivered.copy()
    there: npt.NDArray[np.bool_] = np.asarray(values[..., _CORNERS] >= 0)
    values[..., _CORNERS][there] = _convert_classes(label, values[..., _CORNERS][there])
    return values


def _list_values(label: LabelSpec, rows: BoxRows) -> list[list[float]]:
    if label.type == "points":
        visible: npt.NDArray[np.bool_] = np.asarray(~np.isnan(rows).any(axis=1))
        whole = np.where(visible[:, None], rows, np.float32(_HIDDEN))
        return np.concatenate([whole, visible[:, None].astype(np.float32)], axis=1).tolist()  # type: ignore[no-any-return]  # numbers
    classes = _convert_classes(label, rows[:, _CORNERS]).tolist()
    return [[*corners, number] for corners, number in zip(rows[:, :_CORNERS].tolist(), classes, strict=True)]


def _convert_classes(label: LabelSpec, numbers: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Returns class numbers as cells hold them: the class itself where all classes are whole numbers."""
    codes = numbers.astype(np.int64)
    if label.classes and all(isinstance(each, int) for each in label.classes):
        return np.array(label.classes, np.int64)[codes]
    return codes
