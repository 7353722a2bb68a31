"""`kind: coco`: the pictures of a COCO file in its order, also those without boxes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from streamd.core.spec import LabelSpec
from streamd.core.text import format_count
from streamd.dataset.coco import CocoSource
from streamd.dataset.files import lookup
from streamd.dataset.labels.boxes import (
    DEFAULT_BOX_LABELS,
    Objects,
    build_box_label,
    build_point_label,
    get_box_rule,
    get_own_box_rule,
)
from streamd.dataset.labels.cells import SourceRows
from streamd.dataset.labels.encode import LabelPlace, raise_collected_faults, warn_of_equal_classes
from streamd.dataset.labels.text_encoding import decode_json
from streamd.dataset.manifest.types import (
    Int64s,
    ListedValues,
    ScannedSamples,
    build_drawn_size_columns,
    build_label_key,
)
from streamd.dataset.paths.confined import format_first_names, format_path, translate_read_errors
from streamd.dataset.sources import LabelSource
from streamd.errors import ConfigError
from streamd.limits import GIB, MAX_ANNOTATION_BYTES, MAX_PIXELS


def scan_coco(
    stream: str, source: CocoSource, labels: Mapping[str, LabelSource] | None, progress: Callable[[int], None]
) -> ScannedSamples:
    """Lists the pictures of a COCO file with their boxes and points. Raises ConfigError."""
    key = f"streams.{stream}.source"
    file = CocoFile.read(source.path, f"{key}.path", keep_crowds=source.crowd == "keep")
    if not file.file_names:
        raise ConfigError(f"{key}.path: {source.path.name} lists no images; name a file of pictures with boxes")
    rows, root = SourceRows(source.path, file.format_location), lookup.resolve_root(source.root, source.path)
    values: dict[str, ListedValues] = {}
    specs: dict[str, LabelSpec] = {}
    with raise_collected_faults() as faults:
        for name, label in (DEFAULT_BOX_LABELS if labels is None else labels).items():
            with faults.collect():
                where = build_label_key(stream, name)
                if label.type not in {"boxes", "points"} or label.source not in {None, name, label.type}:
                    raise ConfigError(
                        f"{where}: a COCO file gives each picture boxes and points, not {label.source or name!r} of "
                        f"type {label.type}; use type boxes or points and leave `from` out, or kind table"
                    )
                place = LabelPlace(name, where, file.format_location)
                if label.type == "points":
                    rule, found = get_box_rule(label), file.collect_points()
                    values[name], specs[name] = build_point_label(place, rule, found)
                else:
                    own, boxes = get_own_box_rule(label, "xywh", "pixel"), file.collect_boxes()
                    values[name], specs[name] = build_box_label(place, own, boxes, file.classes)
        files = lookup.normalize_file_names(rows, pa.array(file.file_names, pa.large_string()), root, f"{key}.root")
        sizes, mtimes_ns = lookup.stat_listed_files(rows, root, files, f"{key}.root", progress)
    drawn = build_drawn_size_columns(file.drawn_sizes) if values else {}
    return ScannedSamples(root, files, sizes, mtimes_ns, values, specs, frozenset(), extra=drawn)


# --- Reads a COCO file: its pictures, its categories in the order of their ids, and what is annotated in each picture.


Identifier = int | str

_log: Final = logging.getLogger("streamd.sources")
_BOX_NUMBERS: Final = 4  # left, top, width, height
_POINT_NUMBERS: Final = 3  # x, y, and 0 for a point that is not labelled
_SHOWN_CHARS: Final = 80


class _Picture(msgspec.Struct, gc=False):
    """A picture, and the size that its objects were drawn on. Exporters leave that out, or write null or 0."""

    id: Identifier
    file_name: str
    width: Any = None
    height: Any = None

    @property
    def drawn_size(self) -> tuple[int, int]:
        """The (height, width), or (0, 0) where the file does not give both."""
        sides = [
            round(side) if type(side) in {int, float} and 0 < side <= MAX_PIXELS else 0
            for side in (self.height, self.width)
        ]
        return (sides[0], sides[1]) if all(sides) else (0, 0)


class _Category(msgspec.Struct, gc=False):
    id: Identifier
    name: str


class _Annotation(msgspec.Struct, gc=False):
    """One object in a picture. Its outline and its area are not read."""

    image_id: Identifier
    id: Identifier | None = None
    category_id: Identifier | None = None
    bbox: list[float] | None = None
    keypoints: list[float] | None = None
    iscrowd: int | bool = 0


class _AnnotationFile(msgspec.Struct):
    images: list[_Picture]
    annotations: list[_Annotation]
    categories: list[_Category]


_decoder: Final = msgspec.json.Decoder(_AnnotationFile)


class CocoFile:
    """The contents of a COCO file at `path`; `key` is the configuration key that names it."""

    def __init__(self, path: Path, key: str, contents: _AnnotationFile, *, keep_crowds: bool) -> None:
        self._name, self._key = format_path(path), key
        self.file_names = [picture.file_name for picture in contents.images]
        self.drawn_sizes = np.array([picture.drawn_size for picture in contents.images], np.int64).reshape(-1, 2)
        self._rows = self._number_identifiers([picture.id for picture in contents.images], "pictures")
        try:
            categories = sorted(contents.categories, key=lambda category: category.id)  # ids of two types raise
        except TypeError as error:
            raise ConfigError(
                f"{self._key}: {self._name} has categories whose ids are numbers and others whose ids are texts, which "
                "have no order; make all of them numbers"
            ) from error
        for what, names in (("file_name", self.file_names), ("category", [each.name for each in categories])):
            if (odd := next((name for name in names if "\0" in name), None)) is not None:
                raise ConfigError(f"{key}: {self._name} has the {what} {odd!r} with a NUL in it; correct it")
        self.classes: tuple[int | str, ...] = tuple(category.name for category in categories)
        where, ids = f"{key}: {self._name}", [category.id for category in categories]
        warn_of_equal_classes(where, "categories", self.classes, ids)
        self._classes = self._number_identifiers([category.id for category in categories], "categories")
        self._annotations = [each for each in contents.annotations if keep_crowds or not each.iscrowd]
        for each in self._annotations:
            if each.image_id not in self._rows:
                raise self._build_error(each, f"refers to image {each.image_id!r}, which is not under images")
        self._owners = np.array([self._rows[each.image_id] for each in self._annotations], np.int64)
        # A file may have been cut to a part of the annotations, so pictures without an object are counted.
        empty = np.flatnonzero(self._count_objects(self._owners) == 0).tolist()
        if empty:
            first = format_first_names(os.fsencode(self.file_names[row]) for row in empty)
            count = f"{len(empty):,} of {format_count(len(self.file_names), 'picture')} have no object"
            _log.info("%s: %s: %s: %s", self._key, self._name, count, first)

    @staticmethod
    def read(path: Path, key: str, *, keep_crowds: bool) -> CocoFile:
        """Reads the file. Raises ConfigError where it is missing, too large, or no COCO file."""
        with translate_read_errors(path, key):
            if path.is_dir():
                raise ConfigError(f"{key}: {format_path(path)} is a folder; name the file of annotations in it")
            if (size := path.stat().st_size) > MAX_ANNOTATION_BYTES:
                raise ConfigError(
                    f"{key}: {format_path(path)} has {size:,} bytes, and at most {MAX_ANNOTATION_BYTES // GIB} GiB are "
                    "read; split it into several files"
                )
            data = path.read_bytes()
        try:
            contents = decode_json(data, _decoder)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(
                f"{key}: {format_path(path)} is not a COCO file of boxes: {error}; it needs images with id and "
                "file_name, annotations with image_id, category_id and bbox, and categories with id and name"
            ) from error
        return CocoFile(path, key, contents, keep_crowds=keep_crowds)

    def format_location(self, row: int) -> str:
        """Returns where a person finds a picture: the file, and the picture's name."""
        return f"{self._name}, image {self.file_names[row]!r}"

    def collect_boxes(self) -> Objects[np.int64]:
        """Returns the boxes with their classes: left, top, width and height in pixels. Raises ConfigError."""
        for each in self._annotations:
            if each.bbox is None or len(each.bbox) != _BOX_NUMBERS:
                text = "no bbox" if each.bbox is None else f"the bbox {str(each.bbox)[:_SHOWN_CHARS]}"
                raise self._build_error(each, f"has {text}; a bbox is [left, top, width, height]")
        for each in self._annotations:
            if each.category_id not in self._classes:
                what = f"refers to category {each.category_id!r}, which is not under categories"
                raise self._build_error(each, what)
        boxes = np.array([each.bbox for each in self._annotations], np.float64).reshape(-1, _BOX_NUMBERS)
        found = [self._classes[each.category_id] for each in self._annotations if each.category_id is not None]
        codes = np.array(found, np.int64)
        order = np.argsort(self._owners, kind="stable")
        return Objects(self._count_objects(self._owners), boxes[order], codes[order])

    def collect_points(self) -> Objects[np.bool_]:
        """Returns the key points of all objects, one object after another, and which of them are labelled.

        Raises ConfigError for a list that is not made of x, y and visibility.
        """
        having = [place for place, each in enumerate(self._annotations) if each.keypoints]
        if not having:
            raise ConfigError(
                f"{self._key}: {self._name} has no keypoints, but a label of type points is asked for; name a file "
                "such as person_keypoints.json, or remove the label"
            )
        order = sorted(having, key=self._owners.__getitem__)
        lists = [self._annotations[place].keypoints or [] for place in order]
        for place, points in zip(order, lists, strict=True):
            if len(points) % _POINT_NUMBERS:
                what = f"has keypoints of {len(points)} numbers; each point is x, y and its visibility"
                raise self._build_error(self._annotations[place], what)
        lengths = np.array([len(each) // _POINT_NUMBERS for each in lists], np.int64)
        flat = np.array([number for each in lists for number in each], np.float64).reshape(-1, _POINT_NUMBERS)
        owners = np.repeat(self._owners[order], lengths)
        return Objects(self._count_objects(owners), flat[:, :2], flat[:, 2] != 0)

    def _count_objects(self, owners: Int64s) -> Int64s:
        return np.bincount(owners, minlength=len(self.file_names)).astype(np.int64)

    def _number_identifiers(self, identifiers: Sequence[Identifier], what: str) -> dict[Identifier, int]:
        """Returns the place of each id. Raises ConfigError for one that stands there twice."""
        places: dict[Identifier, int] = {}
        for place, identifier in enumerate(identifiers):
            if places.setdefault(identifier, place) != place:
                raise ConfigError(
                    f"{self._key}: {self._name} has two {what} with id {identifier!r}; give each an id of its own"
                )
        return places

    def _build_error(self, annotation: _Annotation, what: str) -> ConfigError:
        name = "an annotation" if annotation.id is None else f"annotation {annotation.id!r}"
        return ConfigError(f"{self._key}: {self._name}: {name} {what}; correct it, or remove it")
