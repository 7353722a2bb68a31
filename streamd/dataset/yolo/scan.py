"""`kind: yolo`: the pictures of one part of a YOLO data set, also those without boxes.

Pictures of a folder are in byte order of their paths, those of a list file in its order.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from streamd.core.host import read_regular_file
from streamd.core.spec import LabelSpec
from streamd.dataset.files import lookup
from streamd.dataset.files.folder import FolderWalk, log_left_out_names
from streamd.dataset.labels.boxes import DEFAULT_BOX_LABELS, build_box_label, get_own_box_rule
from streamd.dataset.labels.cells import SourceRows
from streamd.dataset.labels.text_encoding import decode_text, split_lines
from streamd.dataset.manifest.ragged import RaggedColumn
from streamd.dataset.manifest.types import Int64s, ListedValues, ScannedSamples, build_label_key
from streamd.dataset.paths.confined import IMAGE_SUFFIXES, ConfinedRoot, format_path, translate_read_errors
from streamd.dataset.sources import LabelSource
from streamd.dataset.yolo import YoloSource
from streamd.dataset.yolo.data_yaml import YoloData, read_data_yaml
from streamd.dataset.yolo.label_files import LabelReader, YoloBoxes
from streamd.errors import ConfigError

_Listed = tuple[list[bytes], Int64s, Int64s]  # names, sizes in bytes, mtimes in ns


def scan_yolo(
    stream: str, source: YoloSource, labels: Mapping[str, LabelSource] | None, progress: Callable[[int], None]
) -> ScannedSamples:
    """Lists the pictures of a part of a YOLO data set with their boxes. Raises ConfigError."""
    key = f"streams.{stream}.source"
    data = read_data_yaml(source.path, source.part, key)
    root = _choose_root(data, source.path, f"{key}.path")
    where = f"{key}.path: {format_path(source.path)}"
    parts = [_list_place(place, data.base, root, where, progress) for place in data.places]
    names = [name for part in parts for name in part[0]]
    if not names:
        places = ", ".join(map(format_path, data.places))
        raise ConfigError(
            f"{key}.path: no images in {places}; looked for {b' '.join(IMAGE_SUFFIXES).decode()}: correct "
            f"{format_path(source.path)}, or put images there"
        )
    wanted = DEFAULT_BOX_LABELS if labels is None else labels
    for name, label in wanted.items():
        _check_label(name, label, build_label_key(stream, name))
    values: dict[str, ListedValues] = {}
    specs: dict[str, LabelSpec] = {}
    if wanted:
        # All labels are made of the same boxes, so the files are read once.
        reader = LabelReader(root, f"{key}.path", len(data.classes), has_points=data.has_points)
        boxes = reader.read_boxes(names, progress)
        for name, label in wanted.items():
            values[name], specs[name] = _build_label(name, label, boxes, data, names, build_label_key(stream, name))
    sizes, mtimes_ns = (np.concatenate([part[place] for part in parts]) for place in (1, 2))
    return ScannedSamples(root, names, sizes, mtimes_ns, values, specs, frozenset())


def _check_label(name: str, label: LabelSource, key: str) -> None:
    if label.type != "boxes" or label.source not in {None, name, "boxes"}:
        raise ConfigError(
            f"{key}: a YOLO data set gives each picture boxes, not {label.source or name!r} of type {label.type}; use "
            "type boxes and leave `from` out, or kind table"
        )


def _build_label(
    name: str, label: LabelSource, boxes: YoloBoxes, data: YoloData, names: Sequence[bytes], key: str
) -> tuple[RaggedColumn, LabelSpec]:
    rule = get_own_box_rule(label, "cxcywh", "fraction")
    found = boxes.counts, boxes.numbers, boxes.classes
    return build_box_label(name, rule, found, data.classes, lambda row: format_path(names[row]), key)


def _choose_root(data: YoloData, path: Path, key: str) -> Path:
    """Returns the folder that all pictures and labels lie in: the base, unless a part lies elsewhere."""
    if all(place.is_relative_to(data.base) for place in data.places):
        return data.base
    root = Path(os.path.commonpath([_cut_at_images(place) for place in data.places]))
    if root == Path("/"):
        raise ConfigError(
            f"{key}: {format_path(path)} names {', '.join(map(format_path, data.places))}, which have no folder in "
            "common; put the pictures into one folder"
        )
    return root


def _cut_at_images(place: Path) -> Path:
    """Returns the folder that holds the folders of pictures and of labels: the one above the last `images`."""
    folders = place.parts
    if "images" not in folders:
        return place if place.is_dir() else place.parent
    return Path(*folders[: len(folders) - 1 - folders[::-1].index("images")])


def _list_place(place: Path, base: Path, root: Path, key: str, progress: Callable[[int], None]) -> _Listed:
    """Lists the pictures of a folder, or of a list file with a path in each line."""
    with translate_read_errors(place, key):
        is_folder = stat.S_ISDIR(place.stat().st_mode)
    if not is_folder:
        return _list_named_pictures(place, base, root, key, progress)
    walk = FolderWalk(key, ConfinedRoot(os.fsencode(root), key), progress)
    walk.walk_folder(os.fsencode(os.path.relpath(place, root)) if place != root else b"", ())
    log_left_out_names(walk)
    return walk.files, np.array(walk.sizes, np.int64), np.array(walk.mtimes_ns, np.int64)


def _list_named_pictures(path: Path, base: Path, root: Path, key: str, progress: Callable[[int], None]) -> _Listed:
    with translate_read_errors(path, key):
        try:
            lines = split_lines(decode_text(read_regular_file(path)))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{key}: {format_path(path)} is not UTF-8 text; save the list as UTF-8") from error
    numbers = [number for number, line in enumerate(lines) if line.strip()]
    # A path that begins with ./ is relative to the list's own folder, any other one to the data set's.
    texts = [lines[number].strip() for number in numbers]
    whole = [os.path.join(path.parent if text.startswith("./") else base, text) for text in texts]  # noqa: PTH118 - pathlib would rewrite names
    rows = SourceRows(path, lambda row: f"{path.name}, line {numbers[row] + 1}")
    files = lookup.normalize_file_names(rows, pa.array(whole, pa.large_string()), root, key)
    sizes, mtimes_ns = lookup.stat_listed_files(rows, root, files, key, progress)
    return list(files), sizes, mtimes_ns
