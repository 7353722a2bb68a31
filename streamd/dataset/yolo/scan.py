"""`kind: yolo`: the pictures of one part of a YOLO data set, also those without boxes.

Pictures of a folder are in byte order of their paths, those of a list file in its order.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from streamd.core.host import read_regular_file
from streamd.core.spec import LabelSpec
from streamd.dataset.files import lookup
from streamd.dataset.files.folder import FolderWalk
from streamd.dataset.labels.boxes import DEFAULT_BOX_LABELS, Objects, build_box_label, get_own_box_rule
from streamd.dataset.labels.cells import SourceRows
from streamd.dataset.labels.encode import LabelPlace
from streamd.dataset.labels.text_encoding import decode_text, split_lines
from streamd.dataset.manifest.types import Int64s, ListedValues, ScannedSamples, build_label_key
from streamd.dataset.paths.confined import (
    IMAGE_SUFFIXES,
    PROGRESS_FILES,
    ConfinedRoot,
    format_path,
    join_name,
    log_unmatched_labels,
    translate_read_errors,
)
from streamd.dataset.sources import LabelSource
from streamd.dataset.yolo import YoloSource
from streamd.dataset.yolo.data_yaml import read_data_yaml
from streamd.errors import ConfigError
from streamd.limits import MAX_LABEL_FILE_BYTES, MIB

_Listed = tuple[list[bytes], Int64s, Int64s]  # names, sizes in bytes, mtimes in ns


def scan_yolo(
    stream: str, source: YoloSource, labels: Mapping[str, LabelSource] | None, progress: Callable[[int], None]
) -> ScannedSamples:
    """Lists the pictures of a part of a YOLO data set with their boxes. Raises ConfigError."""
    key = f"streams.{stream}.source"
    data = read_data_yaml(source.path, source.part, key)
    # The pictures and labels of all parts lie below the base, unless a part lies elsewhere.
    if all(place.is_relative_to(data.base) for place in data.places):
        root = data.base
    else:
        root = Path(os.path.commonpath([_cut_at_images(place) for place in data.places]))
        if root == Path("/"):
            raise ConfigError(
                f"{key}.path: {format_path(source.path)} names {', '.join(map(format_path, data.places))}, which have "
                "no folder in common; put the pictures into one folder"
            )
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
        if label.type != "boxes" or label.source not in {None, name, "boxes"}:
            raise ConfigError(
                f"{build_label_key(stream, name)}: a YOLO data set gives each picture boxes, not "
                f"{label.source or name!r} of type {label.type}; use type boxes and leave `from` out, or kind table"
            )
    values: dict[str, ListedValues] = {}
    specs: dict[str, LabelSpec] = {}
    if wanted:
        # All labels are made of the same boxes, so the files are read once.
        reader = LabelReader(root, f"{key}.path", len(data.classes), has_points=data.has_points)
        boxes = reader.read_boxes(names, progress)
        for name, label in wanted.items():
            place = LabelPlace(name, build_label_key(stream, name), lambda row: format_path(names[row]))
            rule = get_own_box_rule(label, "cxcywh", "fraction")
            values[name], specs[name] = build_box_label(place, rule, boxes, data.classes)
    sizes, mtimes_ns = (np.concatenate([part[place] for part in parts]) for place in (1, 2))
    return ScannedSamples(root, names, sizes, mtimes_ns, values, specs, frozenset())


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
        # A list file has a path in each line.
        with translate_read_errors(place, key):
            try:
                lines = split_lines(decode_text(read_regular_file(place)))
            except UnicodeDecodeError as error:
                raise ConfigError(f"{key}: {format_path(place)} is not UTF-8 text; save the list as UTF-8") from error
        numbers = [number for number, line in enumerate(lines) if line.strip()]
        # A path that begins with ./ is relative to the list's own folder, any other one to the data set's.
        texts = [lines[number].strip() for number in numbers]
        whole = [os.path.join(place.parent if text.startswith("./") else base, text) for text in texts]  # noqa: PTH118 - pathlib would rewrite names
        rows = SourceRows(place, lambda row: f"{place.name}, line {numbers[row] + 1}")
        files = lookup.normalize_file_names(rows, pa.array(whole, pa.large_string()), root, key)
        sizes, mtimes_ns = lookup.stat_listed_files(rows, root, files, key, progress)
        return list(files), sizes, mtimes_ns
    walk = FolderWalk(key, ConfinedRoot(os.fsencode(root), key), progress)
    walk.walk_folder(os.fsencode(os.path.relpath(place, root)) if place != root else b"", ())
    walk.left_out.log_names(key)
    return walk.files, np.array(walk.sizes, np.int64), np.array(walk.mtimes_ns, np.int64)


# --- Reads the boxes of a YOLO data set: one text file a picture, one line `class cx cy width height` a box.
#
# The file of a picture has its name with the suffix .txt. It lies where the picture does, with the last folder
# `images` of the path replaced by `labels`; in a data set without such folders, beside the picture. A picture without
# a file has no boxes. A line with more numbers is the outline of an object, x and y of its corners, and gives the box
# around it; or, where the data.yaml has a kpt_shape, a box with key points behind it, which are not read.


_IMAGES, _LABELS = b"images", b"labels"
_NO_LABELS: Final = frozenset(b"classes train val valid validation test readme notes".split())  # stems of other texts
_BOX_FIELDS: Final = 5  # class, centre, width and height
_PLAIN: Final = re.compile(
    r"[!-^`-~]+"
)  # ASCII but the underscore: float() would take 1_000, and digits of other scripts
_SHOWN_CHARS: Final = 80  # of a line in a message


class LabelReader:
    """Reads label files beneath `root`; `key` is the configuration key of the source, `names` counts the classes.

    `has_points`: lines have key points behind the box.
    """

    def __init__(self, root: Path, key: str, names: int, *, has_points: bool) -> None:
        self._root, self._key, self._names = ConfinedRoot(os.fsencode(root), key), key, names
        self._has_points = has_points
        self._folders: dict[bytes, bytes] = {}  # each folder of labels with its links followed
        self._numbers: list[list[float]] = []
        self._classes: list[int] = []

    def read_boxes(self, pictures: Sequence[bytes], progress: Callable[[int], None]) -> Objects[np.int64]:
        """Reads the boxes of `pictures`, names relative to the root. Raises ConfigError, naming file and line.

        Raises it also where not one picture has a file of labels.
        """
        for find_name in (find_label_name, find_label_name_beside):
            names = [find_name(picture) for picture in pictures]
            counts = [self._read_file(name, progress, place) for place, name in enumerate(names)]
            if any(count is not None for count in counts):
                owners = dict(zip(names, pictures, strict=True))
                lone = {name: owners[name] for name, count in zip(names, counts, strict=True) if count is None}
                unmatched = self._list_unmatched_files(owners)
                log_unmatched_labels(self._key, unmatched, lone, len(pictures))
                found = np.array([count or 0 for count in counts], np.int64)
                numbers = np.array(self._numbers, np.float64).reshape(-1, _BOX_FIELDS - 1)
                return Objects(found, numbers, np.array(self._classes, np.int64))
        raise ConfigError(
            f"{self._key}: none of {len(pictures):,} pictures has a file of labels, such as "
            f"{format_path(self._root.join_path(find_label_name(pictures[0])))}; put the labels there, or write "
            "labels: {} to serve the pictures alone"
        )

    def _list_unmatched_files(self, owners: Mapping[bytes, bytes]) -> list[bytes]:
        """Returns the files of labels, in the folders of those of the pictures, whose picture is not there.

        `owners` has the picture of each file of labels. Files of pictures that are there, and in no list, are none.
        """
        stems: dict[bytes, set[bytes]] = {}  # of the pictures that are there, by the folder of their files of labels
        for label_folder, folder in {(posixpath.dirname(name), posixpath.dirname(owners[name])) for name in owners}:
            pictures = (name for name in self._list_names(folder) if name.lower().endswith(IMAGE_SUFFIXES))
            stems.setdefault(label_folder, set()).update(name.rpartition(b".")[0] for name in pictures)
        found = []
        for folder, known in sorted(stems.items()):
            for name in sorted(self._list_names(folder)):
                stem, _, suffix = name.rpartition(b".")
                is_label = suffix.lower() == b"txt" and stem.lower() not in _NO_LABELS and name[:1] != b"."
                if is_label and join_name(folder, name) not in owners and (suffix != b"txt" or stem not in known):
                    found.append(join_name(folder, name))
        return found

    def _list_names(self, folder: bytes) -> list[bytes]:
        try:
            return os.listdir(self._root.join_path(folder))  # noqa: PTH208 - names are bytes, which pathlib does not take
        except OSError:  # a folder that is not there holds none, and one that cannot be read has been refused
            return []

    def _read_file(self, name: bytes, progress: Callable[[int], None], place: int) -> int | None:
        """Adds the boxes of a file. Returns their number; None if there is no such file."""
        if place % PROGRESS_FILES == 0:
            progress(place)
        # The links of the folder are followed, so that no label lies outside the root.
        folder, _, file_name = name.rpartition(b"/")
        if folder not in self._folders:
            self._folders[folder] = self._root.resolve_name(folder)
        found = self._root.stat_file(posixpath.join(self._folders[folder], file_name))
        if found is None:
            return None
        path = self._root.join_path(found[0])
        if found[1].st_size > MAX_LABEL_FILE_BYTES:
            raise ConfigError(
                f"{self._key}: {format_path(path)} has more than {MAX_LABEL_FILE_BYTES // MIB} MiB, so it holds no "
                "labels of one picture; remove or correct it"
            )
        with translate_read_errors(path, self._key):
            data = Path(os.fsdecode(path)).read_bytes()
        try:
            text = decode_text(data)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self._key}: {format_path(path)} is not UTF-8 text; save it as UTF-8") from error
        before = len(self._classes)
        for number, line in enumerate(split_lines(text), 1):
            if fields := line.split():
                self._add_line(fields, path, number)
        return len(self._classes) - before

    def _add_line(self, fields: Sequence[str], path: bytes, line: int) -> None:
        if not all(map(_PLAIN.fullmatch, fields)):
            raise self._build_line_error(fields, path, line, "which are not all numbers")
        try:
            code, *numbers = map(float, fields)
        except ValueError as error:
            raise self._build_line_error(fields, path, line, "which are not all numbers") from error
        if not np.isfinite(numbers).all():
            raise self._build_line_error(fields, path, line, "which are not all finite numbers")
        if not (code.is_integer() and 0 <= code < self._names):
            what = f"but class {code:g} is not one of the {self._names} names of the data.yaml, counted from 0"
            raise self._build_line_error(fields, path, line, what)
        if len(numbers) == _BOX_FIELDS - 1 or (self._has_points and len(numbers) >= _BOX_FIELDS):
            box = list(numbers[: _BOX_FIELDS - 1])
        elif len(numbers) < _BOX_FIELDS or len(numbers) % 2:
            box = None
        else:
            xs, ys = numbers[::2], numbers[1::2]
            left, right, top, bottom = min(xs), max(xs), min(ys), max(ys)
            box = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
        if box is None:
            raise self._build_line_error(fields, path, line, "but a box is: class, centre x and y, width, height")
        self._classes.append(int(code))
        self._numbers.append(box)

    def _build_line_error(self, fields: Sequence[str], path: bytes, line: int, why: str) -> ConfigError:
        text = " ".join(fields)[:_SHOWN_CHARS]
        return ConfigError(f"{self._key}: {format_path(path)}, line {line}, holds {text!r}, {why}; correct it")


def find_label_name(picture: bytes) -> bytes:
    """Returns the name of a picture's label file: with the last folder `images` of its path replaced by `labels`."""
    folders = picture.split(b"/")[:-1]
    if _IMAGES in folders:
        folders[len(folders) - 1 - folders[::-1].index(_IMAGES)] = _LABELS
    stem = picture.rpartition(b"/")[2].rpartition(b".")[0]
    return b"/".join([*folders, stem + b".txt"])


def find_label_name_beside(picture: bytes) -> bytes:
    """Returns the name of a label file that lies in the same folder as its picture."""
    return picture.rpartition(b".")[0] + b".txt"
