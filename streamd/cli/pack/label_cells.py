"""The columns beside the images of a pack: each sample's labels as written in its data, its weight and its name."""

from __future__ import annotations

import io
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel
from ruamel.yaml import YAML

from streamd.cli.pack.batches import BoxRows
from streamd.config.schema import StreamConfig
from streamd.core.sampler import Ids
from streamd.core.spec import ONLY_IMAGE, ImageSpec, LabelSpec, StreamSpec
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
    cells: dict[str, CellValues] = {}
    for name, spec in manifest.labels.items():
        if spec.is_ragged:
            continue
        rows = manifest.gather_label(name, ids)
        if spec.type == "category":
            cells[name] = build_class_array(spec)[rows]
        else:
            cells[name] = np.char.decode(rows, "utf-8") if spec.type == "string" else rows
    weights = {choose_weight_key(known): manifest.gather_weights(ids)} if manifest.has_weights else {}
    names = decode_names(manifest.display_names(ids.tolist()))
    return {choose_name_key(known): names, **cells, **weights}


def decode_names(names: Sequence[bytes]) -> CellValues:
    """Decodes names to texts, (n,); bytes that are not UTF-8 are escaped, as \\xff."""
    return np.array([name.decode(errors="backslashreplace") for name in names], dtype=np.str_)


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
    # Boxes or points, which a pack holds as xyxy and as x and y.
    if spec.is_ragged:
        keys = {"type": spec.type, **keys, "max": spec.rows}
        keys |= {"of": spec.image} if spec.image else {}
        keys |= {"unit": spec.unit} if spec.unit != "pixel" and not is_delivered else {}
        keys |= {"min_visible": spec.min_visible} if spec.min_visible else {}
        return keys | ({"classes": list(spec.classes)} if spec.classes else {})
    # Classes are listed unless they would get the same numbers from the data alone.
    names = [str(each) for each in spec.classes]
    are_plain = not any(name.casefold() in MISSING_WORDS or is_list_text(name) for name in names)
    is_recoverable = all(spec.counts) and are_plain and order_classes(names) == spec.classes
    if spec.type == "tags" or (spec.type == "category" and not is_recoverable):
        keys["classes"] = list(spec.classes)
    return {"type": spec.type, **keys} if keys else spec.type


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
    found: BoxLists = []
    for each in rows:
        if label.type == "points":
            visible: npt.NDArray[np.bool_] = np.asarray(~np.isnan(each).any(axis=1))
            whole = np.where(visible[:, None], each, np.float32(_HIDDEN))
            found.append(np.concatenate([whole, visible[:, None].astype(np.float32)], axis=1).tolist())
        else:
            classes = _convert_classes(label, each[:, _CORNERS]).tolist()
            corners = each[:, :_CORNERS].tolist()
            found.append([[*place, number] for place, number in zip(corners, classes, strict=True)])
    return found


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


def _convert_classes(label: LabelSpec, numbers: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Returns class numbers as cells hold them: the class itself where all classes are whole numbers."""
    codes = numbers.astype(np.int64)
    if label.classes and all(isinstance(each, int) for each in label.classes):
        return np.array(label.classes, np.int64)[codes]
    return codes


# --- Formats the part of a configuration that serves a pack.


_KEPT_SETTINGS: Final = ("batch_size", "drop_remainder", "shuffle", "normalize", "transform", "bad_samples")
_INDEX_FILLS: Final = {"uint8": 255, "uint16": 65535}  # the configuration's defaults
_ENTRY_MODES: Final = frozenset({"index", "RGBA"})  # of arrays, these are served by `images` only
_WIDTH_CHARS: Final = 4096  # a line is broken only beyond any path's length


def format_yaml(settings: Mapping[str, object]) -> str:
    """Formats `settings` as YAML; a value without nested mappings or lists is in one line."""
    yaml = YAML()
    yaml.default_flow_style = None
    yaml.width = _WIDTH_CHARS
    text = io.StringIO()
    yaml.dump(dict(settings), text)
    return text.getvalue()


def collect_kept_settings(stream: StreamConfig) -> dict[str, object]:
    """Returns the stream's settings that a pack does not change, and without which a training would differ."""
    kept = {key: getattr(stream, key) for key in _KEPT_SETTINGS if key in stream.model_fields_set}
    return {
        key: value.model_dump(mode="json", by_alias=True, exclude_unset=True) if isinstance(value, BaseModel) else value
        for key, value in kept.items()
    }


def is_only_image(spec: StreamSpec) -> bool:
    """Whether samples have one image that `image` describes, and not an entry of `images`."""
    return spec.images.keys() == {ONLY_IMAGE}


def build_decoded_pack_settings(
    source: object,
    spec: StreamSpec,
    name_pattern: str = "",
    places: Mapping[str, str | None] | None = None,
    taken: Iterable[str] = (),
) -> dict[str, object]:
    """Returns the keys of a stream that serve a pack of decoded images; see `build_label_reading_settings`.

    `places` has the value of `from` for each of several images, None for one that is the source's own.
    """
    labels = build_label_reading_settings(spec, name_pattern, taken, is_delivered=True)
    # Decoded images have the size of the stream.
    if is_only_image(spec) and spec.image.mode not in _ENTRY_MODES:
        return {"source": source, **labels, "image": {"size": "stored", **_build_number_keys(spec.image, spec)}}
    images = {}
    for name, image in spec.images.items():
        place = (places or {}).get(name)
        size = {"size": [image.height, image.width]}
        images[name] = {**({} if place is None else {"from": place}), **size, **_build_number_keys(image, spec)}
    return {"source": source, **labels, "images": images}


def build_encoded_image_settings(
    spec: StreamSpec, suffixes: Mapping[str, str] | None, *, is_delivered: bool = False
) -> dict[str, object]:
    """Returns `image:` for a pack of encoded images, the same as the stream's; with `suffixes` their `images:`.

    `is_delivered`: the images have the size of the stream already.
    """
    keys: dict[str, dict[str, object]] = {}
    for name, image in spec.images.items():
        numbers, size = _build_number_keys(image, spec), [image.height, image.width]
        if is_delivered:
            keys[name] = {"size": size, **numbers}
        elif image.like is not None:
            other = spec.images[image.like]
            own = {} if size == [other.height, other.width] else {"size": size}
            keys[name] = {"like": image.like, **own, **numbers}
        else:
            resize = {} if image.resize == "stretch" else {"resize": image.resize}
            exact = {"exact": True} if image.exact else {}
            drawn = {"scale": list(image.scale), "ratio": list(image.ratio)} if image.resize == "random_crop" else {}
            keys[name] = {"size": size, **numbers, **resize, **exact, **drawn}
    if suffixes is None:
        return {"image": keys[ONLY_IMAGE]}
    return {"images": {name: {"from": suffixes[name], **own} for name, own in keys.items()}}


def _build_number_keys(image: ImageSpec, spec: StreamSpec) -> dict[str, object]:
    """Returns what the numbers of an image are: mode, channels, dtype, range, fill, and a normalize of its own."""
    mode = image.mode
    keys: dict[str, object] = {} if mode == "RGB" else {"mode": mode}
    keys |= {"channels": image.channels} if mode == "raw" else {}
    keys |= {"dtype": image.dtype} if image.dtype != "uint8" else {}
    keys |= {} if image.range is None else {"range": list(image.range)}
    keys |= {} if image.fill == (_INDEX_FILLS[image.dtype] if mode == "index" else 0) else {"fill": image.fill}
    if mode != "index" and image.normalize != spec.normalize:
        keys["normalize"] = image.normalize if isinstance(image.normalize, str) else dict(image.normalize)
    return keys
