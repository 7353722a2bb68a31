"""`kind: folder`: one sub-folder a class, or a flat folder of images without labels.

Samples are in byte order of class and file name. Bookkeeping, such as hidden names, is left out and counted, as are
files that are no images.
"""

from __future__ import annotations

import logging
import os
import posixpath
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from streamd.core.spec import LabelSpec
from streamd.core.text import format_count
from streamd.dataset.files import FolderSource
from streamd.dataset.labels import encode as labelling
from streamd.dataset.labels.encode import INT64_END
from streamd.dataset.manifest.types import ImageFiles, ListedValues, ScannedSamples
from streamd.dataset.paths.confined import (
    IMAGE_SUFFIXES,
    PROGRESS_FILES,
    ConfinedRoot,
    format_first_names,
    format_path,
    join_name,
    stat_files,
    translate_read_errors,
)
from streamd.dataset.paths.patterns import LeftOutNames, list_folder_entries
from streamd.dataset.sources import ImageSource, LabelSource, ListingRequest, build_images_key
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")
_SHOWN_SUFFIXES: Final = 5  # in a message


@dataclass(slots=True)
class FolderWalk:
    """One pass over a folder, in order, and what it has found."""

    key: str
    root: ConfinedRoot
    progress: Callable[[int], None]
    files: list[bytes] = field(default_factory=list)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    mtimes_ns: array[int] = field(default_factory=lambda: array("q"))
    skipped: Counter[str] = field(default_factory=Counter)  # other files, by suffix
    left_out: LeftOutNames = field(default_factory=LeftOutNames)
    removed: list[bytes] = field(default_factory=list)  # files and folders that disappeared after they were listed

    def list_folder(self, folder: bytes) -> tuple[list[bytes], list[bytes]]:
        """Returns the sorted names of the sub-folders and of the images in `folder`; counts other files.

        Raises OSError.
        """
        found = list_folder_entries(self.root.join_path(folder), self.left_out)
        self.skipped.update(Path(os.fsdecode(name)).suffix or "no suffix" for name in found.others)
        return found.folders, found.images

    def add_image(self, name: bytes) -> None:
        """Adds an image with its size and mtime. Raises ConfigError for a link that leads nowhere."""
        found = self.root.stat_file(name)
        if found is None:
            if self.root.is_link(name):
                raise ConfigError(
                    f"{self.key}: the link {format_path(self.root.join_path(name))} points to a file that does not "
                    "exist; remove or fix the link"
                )
            self.removed.append(name)
            return
        self.files.append(found[0])
        self.sizes.append(found[1].st_size)
        self.mtimes_ns.append(found[1].st_mtime_ns)
        if len(self.files) % PROGRESS_FILES == 0:
            self.progress(len(self.files))

    def walk_folder(self, folder: bytes, above: tuple[bytes, ...]) -> None:
        """Adds all images in and under `folder`, in byte order of their paths. `above` are the folders that it lies in.

        Raises ConfigError for a link that leads back to one of them.
        """
        inside = self.root.resolve_name(folder)
        if inside in above:
            raise ConfigError(
                f"{self.key}: the link {format_path(self.root.join_path(folder))} points back to "
                f"{format_path(self.root.join_path(inside))}, which it lies in; remove it"
            )
        with translate_read_errors(self.root.join_path(inside), self.key):
            try:
                found = self.list_folder(inside)
            except FileNotFoundError:
                # The folder was removed after its parent was listed, so the walk continues. `scan_folder` decides
                # afterwards whether only parts of the data disappeared, or the disk.
                self.removed.append(folder)
                return
        self.add_folder_entries(inside, *found, above)

    def add_folder_entries(
        self, inside: bytes, folders: list[bytes], images: list[bytes], above: tuple[bytes, ...]
    ) -> None:
        """Adds the images that `list_folder` found in the folder `inside`, and all images in its sub-folders."""
        # With its slash a folder sorts as the paths below it do, so that all paths come in byte order.
        for name in sorted([*images, *(folder + b"/" for folder in folders)]):
            if name.endswith(b"/"):
                self.walk_folder(join_name(inside, name[:-1]), (*above, inside))
            else:
                self.add_image(join_name(inside, name))


