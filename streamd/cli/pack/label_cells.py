"""The columns beside the images of a pack: each sample's labels as written in its data, its weight and its name."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.cli.pack.packed_rows import BoxRows
from streamd.core.sampler import Ids
from streamd.core.spec import LabelSpec, StreamSpec
from streamd.dataset.labels.encode import MISSING_WORDS, is_list_text, order_classes
from streamd.dataset.manifest.columns import RaggedColumn, choose_name_key, choose_unused_key
from streamd.dataset.manifest.manifest import Manifest

_WEIGHT_KEY: Final = "weight"
_CHARACTER_BYTES: Final = 4  # bytes of a character in NumPy's text arrays
CellValues = npt.NDArray[Any]


def choose_weight_key(labels: Container[str]) -> str:
    """Returns a name for the column of weights that none of these labels has."""
    return choose_unused_key(_WEIGHT_KEY, labels)


def collect_sample_cells(manifest: Manifest, ids: Ids, taken: Iterable[str] = ()) -> dict[str, CellValues]:
    """Returns the names, labels and weights (if any) of the samples `ids`, by column; see `box_values` for boxes.

    Columns are (n,) or (n, k): integers as int64, other numbers as float32, texts as str; a class as its number or
    text, as it is written in the data; tags as uint8, 1 where a sample has the class. The columns of names and of
    weights are called as neither a label nor any of `taken`.
    """
    known = {*manifest.labels, *taken}
    labels = {
        name: _convert_labels_to_cells(spec, manifest.gather_label(name, ids))
        for name, spec in manifest.labels.items()
        if not spec.is_ragged
    }
    weights = {choose_weight_key(known): manifest.gather_weights(ids)} if manifest.has_weights else {}
    names = decode_names(manifest.display_names(ids.tolist()))
    return {choose_name_key(known): names, **labels, **weights}


def decode_names(names: Sequence[bytes]) -> CellValues:
    """Decodes names to texts, (n,); bytes that are not UTF-8 are escaped, as \\xff."""
    return np.array([name.decode(errors="backslashreplace") for name in names], dtype=np.str_)


def encode_names(names: CellValues) -> CellValues:
    """Encodes names that are texts as bytes, (n,), of the width of the longest."""
    encoded: CellValues = np.char.encode(names, "utf-8")
    return encoded


def _convert_labels_to_cells(spec: LabelSpec, rows: CellValues) -> CellValues:
    if spec.type == "category":
        return build_class_array(spec)[rows]
    if spec.type == "string":
        return np.char.decode(rows, "utf-8")
    return rows


def build_class_array(spec: LabelSpec) -> CellValues:
    """Returns the classes of a category or of tags, (K,), as int64 or as texts of one width."""
    whole = all(isinstance(each, int) for each in spec.classes)
    return np.array(spec.classes, dtype=np.int64 if whole else np.str_)


def compute_text_width(spec: LabelSpec) -> int:
    """Returns the length of the longest text of a label, in characters; 0 for a label of numbers."""
    if spec.type == "category":
        classes = build_class_array(spec)
        return classes.dtype.itemsize // _CHARACTER_BYTES if classes.dtype.kind == "U" else 0
    return max(spec.text_bytes, 1) if spec.type == "string" else 0


def build_label_reading_settings(
    spec: StreamSpec, name_pattern: str = "", taken: Iterable[str] = (), *, is_delivered: bool = False
) -> dict[str, object]:
    """Returns the configuration keys that read labels and weights back, so that classes keep their numbers.

    `name_pattern` is the source of a label, with `{}` for its name; empty if the source is the label's own name.
    `taken` is that of `collect_sample_cells`. `is_delivered`: boxes and points are in pixels of the delivered image.
    """
    labels = {
        name: build_label_setting(label, name_pattern.format(name), is_delivered=is_delivered)
        for name, label in spec.labels.items()
    }
    key = choose_weight_key({*spec.labels, *taken})
    weights = {"weights": name_pattern.format(key) if name_pattern else key} if spec.weighted else {}
    return {"labels": labels, **weights}


def build_label_setting(spec: LabelSpec, label_name: str, *, is_delivered: bool = False) -> object:
    """Returns the setting of one label, read from `label_name`; empty for its own name."""
    keys: dict[str, object] = {"from": label_name} if label_name else {}
    if spec.is_ragged:
        return {"type": spec.type, **keys, **_build_box_keys(spec, is_delivered=is_delivered)}
    if spec.type == "tags" or (spec.type == "category" and not _is_class_numbering_recoverable(spec)):
        keys["classes"] = list(spec.classes)
    return {"type": spec.type, **keys} if keys else spec.type


def _build_box_keys(spec: LabelSpec, *, is_delivered: bool) -> dict[str, object]:
    """Returns the keys of boxes or points, which a pack holds as xyxy and as x and y."""
    keys: dict[str, object] = {"max": spec.rows}
    keys |= {"of": spec.image} if spec.image else {}
    keys |= {"unit": spec.unit} if spec.unit != "pixel" and not is_delivered else {}
    keys |= {"min_visible": spec.min_visible} if spec.min_visible else {}
    return keys | ({"classes": list(spec.classes)} if spec.classes else {})


def _is_class_numbering_recoverable(spec: LabelSpec) -> bool:
    """Returns whether the classes would get the same numbers from the data alone."""
    names = [str(each) for each in spec.classes]
    are_plain = not any(name.casefold() in MISSING_WORDS or is_list_text(name) for name in names)
    return all(spec.counts) and are_plain and order_classes(names) == spec.classes


# --- Boxes and points beside the images of a pack: as the data have them, or as they are delivered. Pure.
#
# Encoded files keep their own size, so their boxes stay in the pixels of the files. Decoded images have the size of
# the stream, so their boxes are in its pixels. In both, a box is left, top, right, bottom and class, and a point is x,
# y and whether it is visible.


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
