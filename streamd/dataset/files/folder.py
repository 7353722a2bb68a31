"""`kind: folder`: one sub-folder a class, or a flat folder of images without labels.

Samples are in byte order of class and file name. Hidden names are ignored, other than image files skipped and counted.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from streamd.core.spec import LabelSpec
from streamd.core.text import format_count
from streamd.dataset.files import FolderSource
from streamd.dataset.labels import encode as labelling
from streamd.dataset.manifest.types import Int64s, ListedValues, Scanned
from streamd.dataset.paths.confined import IMAGE_SUFFIXES, PROGRESS_FILES, Fence, join, reading, shown, some
from streamd.dataset.sources import LabelSource
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")
_SHOWN_SUFFIXES: Final = 5  # in a message
_OF_ARCHIVES: Final = b"__MACOSX"  # a folder that archives made on a Mac bring along, and no class


@dataclass(slots=True)
class _Walk:
    """One pass over a folder, in order, and all that it has seen."""

    where: str
    fence: Fence
    progress: Callable[[int], None]
    files: list[bytes] = field(default_factory=list)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    mtimes_ns: array[int] = field(default_factory=lambda: array("q"))
    skipped: Counter[str] = field(default_factory=Counter)  # other files, by suffix
    gone: list[bytes] = field(default_factory=list)  # files and folders that were removed since they were listed

    def entries(self, folder: bytes) -> tuple[list[bytes], list[bytes]]:
        """The names of the sub-folders and of the images in `folder`, sorted; other files are counted.

        Raises OSError.
        """
        folders: list[bytes] = []
        images: list[bytes] = []
        with os.scandir(self.fence.path(folder)) as listing:
            for entry in listing:
                if entry.name.startswith(b"."):
                    continue
                if entry.name == _OF_ARCHIVES:
                    self.skipped[os.fsdecode(_OF_ARCHIVES)] += 1
                elif entry.is_dir():
                    folders.append(entry.name)
                elif entry.name.lower().endswith(IMAGE_SUFFIXES):
                    images.append(entry.name)
                else:
                    self.skipped[Path(os.fsdecode(entry.name)).suffix or "no suffix"] += 1
        return sorted(folders), sorted(images)

    def take(self, name: bytes) -> None:
        """Notes one image."""
        found = self.fence.stat(name)
        if found is None:
            if self.fence.is_link(name):
                raise ConfigError(
                    f"{self.where}: the link {shown(self.fence.path(name))} leads nowhere; remove or mend it"
                )
            self.gone.append(name)
            return
        self.files.append(found[0])
        self.sizes.append(found[1].st_size)
        self.mtimes_ns.append(found[1].st_mtime_ns)
        if len(self.files) % PROGRESS_FILES == 0:
            self.progress(len(self.files))

    def descend(self, folder: bytes, above: tuple[bytes, ...]) -> None:
        """Takes all images in and under `folder` in byte order of their paths; `above` are the folders it lies in."""
        inside = self.fence.inside(folder)
        if inside in above:
            raise ConfigError(
                f"{self.where}: the link {shown(self.fence.path(folder))} leads back to "
                f"{shown(self.fence.path(inside))}, which it lies in; remove it"
            )
        with reading(self.fence.path(inside), self.where):
            try:
                found = self.entries(inside)
            except FileNotFoundError:
                self.gone.append(folder)
                return
        self.take_all(inside, *found, above)

    def take_all(self, inside: bytes, folders: list[bytes], images: list[bytes], above: tuple[bytes, ...]) -> None:
        """Takes what `entries` found in the folder `inside`, and all images under it."""
        for name in sorted([*images, *(folder + b"/" for folder in folders)]):
            if name.endswith(b"/"):
                self.descend(join(inside, name[:-1]), (*above, inside))
            else:
                self.take(join(inside, name))


def scan_folder(
    stream: str, source: FolderSource, labels: Mapping[str, LabelSource] | None, progress: Callable[[int], None]
) -> Scanned:
    """Lists the images of a folder; the names of its sub-folders, if it has any, become the one label.

    Without labels, `labels` being empty, images may lie at any depth.
    """
    where = f"streams.{stream}.source.path"
    root = Path(os.path.abspath(source.path))  # noqa: PTH100 - resolve() would follow the links of the user's own choice
    walk = _Walk(where, Fence(os.fsencode(root), where), progress)
    with reading(root, where):
        if root.is_file():
            raise ConfigError(
                f"{where}: {shown(root)} is a file; kind folder wants a folder, a list of files is kind table"
            )
        seen = root.stat()
        folders, images = walk.entries(b"")
    classes = folders if labels is None or labels else []
    if classes and images:
        raise _both(where, root, folders, images)
    counts = {folder: _take_class(walk, folder) for folder in classes}
    if not classes:
        walk.take_all(b"", folders, images, ())
    if walk.gone:
        _check_root(walk, root, seen)
        classes = [folder for folder in classes if folder not in set(walk.gone)]
    progress(len(walk.files))
    _report(walk, root, len(folders), [folder for folder in classes if not counts[folder]])
    texts = [_text(where, folder) for folder in classes]
    values, specs, fixed = _labels(stream, texts, [counts[folder] for folder in classes], labels or {})
    sizes, mtimes_ns = np.array(walk.sizes, dtype=np.int64), np.array(walk.mtimes_ns, dtype=np.int64)
    return Scanned(root, walk.files, sizes, mtimes_ns, values, specs, fixed)


def _both(where: str, root: Path, folders: list[bytes], images: list[bytes]) -> ConfigError:
    return ConfigError(
        f"{where}: {shown(root)} holds {len(images)} images ({some(images)}) beside "
        f"{len(folders)} sub-folders ({some(folders)}); a folder is either flat or has one sub-folder a class: "
        "move the images into sub-folders, or the sub-folders elsewhere, or write labels: {} to take all images as "
        "they are, without labels"
    )


def _take_class(walk: _Walk, folder: bytes) -> int:
    before = len(walk.files)
    walk.descend(folder, (b"",))
    return len(walk.files) - before


def _check_root(walk: _Walk, root: Path, seen: os.stat_result) -> None:
    """Raises ConfigError where it is not single files that are gone, but the folder itself, as after an unmount."""
    with reading(root, walk.where):
        found = root.stat()
    if (found.st_dev, found.st_ino) != (seen.st_dev, seen.st_ino):
        raise ConfigError(
            f"{walk.where}: another folder took the place of {shown(root)} while it was listed, as where a disk is "
            "mounted or unmounted; start again when it is there"
        )


def _report(walk: _Walk, root: Path, folders: int, empty: list[bytes]) -> None:
    skipped = ", ".join(f"{count} {suffix}" for suffix, count in walk.skipped.most_common(_SHOWN_SUFFIXES))
    if not walk.files:
        beside = f"; it holds other files: {skipped}" if skipped else ""
        raise ConfigError(
            f"{walk.where}: no images in {shown(root)}; looked for {b' '.join(IMAGE_SUFFIXES).decode()} in it and "
            f"in {folders} sub-folders{beside}; correct the path or put images there"
        )
    if walk.gone:
        _log.warning(
            "%s: %s removed while the folder was listed, and left out: %s",
            walk.where,
            format_count(len(walk.gone), "file or folder was", "files or folders were"),
            some(walk.gone),
        )
    if skipped:
        _log.info("%s: skipped %d files that are no images: %s", walk.where, walk.skipped.total(), skipped)
    if empty:
        _log.warning(
            "%s: %d sub-folders hold no image and are classes all the same: %s", walk.where, len(empty), some(empty)
        )


def _text(where: str, folder: bytes) -> str:
    try:
        return folder.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where}: sub-folder {shown(folder)} is no UTF-8, so it names no class; rename it"
        ) from error


def _labels(
    stream: str, texts: list[str], counts: list[int], wanted: Mapping[str, LabelSource]
) -> tuple[dict[str, ListedValues], dict[str, LabelSpec], frozenset[str]]:
    """The label that the names of the sub-folders make: its values, its spec, and its name if its classes are fixed."""
    if not texts and not wanted:
        return {}, {}, frozenset()
    name, label = _one_label(stream, bool(texts), wanted)
    where = f"streams.{stream}.labels.{name}"
    codes = np.repeat(np.arange(len(texts), dtype=np.int64), counts)
    values, spec = _label(name, label, texts, codes, where)
    return {name: values}, {name: spec}, frozenset([name] if label.classes is not None else [])


def _label(
    name: str, label: LabelSource, texts: list[str], codes: Int64s, where: str
) -> tuple[ListedValues, LabelSpec]:
    """The label of samples whose sub-folders are `codes` (n,) of `texts`."""

    def place(row: int) -> str:
        return f"sub-folder {texts[int(codes[row])]!r}"

    match label.type:
        case "category":
            fixed = None if label.classes is None else labelling.configured(label.classes, where)
            return labelling.category(name, texts, codes, fixed, place, where)
        case "int" | "float" as kind:
            numbers = np.array([_number(text, where) for text in texts], dtype=np.float64)[codes]
            return labelling.number(name, "int" if kind == "int" else "float", numbers, place, where)
        case "string":
            return labelling.string(name, [texts[code].encode() for code in codes.tolist()], place, where)
    raise ConfigError(
        f"{where}: a folder gives each image one class, the name of the sub-folder, and no {label.type}; use category, "
        "or kind table or filelist"
    )


def _one_label(stream: str, has_classes: bool, wanted: Mapping[str, LabelSource]) -> tuple[str, LabelSource]:
    names = ", ".join(wanted)
    if not has_classes:
        raise ConfigError(
            f"streams.{stream}.labels: a flat folder has no labels, but {names} is wanted; make one sub-folder a "
            "class, use kind table with a file of labels, or write labels: {}"
        )
    if len(wanted) > 1:
        raise ConfigError(
            f"streams.{stream}.labels: a folder gives one label, the name of the sub-folder, but {names} are wanted; "
            "keep one, or use kind table with a file of labels"
        )
    name, label = next(iter(wanted.items()), ("label", LabelSource()))
    if label.source not in (None, name):
        raise ConfigError(
            f"streams.{stream}.labels.{name}.from: a folder has no column {label.source!r}; its one label is the name "
            "of the sub-folder: leave `from` out, or use kind table"
        )
    return name, label


def _number(text: str, where: str) -> float:
    try:
        return float(text.replace("_", "?"))  # Python alone takes 1_000 for a number
    except ValueError as error:
        raise ConfigError(
            f"{where}: sub-folder {text!r} is no number; use type category, or rename the folder"
        ) from error