def scan_folder(
    stream: str,
    source: FolderSource,
    labels: Mapping[str, LabelSource] | None,
    progress: Callable[[int], None],
    images: Mapping[str, ImageSource] | None = None,
) -> ScannedSamples:
    """Lists the images of a folder. The names of its sub-folders, if it has any, become the one label.

    If `labels` is empty, the stream has no labels and images may lie at any depth. Files that a pattern of `images`
    names belong to other files: they are no samples, and a folder of them alone is no class. Raises ConfigError.
    """
    where = f"streams.{stream}.source.path"
    root = Path(os.path.abspath(source.path))  # noqa: PTH100 - resolve() would follow the links of the user's own choice
    walk = FolderWalk(where, ConfinedRoot(os.fsencode(root), where), progress)
    with translate_read_errors(root, where):
        if root.is_file():
            raise ConfigError(
                f"{where}: {format_path(root)} is a file, but kind folder needs a folder; for a table that lists "
                "files, use kind table"
            )
        # Taken before the folder is listed, and compared afterwards if anything has disappeared.
        seen = root.stat()
        folders, pictures = walk.list_folder(b"")
    classes = folders if labels is None or labels else []
    walk.add_folder_entries(b"", [] if classes else folders, pictures, ())
    loose = len(walk.files)
    counts: dict[bytes, int] = {}
    for folder in classes:
        before = len(walk.files)
        walk.walk_folder(folder, (b"",))
        counts[folder] = len(walk.files) - before
    if images:
        # Files that belong to others by a pattern are no samples, and a class that has lost all of its files is none.
        others = find_files_of_patterns(images, root, walk.files)
        kept = np.array([file not in others for file in walk.files], dtype=np.bool_)
        ends = np.cumsum([loose, *counts.values()])
        loose, *left = (int(part.sum()) for part in np.split(kept, ends[:-1]))
        walk.files = [file for file, keep in zip(walk.files, kept.tolist(), strict=True) if keep]
        walk.sizes = array("q", np.array(walk.sizes, dtype=np.int64)[kept].tolist())
        walk.mtimes_ns = array("q", np.array(walk.mtimes_ns, dtype=np.int64)[kept].tolist())
        remaining = zip(counts.items(), left, strict=True)
        counts = {folder: now for (folder, seen_before), now in remaining if now or not seen_before}
        classes = [folder for folder in classes if folder in counts]
    if classes and loose:
        raise ConfigError(
            f"{where}: {format_path(root)} holds both {format_count(loose, 'image')} "
            f"({format_first_names(walk.files[:loose])}) and {format_count(len(classes), 'sub-folder')} "
            f"({format_first_names(classes)}); a folder must be flat or have one sub-folder per class: move the images "
            "into sub-folders, move the sub-folders elsewhere, or write labels: {} to serve all images without "
            "labels"
        )
    if walk.removed:
        with translate_read_errors(root, walk.key):
            found = root.stat()
        # A mount or unmount changes the device or the inode of the path. Then no single files were removed.
        if (found.st_dev, found.st_ino) != (seen.st_dev, seen.st_ino):
            raise ConfigError(
                f"{walk.key}: another folder took the place of {format_path(root)} while it was listed, as happens "
                "when a disk is mounted or unmounted; start again when the folder is back"
            )
        classes = [folder for folder in classes if folder not in set(walk.removed)]
    progress(len(walk.files))
    _report_walk_findings(walk, root, len(folders), [folder for folder in classes if not counts[folder]])
    try:
        texts = [folder.decode() for folder in classes]
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where}: sub-folder {format_path(error.object)} is not UTF-8, so it cannot be the name of a class; "
            "rename it"
        ) from error
    values, specs, fixed = _build_folder_labels(stream, texts, [counts[folder] for folder in classes], labels or {})
    sizes, mtimes_ns = np.array(walk.sizes, dtype=np.int64), np.array(walk.mtimes_ns, dtype=np.int64)
    return ScannedSamples(root, walk.files, sizes, mtimes_ns, values, specs, fixed)


