"""File names as a table or a list spells them: made relative to the root, looked up, and reported if missing."""

from __future__ import annotations

import logging
import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from streamd.core.text import format_count
from streamd.dataset.labels.cells import SourceRows, Texts, build_path_column
from streamd.dataset.labels.encode import format_other_locations
from streamd.dataset.manifest.columns import PathColumn
from streamd.dataset.manifest.types import Int64s
from streamd.dataset.paths.confined import (
    IMAGE_SUFFIXES,
    ConfinedRoot,
    format_first_names,
    format_path,
    is_file_beneath,
    stat_files,
    translate_read_errors,
)
from streamd.dataset.paths.patterns import BOOKKEEPING_PATH, list_folder_entries, names_bookkeeping
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")
_SPELLING: Final = "write names as their files have them"
_TRIED_FILES: Final = 8  # looked for in other folders when all are missing
_TRIED_FOLDERS: Final = 100  # looked in
# Names that are not yet in the form `folder/file`: absolute, with empty, `.` or `..` parts, or with a NUL.
_UNTIDY: Final = r"^/|//|/$|(^|/)\.{1,2}(/|$)|\x00"


def resolve_root(source_root: Path | None, path: Path) -> Path:
    """Returns the folder that names are relative to: the configured root, else the folder of the file at `path`."""
    return Path(os.path.abspath(source_root or path.parent))  # noqa: PTH100 - resolve() would follow links


def normalize_file_names(rows: SourceRows, texts: Texts, root: Path, key: str) -> PathColumn:
    """Returns the names as relative paths below `root`, in the form `folder/file`.

    Reads the disk only to resolve `root`. Raises ConfigError for names that lead out of it.
    """
    windows: Any = pc.match_substring(texts, "\\")
    if windows.true_count:
        names = format_count(windows.true_count, "name has", "names have")
        _log.warning("%s: %s backslashes; they are read as slashes", rows.path.name, names)
        texts = pc.replace_substring(texts, "\\", "/")
    files = build_path_column(texts)
    # An absolute name may begin with the root as it is spelled, or with the folder that its links lead to.
    roots = [os.fsencode(root), os.path.realpath(os.fsencode(root))]
    untidy: Any = pc.match_substring_regex(texts, _UNTIDY)
    outside: list[int] = []
    # An absolute name may lead through hidden folders to the root; only what is below it counts.
    bookkeeping: Any = pc.and_(pc.match_substring_regex(texts, BOOKKEEPING_PATH), pc.invert(untidy))
    named = np.flatnonzero(bookkeeping.to_numpy(zero_copy_only=False)).tolist()
    # Most names are tidy. Only the others become Python objects here, one at a time.
    for row in np.flatnonzero(untidy.to_numpy(zero_copy_only=False)).tolist():
        name = _make_path_relative(files[row], roots)
        if name is None:
            outside.append(row)
        else:
            files[row] = name
            if names_bookkeeping(name):
                named.append(row)
    if outside:
        others = format_other_locations(outside, rows.format_location, lambda row: format_path(files[row]))
        raise ConfigError(
            f"{key}: {rows.format_location(outside[0])} names {format_path(files[outside[0]])}, which is not in "
            f"{format_path(root)}{others}; correct the path, or set root to a folder that holds all the files"
        )
    # They are served nevertheless, so that rows keep their numbers. Lists made by a walk over a folder have them.
    if named:
        _log.warning(
            "%s: %s of a system or a program and no data, such as %s; remove %s",
            rows.path.name,
            format_count(len(named), "row names a file", "rows name files"),
            format_path(files[min(named)]),
            "this row" if len(named) == 1 else "these rows",
        )
    return files


def _make_path_relative(name: bytes, roots: Sequence[bytes]) -> bytes | None:
    """Returns `name` relative to the root, by its spelling alone; None if it leads out or can name no file."""
    for root in roots if b"\0" not in name else ():
        path = posixpath.normpath(posixpath.join(root, name))
        if path.startswith(root.rstrip(b"/") + b"/"):
            return path[len(root.rstrip(b"/")) + 1 :]
    return None


def stat_listed_files(
    rows: SourceRows, root: Path, files: PathColumn, key: str, progress: Callable[[int], None]
) -> tuple[Int64s, Int64s]:
    """Returns the sizes in bytes and mtimes in ns of `files`; see `stat_files`.

    Raises ConfigError for missing files.
    """
    with translate_read_errors(root, key):
        os.stat(root)  # noqa: PTH116 - for its error alone
    fence = ConfinedRoot(os.fsencode(root), key)
    sizes, mtimes_ns, missing = stat_files(fence, files, progress)
    if missing:
        near = fence.suggest_near_name(files[row] for row in missing)
        # If some files exist, the root is right, and the message names those that do not. If none does, the root is
        # probably wrong, and the message suggests another one.
        if len(missing) < len(files):
            first = f"{rows.format_location(missing[0])}, {format_path(files[missing[0]])}"
            others = format_other_locations(missing, rows.format_location, lambda row: format_path(files[row]))
            is_one = len(missing) == 1
            raise ConfigError(
                f"{key}: {len(missing):,} of {format_count(len(files), 'file')} named in {rows.path.name} "
                f"{'is' if is_one else 'are'} not in {format_path(root)}: {first}{others}; {near}"
                f"{near and _SPELLING + ', or '}add the missing {'file' if is_one else 'files'}, or remove "
                f"{'its row' if is_one else 'their rows'}"
            )
        names, place = format_first_names(files[row] for row in missing), format_path(root)
        lack = (
            f"{names}, which is not in {place}"
            if len(files) == 1
            else f"such as {names}, but none of them is in {place}"
        )
        raise ConfigError(
            f"{key}: {rows.path.name} names {format_count(len(files), 'file')}, {lack}; "
            f"{near + _SPELLING if near else _suggest_root(rows.path.parent, root, files[:_TRIED_FILES])}"
        )
    return sizes, mtimes_ns


def _suggest_root(folder: Path, root: Path, files: Sequence[bytes]) -> str:
    """Returns advice that names the nearest likely root with some of the files."""
    for place in iterate_likely_roots(folder, root):
        for suffix in (b"", *IMAGE_SUFFIXES):
            if any(is_file_beneath(place, name + suffix) for name in files):
                names, some = ("name", "the file is") if len(files) == 1 else ("names", "some of the files are")
                if suffix:
                    return (
                        f"with {suffix.decode()} added to the {names}, {some} in {format_path(place)}: write whole "
                        "file names into the table"
                    )
                return f"{'it is' if len(files) == 1 else 'some are'} in {format_path(place)}: set root to that folder"
    return "set root to the folder that the names are relative to"


def iterate_likely_roots(folder: Path, root: Path) -> Iterator[Path]:
    """Yields folders that may hold the files named by a table in `folder`.

    These are the root, the folder, its parent, and then the sub-folders of each.
    """
    around = dict.fromkeys((root, folder, folder.parent))
    yield from around
    for outer in around:
        # The result is only advice, so a folder that cannot be read is passed over.
        with suppress(OSError):
            inner = list_folder_entries(os.fsencode(outer)).folders[:_TRIED_FOLDERS]
            yield from [outer / os.fsdecode(name) for name in inner]
