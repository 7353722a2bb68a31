"""Images beside a sample's own file: found by a pattern of its folder, its stem or its name."""

from __future__ import annotations

import logging
import os
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from streamd.core.text import format_count
from streamd.dataset.manifest.types import ImageFiles, ScannedSamples
from streamd.dataset.paths.confined import (
    IMAGE_SUFFIXES,
    ConfinedRoot,
    format_first_names,
    format_path,
    join_name,
    stat_files,
    translate_read_errors,
)
from streamd.dataset.sources import ImageSource, ListingRequest
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")
_MANY: Final = 0.5  # if more of the files are missing, the pattern is probably wrong and not the data


def build_images_key(stream: str, image: str) -> str:
    """Returns the configuration key that says where an image lies."""
    return f"streams.{stream}.images.{image}.from"


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
    for name, image in _list_patterns(request.images or {}):
        root = _resolve_image_root(image, scanned.root)
        pattern = os.fsencode(str(image.place))
        samples = scanned.files if root == scanned.root else ()
        files = [format_pattern(pattern, file) for file in scanned.files]
        wanted.setdefault(root, set()).update(files)
        found = _stat_pattern_files(build_images_key(request.name, name), root, files, progress, samples)
        images[name] = replace(found, root=None if root == scanned.root else root)
    if request.source.kind == "folder":  # a table or a list may leave pictures out, whose files are then no loss
        for root, named in wanted.items():
            # Pictures in the same folders that are none of the named files, and no samples, are logged.
            key = f"streams.{request.name}.images"
            known = named | {*(scanned.files if root == scanned.root else ())}
            lone: list[bytes] = []
            for folder in sorted({file.rpartition(b"/")[0] for file in named}):
                path = os.path.join(os.fsencode(root), folder)  # noqa: PTH118 - names are bytes
                with translate_read_errors(path, key), os.scandir(path) as listing:
                    listed = (join_name(folder, each.name) for each in listing if not each.name.startswith(b"."))
                    lone += (name for name in listed if name.lower().endswith(IMAGE_SUFFIXES) and name not in known)
            if lone:
                place, shown = format_path(root), format_first_names(sorted(lone))
                counts = format_count(len(lone), f"file in {place} belongs", f"files in {place} belong")
                _log.info("%s: %s to no picture of this stream: %s", key, counts, shown)
    return replace(scanned, images=images)


def _list_patterns(images: Mapping[str, ImageSource]) -> Iterator[tuple[str, ImageSource]]:
    return ((name, image) for name, image in images.items() if image.is_pattern)


def _resolve_image_root(image: ImageSource, root: Path) -> Path:
    return root if image.root is None else Path(os.path.abspath(image.root))  # noqa: PTH100 - resolve() follows links


def _stat_pattern_files(
    key: str, root: Path, files: list[bytes], progress: Callable[[int], None], samples: Collection[bytes]
) -> ImageFiles:
    with translate_read_errors(root, key):
        os.stat(root)  # noqa: PTH116 - for its error alone
    wanted, fence = list(files), ConfinedRoot(os.fsencode(root), key)
    sizes, mtimes_ns, missing = stat_files(fence, files, progress)
    if missing:
        near = fence.suggest_near_name((wanted[row] for row in missing), samples)
        names = format_first_names(wanted[row] for row in missing)
        advice = (
            "correct the pattern, or set root to the folder of these files"
            if len(missing) > _MANY * len(files)
            else f"add {'the missing file' if len(missing) == 1 else 'them'}, or remove the samples"
        )
        raise ConfigError(
            f"{key}: {len(missing):,} of {format_count(len(files), 'file')} that the pattern names "
            f"{'is' if len(missing) == 1 else 'are'} not in {format_path(root)}: {names}; {near}{advice}"
        )
    return ImageFiles(files, sizes, mtimes_ns, root)


def find_files_of_patterns(images: Mapping[str, ImageSource], root: Path, files: Sequence[bytes]) -> frozenset[bytes]:
    """Returns those of `files`, below `root`, that belong to other files by a pattern, and so are no samples."""
    known, found = frozenset(files), set[bytes]()
    for _, image in _list_patterns(images):
        folder, pattern = _resolve_image_root(image, root), os.fsencode(str(image.place))
        if folder.is_relative_to(root):
            inside = os.fsencode(folder.relative_to(root))
            names = (posixpath.join(inside, format_pattern(pattern, file)).removeprefix(b"./") for file in files)
            found.update(known.intersection(names))
    return frozenset(found)