def _report_walk_findings(walk: FolderWalk, root: Path, folders: int, empty: list[bytes]) -> None:
    skipped = ", ".join(f"{count} {suffix}" for suffix, count in walk.skipped.most_common(_SHOWN_SUFFIXES))
    if not walk.files:
        beside = f"; it holds other files: {skipped}" if skipped else ""
        raise ConfigError(
            f"{walk.key}: no images in {format_path(root)}; looked for {b' '.join(IMAGE_SUFFIXES).decode()} in it and "
            f"in {folders} sub-folders{beside}; correct the path or put images there"
        )
    if walk.removed:
        _log.warning(
            "%s: %s removed while the folder was listed, and left out: %s",
            walk.key,
            format_count(len(walk.removed), "file or folder was", "files or folders were"),
            format_first_names(walk.removed),
        )
    if skipped:
        others = format_count(walk.skipped.total(), "file that is not an image", "files that are not images")
        _log.info("%s: skipped %s: %s", walk.key, others, skipped)
    walk.left_out.log_names(walk.key)
    if empty:
        _log.warning(
            "%s: %s: %s",
            walk.key,
            format_count(
                len(empty),
                "sub-folder holds no image, but is still a class",
                "sub-folders hold no image, but are still classes",
            ),
            format_first_names(empty),
        )


def _build_folder_labels(
    stream: str, texts: list[str], counts: list[int], wanted: Mapping[str, LabelSource]
) -> tuple[dict[str, ListedValues], dict[str, LabelSpec], frozenset[str]]:
    """Returns the label made of the sub-folders' names: its values, its spec, and its name if its classes are fixed."""
    if not texts and not wanted:
        return {}, {}, frozenset()
    names = ", ".join(wanted)
    if not texts:
        raise ConfigError(
            f"streams.{stream}.labels: a flat folder has no labels, but the configuration asks for: {names}; "
            "make one sub-folder for each class, use kind table with a table of labels, or write labels: {}"
        )
    if len(wanted) > 1:
        raise ConfigError(
            f"streams.{stream}.labels: a folder gives one label, the name of the sub-folder, but the configuration "
            f"asks for: {names}; keep one, or use kind table with a table of labels"
        )
    name, label = next(iter(wanted.items()), ("label", LabelSource()))
    if label.source not in (None, name):
        raise ConfigError(
            f"streams.{stream}.labels.{name}.from: a folder has no column {label.source!r}; its one label is the name "
            "of the sub-folder: leave `from` out, or use kind table"
        )
    key = f"streams.{stream}.labels.{name}"
    codes = np.repeat(np.arange(len(texts), dtype=np.int64), counts)
    place = labelling.LabelPlace(name, key, lambda row: f"sub-folder {texts[int(codes[row])]!r}")
    values: ListedValues
    match label.type:
        case "category":
            fixed = None if label.classes is None else labelling.parse_configured_classes(label.classes, key)
            values, spec = labelling.build_category_label(place, texts, codes, fixed)
        case "int" | "float" as kind:
            numbers: list[int | float] = []
            for text in texts:
                try:
                    number = labelling.parse_number(text)
                except ValueError as error:
                    raise ConfigError(
                        f"{key}: sub-folder {text!r} is not a number; use type category, or rename the folder"
                    ) from error
                if text.strip().lstrip("+-").isdecimal():
                    numbers.append(int(text))
                else:
                    is_exact = number.is_integer() and abs(number) < labelling.EXACT_BELOW
                    numbers.append(int(number) if is_exact else number)
            # float64 does not hold every whole number beyond 2^53.
            is_whole = kind == "int" and all(isinstance(each, int) and abs(each) < INT64_END for each in numbers)
            each = (np.array(numbers, np.int64) if is_whole else np.array(numbers, np.float64))[codes]
            values, spec = labelling.build_number_label(place, "int" if kind == "int" else "float", each)
        case "string":
            encoded = [texts[code].encode() for code in codes.tolist()]
            values, spec = labelling.build_string_label(place, encoded)
        case _:
            raise ConfigError(
                f"{key}: a folder gives each image one class, the name of the sub-folder, not type {label.type}; use "
                "category, or kind table or filelist"
            )
    return {name: values}, {name: spec}, frozenset([name] if label.classes is not None else [])


# --- Images beside a sample's own file: found by a pattern of its folder, its stem or its name.


_MANY: Final = 0.5  # if more of the files are missing, the pattern is probably wrong and not the data


