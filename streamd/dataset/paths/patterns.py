"""Finds the files that a path names, lists folders, and reads the headers of .npy files, of which none is unpickled.

Bookkeeping of systems, disks and programs never is a sample or class. Every reader that lists names or walks folders
asks here: folders, YOLO's pictures, members of tars, patterns, and the survey for a first configuration. Names that a
person could give a class, such as `thumbs` or `temp`, are data.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy

from streamd.core.text import format_count, format_list
from streamd.dataset.manifest.types import Int64s
from streamd.dataset.paths.confined import IMAGE_SUFFIXES, ConfinedRoot, format_path, stat_files, translate_read_errors
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
            raise ConfigError(
                f"{key}: {format_path(path)} is not an .npy file: {error}; write it with np.save"
            ) from error
        except _HEADER_ERRORS as error:
            raise ConfigError(
                f"{key}: {format_path(path)} has a header that cannot be read; write it with np.save"
            ) from error
        if any(side < 0 for side in shape):
            raise ConfigError(
                f"{key}: {format_path(path)} is damaged: its header describes an array of {shape}; write it again"
            )
        header = NpyHeader(shape, dtype, file.tell())
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
    # Each file holds many samples, so a stream is never served without one.
    if missing and fence.is_link(names[missing[0]]):
        raise ConfigError(
            f"{key}: the link {format_path(names[missing[0]])} points to a file that does not exist; remove or fix "
            "the link"
        )
    if missing:
        raise ConfigError(
            f"{key}: {format_path(fence.join_path(names[missing[0]]))} was removed while the files were listed; list "
            "them again"
        )
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
    if key is not None:
        left_out.log_names(key)
    return kept


# --- folders, and what is bookkeeping in them

_COUNTED_FILES: Final = 1000  # in folders that are left out: a NAS may hold several thumbnails of each picture
_SHOWN_NAMES: Final = 8  # in a message


@dataclass(frozen=True, slots=True)
class BookkeepingName:
    """Names that no person gave: a regular expression for the whole name, in any case of letters, and what they are.

    `shown` stands for them in messages; empty where the name itself does.
    """

    pattern: str
    what: str
    shown: str = ""


# The expressions are understood alike by Python and by RE2, which searches columns of names. The first that
# matches says what a name is; the last is for all other hidden names.
BOOKKEEPING_NAMES: Final = (
    BookkeepingName(r"\._[^/]*", "what macOS keeps beside a file on other disks", "._*"),
    BookkeepingName(
        r"\.DS_Store|\.AppleDouble|\.LSOverride|\.Spotlight-V100|\.Trashes|\.fseventsd|\.TemporaryItems|\.apdisk|"
        r"\.DocumentRevisions-V100|Network Trash Folder|Temporary Items|Icon\r",
        "of macOS",
    ),
    BookkeepingName(r"__MACOSX", "what macOS adds to a zip"),
    BookkeepingName(r"\$RECYCLE\.BIN|(?-i:RECYCLER)", "the recycle bin of Windows"),
    BookkeepingName(r"System Volume Information", "of Windows, on each of its disks"),
    BookkeepingName(r"(?:eh)?thumbs(?:_vista)?\.db(?::encryptable)?", "thumbnails of Windows"),
    BookkeepingName(r"desktop\.ini", "how Windows shows a folder"),
    BookkeepingName(r"FOUND\.[0-9]{3}", "what chkdsk of Windows found on a damaged disk"),
    BookkeepingName(r"~\$[^/]+", "open documents of Office", "~$*"),
    BookkeepingName(r"@eaDir", "thumbnails of a Synology NAS"),
    BookkeepingName(r"SYNO(?:PHOTO|FILE|VIDEO|INDEX)[_:@][^/]*", "thumbnails of a Synology NAS", "SYNO*"),
    BookkeepingName(r"@tmp|@sharebin|#snapshot", "of a Synology NAS"),
    BookkeepingName(r"#recycle", "the recycle bin of a NAS"),
    BookkeepingName(r"[.@]?@__thumb", "thumbnails of a QNAP NAS"),
    BookkeepingName(r"@Recycle|@Recently-Snapshot|\.@upload_cache", "of a QNAP NAS"),
    BookkeepingName(r"~snapshot|\.snapshots?|\.zfs", "earlier states of a file system"),
    BookkeepingName(r"lost\+found", "what fsck found on a damaged disk"),
    BookkeepingName(r"LOST\.DIR", "what Android found on a damaged card"),
    BookkeepingName(r"\.Trash(?:-[0-9]+)?|\.Recycle(?:\.Bin)?", "the trash of a desktop"),
    BookkeepingName(r"\.trashed-[0-9]+-[^/]*", "the trash of Android", ".trashed-*"),
    BookkeepingName(r"\.thumbnails|\.thumbdata[^/]*|\.thumbcache[^/]*", "thumbnails"),
    BookkeepingName(r"\.nfs[0-9a-f]{8,}|\.fuse_hidden[0-9a-f]+", "deleted while it was open", ".nfs*"),
    BookkeepingName(r"\.ipynb_checkpoints", "copies that Jupyter keeps"),
    BookkeepingName(r"__pycache__", "compiled Python"),
    BookkeepingName(r"[.~]syncthing[.~][^/]*|\.stversions|\.stfolder", "of Syncthing"),
    BookkeepingName(r"\.dropbox(?:\.[a-z]+)?", "of Dropbox"),
    BookkeepingName(r"\.tmp\.drive(?:down|up)load", "of Google Drive"),
    BookkeepingName(r"\.picasaoriginals", "what Picasa keeps of edited pictures"),
    BookkeepingName(r"\.~tmp~|\.[^/]+\.[a-z0-9]+\.[A-Za-z0-9]{6}", "not finished by rsync", ".*.XXXXXX"),
    BookkeepingName(r"\.(?:[^/.]|\.[^/])[^/]*", "hidden"),
)
_ANY: Final = "|".join(each.pattern for each in BOOKKEEPING_NAMES)
# Finds such a name among the folders of a path, or at its end; a list that somebody wrote may name hidden files.
BOOKKEEPING_PATH: Final = rf"(?i)(?:^|/)(?:{'|'.join(each.pattern for each in BOOKKEEPING_NAMES[:-1])})(?:/|$)"
_search_listed_path: Final = re.compile(BOOKKEEPING_PATH.encode()).search
_search_path: Final = re.compile(rf"(?i)(?:^|/)(?:{_ANY})(?:/|$)".encode()).search
_is_bookkeeping: Final = re.compile(rf"(?i)(?:{_ANY})".encode()).fullmatch
_MATCHERS: Final = tuple((re.compile(f"(?i){each.pattern}".encode()).fullmatch, each) for each in BOOKKEEPING_NAMES)


@dataclass(slots=True)
class LeftOutNames:
    """What was left out of a listing as bookkeeping: how many files of each name, or in folders of each name."""

    files: Counter[tuple[str, str]] = field(default_factory=Counter)  # by name and what it is
    folders: Counter[tuple[str, str]] = field(default_factory=Counter)  # files in them
    unreadable: set[tuple[str, str]] = field(default_factory=set)

    def add_file(self, name: bytes) -> None:
        """Counts a file whose name is one of bookkeeping, or a path with such a name."""
        found = _search_path(name)
        inner = name if found is None else found[0].strip(b"/")
        described = _describe_name(inner)
        (self.folders if found is not None and found.end() < len(name) else self.files)[described] += 1

    def add_folder(self, path: bytes) -> None:
        """Counts the files in a folder, up to a bound; it may be one that only root can read."""
        described = _describe_name(os.path.basename(path))  # noqa: PTH119 - names are bytes, which pathlib does not take
        refused: list[OSError] = []
        self.folders[described] += 0
        for _, _, names in os.walk(path, onerror=refused.append):
            self.folders[described] += len(names)
            if self.folders[described] > _COUNTED_FILES:
                return
        if refused:
            self.unreadable.add(described)

    def add_counts(self, other: LeftOutNames) -> None:
        """Adds what was left out of another listing."""
        self.files.update(other.files)
        self.folders.update(other.folders)
        self.unreadable |= other.unreadable

    def log_names(self, key: str) -> None:
        """Logs what was left out, if anything was; `key` is the configuration key of the listing."""
        if names := str(self):
            _log.info("%s: left out: %s", key, names)

    def __str__(self) -> str:
        """Names what was left out, for a message; empty if nothing was."""
        parts: list[str] = []
        folders, files = (
            sorted(each.items(), key=lambda counted: (-counted[1], counted[0])) for each in (self.folders, self.files)
        )
        for (name, what), count in folders:
            if (name, what) in self.unreadable:
                parts.append(f"{name} ({what}; not all of it can be read)")
            elif count > _COUNTED_FILES:
                parts.append(f"more than {format_count(_COUNTED_FILES, 'file')} in {name} ({what})")
            else:
                parts.append(f"{format_count(count, 'file')} in {name} ({what})")
        parts += [f"{count:,} {name} ({what})" for (name, what), count in files]
        return format_list(parts, _SHOWN_NAMES)


def has_bookkeeping(path: bytes) -> bool:
    """Whether a path has a name in it that no person gave. `.` and `..` are none."""
    return _search_path(path) is not None


def names_bookkeeping(path: bytes) -> bool:
    """Whether a path that somebody listed has a name of bookkeeping in it; hidden names alone are none."""
    return _search_listed_path(path) is not None


def _describe_name(name: bytes) -> tuple[str, str]:
    row = next(row for matches, row in _MATCHERS if matches(name))
    return row.shown or os.fsdecode(name), row.what


@dataclass(slots=True)
class FolderEntries:
    """The names in one folder, sorted by their bytes: sub-folders, images and other files, without bookkeeping."""

    folders: list[bytes] = field(default_factory=list)
    images: list[bytes] = field(default_factory=list)
    others: list[bytes] = field(default_factory=list)


def list_folder_entries(folder: bytes, left_out: LeftOutNames | None = None) -> FolderEntries:
    """Lists a folder, and adds to `left_out` what is no data there. Raises OSError."""
    found = FolderEntries()
    with os.scandir(folder) as listing:
        for entry in listing:
            name = entry.name
            is_folder = entry.is_dir()
            if _is_bookkeeping(name):
                if left_out is not None:
                    left_out.add_folder(entry.path) if is_folder else left_out.add_file(name)
            elif is_folder:
                found.folders.append(name)
            elif name.lower().endswith(IMAGE_SUFFIXES):
                found.images.append(name)
            else:
                found.others.append(name)
    for names in (found.folders, found.images, found.others):
        names.sort()
    return found
