"""Finds the files that a path names, and reads the headers of .npy files. Nothing in them is unpickled."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.lib import format as npy

from streamd.core.text import format_count
from streamd.dataset.manifest.types import Int64s
from streamd.dataset.paths.confined import ConfinedRoot, format_path, stat_files, translate_read_errors
from streamd.dataset.paths.folder_entries import LeftOutNames, has_bookkeeping
from streamd.errors import ConfigError
from streamd.limits import MAX_ARRAY_FILES

_log: Final = logging.getLogger("streamd.sources")

NPY_SUFFIX: Final = ".npy"
_ZIP: Final = b"PK\x03\x04"

# NumPy raises these, besides ValueError, for a bad header. MemoryError is what Python raises for an expression that is
# nested too deeply.
_HEADER_ERRORS: Final = (SyntaxError, TokenError, TypeError, MemoryError, RecursionError)
_BRACES: Final = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """An array in C order in a file, after `offset` bytes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    @property
    def end_offset(self) -> int:
        return self.offset + prod(self.shape) * self.dtype.itemsize


def read_npy_header(path: Path, key: str) -> NpyHeader:
    """Returns the header of an .npy file.

    Raises ConfigError, naming `key`, unless it holds a whole array in C order.
    """
    with translate_read_errors(path, key), path.open("rb") as file:
        header, in_columns = _parse_npy_header(file, path, key)
        size = os.fstat(file.fileno()).st_size
    if header.dtype.hasobject:
        raise ConfigError(f"{key}: {format_path(path)} holds Python objects; save numbers or texts: array.astype(...)")
    if in_columns:
        raise ConfigError(
            f"{key}: {format_path(path)} is in Fortran order, in which rows are not contiguous; save it with "
            "np.save(path, np.ascontiguousarray(array))"
        )
    if size < header.end_offset:
        raise ConfigError(
            f"{key}: {format_path(path)} is truncated: it has {size} of {header.end_offset} bytes; copy or write it "
            "again"
        )
    return header


def _parse_npy_header(file: BinaryIO, path: Path, key: str) -> tuple[NpyHeader, bool]:
    """Returns the header, and whether the array is in Fortran order.

    Raises ConfigError for a file that is no .npy file.
    """
    if file.read(len(_ZIP)) == _ZIP:
        raise ConfigError(
            f"{key}: {format_path(path)} is an archive of arrays; save each with np.save in a file of its own"
        )
    file.seek(0)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, in_columns, dtype = read(file)
    except ValueError as error:
        raise ConfigError(f"{key}: {format_path(path)} is not an .npy file: {error}; write it with np.save") from error
    except _HEADER_ERRORS as error:
        raise ConfigError(
            f"{key}: {format_path(path)} has a header that cannot be read; write it with np.save"
        ) from error
    if any(side < 0 for side in shape):
        raise ConfigError(
            f"{key}: {format_path(path)} is damaged: its header describes an array of {shape}; write it again"
        )
    return NpyHeader(shape, dtype, file.tell()), in_columns


@dataclass(frozen=True, slots=True)
class MatchedFiles:
    """The files that a path names, sorted by the bytes of their names; with sizes in bytes and mtimes.

    Names are relative to `root`.
    """

    root: Path
    names: list[bytes]
    sizes: Int64s
    mtimes_ns: Int64s

    def file_path(self, number: int) -> Path:
        return self.root / os.fsdecode(self.names[number])


@dataclass(frozen=True, slots=True)
class FileKind:
    """Files of one `suffix`. A stream has at most `max_files` of them, if that is not None."""

    suffix: str
    max_files: int | None = None


NPY_FILES: Final = FileKind(NPY_SUFFIX, MAX_ARRAY_FILES)
TAR_FILES: Final = FileKind(".tar")