def format_pattern(pattern: bytes, file: bytes) -> bytes:
    """Returns the name that a pattern gives for the sample's own `file`, both relative to their roots."""
    folder, _, name = file.rpartition(b"/")
    stem = posixpath.splitext(name)[0]
    found = pattern.replace(b"{dir}", folder).replace(b"{stem}", stem).replace(b"{name}", name)
    return posixpath.normpath(found.lstrip(b"/"))  # {dir} of a flat folder is empty


def add_pattern_images(
    request: ListingRequest, scanned: ScannedSamples, progress: Callable[[int], None]
) -> ScannedSamples:
    """Adds the images that patterns name to the samples of a source of loose files. Raises ConfigError."""
    images, wanted = dict(scanned.images), dict[Path, set[bytes]]()
    for name, root, pattern in _list_patterns(request.images or {}, scanned.root):
        samples = scanned.files if root == scanned.root else ()
        files = [format_pattern(pattern, file) for file in scanned.files]
        wanted.setdefault(root, set()).update(files)
        key, named = build_images_key(request.name, name), list(files)
        with translate_read_errors(root, key):
            os.stat(root)  # noqa: PTH116 - for its error alone
        fence = ConfinedRoot(os.fsencode(root), key)
        sizes, mtimes_ns, missing = stat_files(fence, files, progress)
        if missing:
            near = fence.suggest_near_name((named[row] for row in missing), samples)
            is_one = len(missing) == 1
            advice = f"add {'the missing file' if is_one else 'them'}, or remove the samples"
            if len(missing) > _MANY * len(files):
                advice = "correct the pattern, or set root to the folder of these files"
            raise ConfigError(
                f"{key}: {len(missing):,} of {format_count(len(files), 'file')} that the pattern names "
                f"{'is' if is_one else 'are'} not in {format_path(root)}: "
                f"{format_first_names(named[row] for row in missing)}; {near}{advice}"
            )
        images[name] = ImageFiles(files, sizes, mtimes_ns, None if root == scanned.root else root)
    if request.source.kind == "folder":  # a table or a list may leave pictures out, whose files are then no loss
        for root, of_patterns in wanted.items():
            # Pictures in the same folders that are none of the named files, and no samples, are logged.
            key = f"streams.{request.name}.images"
            known = of_patterns | {*(scanned.files if root == scanned.root else ())}
            lone: list[bytes] = []
            for folder in sorted({file.rpartition(b"/")[0] for file in of_patterns}):
                path = os.path.join(os.fsencode(root), folder)  # noqa: PTH118 - names are bytes
                with translate_read_errors(path, key), os.scandir(path) as listing:
                    listed = (join_name(folder, each.name) for each in listing if not each.name.startswith(b"."))
                    lone += (name for name in listed if name.lower().endswith(IMAGE_SUFFIXES) and name not in known)
            if lone:
                place, shown = format_path(root), format_first_names(sorted(lone))
                counts = format_count(len(lone), f"file in {place} belongs", f"files in {place} belong")
                _log.info("%s: %s to no picture of this stream: %s", key, counts, shown)
    return replace(scanned, images=images)


def _list_patterns(images: Mapping[str, ImageSource], root: Path) -> Iterator[tuple[str, Path, bytes]]:
    """Yields the name, the root and the pattern of each image that a pattern names; `root` is that of the samples."""
    for name, image in images.items():
        if image.is_pattern:
            place = root if image.root is None else Path(os.path.abspath(image.root))  # noqa: PTH100 - resolve() follows links
            yield name, place, os.fsencode(str(image.place))


def find_files_of_patterns(images: Mapping[str, ImageSource], root: Path, files: Sequence[bytes]) -> frozenset[bytes]:
    """Returns those of `files`, below `root`, that belong to other files by a pattern, and so are no samples."""
    known, found = frozenset(files), set[bytes]()
    for _, folder, pattern in _list_patterns(images, root):
        if folder.is_relative_to(root):
            inside = os.fsencode(folder.relative_to(root))
            names = (posixpath.join(inside, format_pattern(pattern, file)).removeprefix(b"./") for file in files)
            found.update(known.intersection(names))
    return frozenset(found)
