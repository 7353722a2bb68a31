"""The columns beside the images of a pack: each sample's labels as written in its data, its weight and its name."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import Ids
from streamd.core.spec import LabelSpec, StreamSpec
from streamd.dataset.labels.encode import MISSING_WORDS, is_list_text, order_classes
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.packed_names import choose_name_key, choose_unused_key

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