def find_files(
    path: str, key: str, excluded: Collection[Path], progress: Callable[[int], None], kind: FileKind = NPY_FILES
) -> MatchedFiles:
    """Returns the files that `path` names, without those `excluded`.

    The path names one file, a folder of them, or is a pattern. Raises ConfigError when there are no files, or too many.
    """
    root, names = _glob_names(path, key, kind.suffix)
    # Arrays of labels may lie in the folder of the images.
    others = {os.path.realpath(each) for each in excluded}
    names = sorted(name for name in names if os.path.realpath(root / os.fsdecode(name)) not in others)
    if not names:
        raise ConfigError(
            f"{key}: {format_path(path)} matches no {kind.suffix} file; correct it, or name the folder of the files"
        )
    if kind.max_files is not None and len(names) > kind.max_files:
        raise ConfigError(
            f"{key}: {format_path(path)} matches {format_count(len(names), 'file')}, all of which every worker keeps "
            f"open; at most {kind.max_files} are allowed: join some with np.concatenate"
        )
    fence = ConfinedRoot(os.fsencode(root), key)
    sizes, mtimes_ns, missing = stat_files(fence, names, progress)
    if missing:
        raise _missing_file_error(fence, names[missing[0]], key)
    return MatchedFiles(root, names, sizes, mtimes_ns)


def glob_files(path: str) -> list[Path]:
    """Returns the files that `path` names: a file, the .npy files of a folder, or those that match a pattern."""
    place = Path(path)
    if place.is_dir():
        return sorted(place.glob(f"*{NPY_SUFFIX}"))
    if place.exists() or not glob.has_magic(path):
        return [place] if place.exists() else []
    root = _find_literal_root(place)
    return [root / os.fsdecode(name) for name in _glob_data(str(place.relative_to(root)), root)]


def _missing_file_error(root: ConfinedRoot, name: bytes, key: str) -> ConfigError:
    """Returns the error for a missing file. Each file holds many samples, so a stream is never served without one."""
    if root.is_link(name):
        return ConfigError(
            f"{key}: the link {format_path(name)} points to a file that does not exist; remove or fix the link"
        )
    return ConfigError(
        f"{key}: {format_path(root.join_path(name))} was removed while the files were listed; list them again"
    )


def _glob_names(path: str, key: str, suffix: str) -> tuple[Path, list[bytes]]:
    """Returns the root, and the names below it."""
    whole = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow the links of the user's own choice
    # A path that exists is taken literally, even where it has wildcards in its name.
    if not whole.exists() and glob.has_magic(path):
        root = _find_literal_root(whole)
        with translate_read_errors(root, key):
            root.stat()
        return root, _glob_data(str(whole.relative_to(root)), root, key)
    if not whole.exists() and _BRACES.search(path):  # as WebDataset writes a range of shards
        raise ConfigError(
            f"{key}: {format_path(path)}: braces have no special meaning here; write "
            f"{format_path(_BRACES.sub('*', path))}"
        )
    with translate_read_errors(whole, key):
        if whole.is_dir():
            return whole, _glob_data(f"*{suffix}", whole, key)
        whole.stat()
    real = whole.resolve()  # a single file may be a link to anywhere
    return real.parent, [os.fsencode(real.name)]


def _find_literal_root(path: Path) -> Path:
    """Returns the nearest folder of a pattern that has no wildcard in its name."""
    return next(parent for parent in path.parents if not glob.has_magic(str(parent)))


def _glob_data(pattern: str, root: Path, key: str | None = None) -> list[bytes]:
    """Returns the names below `root` that match, without bookkeeping, which is logged for the configuration's `key`."""
    # A pattern that spells such a name asks for it.
    if has_bookkeeping(os.fsencode(pattern)):
        return [os.fsencode(name) for name in glob.glob(pattern, root_dir=root)]  # noqa: PTH207 - names, not paths
    names = [os.fsencode(name) for name in glob.glob(pattern, root_dir=root, include_hidden=True)]  # noqa: PTH207 - as above
    left_out = LeftOutNames()
    kept = []
    for name in names:
        left_out.add_file(name) if has_bookkeeping(name) else kept.append(name)
    if key is not None and (said := str(left_out)):
        _log.info("%s: left out: %s", key, said)
    return kept
