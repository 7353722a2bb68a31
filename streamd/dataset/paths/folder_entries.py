"""Lists a folder, and tells data from the bookkeeping of systems, disks and programs, which never is a sample or class.

Every reader that lists names or walks folders asks here: folders, YOLO's pictures, members of tars, patterns, and the
survey for a first configuration. Names that a person could give a class, such as `thumbs` or `temp`, are data.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from streamd.core.text import format_count, format_list
from streamd.dataset.paths.confined import IMAGE_SUFFIXES

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

    def __str__(self) -> str:
        """Names what was left out, for a message; empty if nothing was."""
        return format_list([*self._iterate_parts()], _SHOWN_NAMES)

    def _iterate_parts(self) -> Iterator[str]:
        for (name, what), count in _sort_by_count(self.folders):
            if (name, what) in self.unreadable:
                yield f"{name} ({what}; not all of it can be read)"
            elif count > _COUNTED_FILES:
                yield f"more than {format_count(_COUNTED_FILES, 'file')} in {name} ({what})"
            else:
                yield f"{format_count(count, 'file')} in {name} ({what})"
        for (name, what), count in _sort_by_count(self.files):
            yield f"{count:,} {name} ({what})"


def _sort_by_count(counted: Counter[tuple[str, str]]) -> list[tuple[tuple[str, str], int]]:
    return sorted(counted.items(), key=lambda each: (-each[1], each[0]))


def is_bookkeeping(name: bytes) -> bool:
    """Whether a name without folders is one that no person gave."""
    return _is_bookkeeping(name) is not None


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
