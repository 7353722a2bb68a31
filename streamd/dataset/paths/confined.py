"""Disk access for sources: errors that a person can act on, links confined to a root, sizes of many files at once."""

from __future__ import annotations

import errno
import logging
import os
import posixpath
import pwd
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np

from streamd.core.host import check_regular_file
from streamd.core.text import describe_name_difference, fold_name, format_count
from streamd.dataset.manifest.columns import PathColumn
from streamd.dataset.manifest.types import Int64s
from streamd.errors import ConfigError

MutableFiles = list[bytes] | PathColumn

_log: Final = logging.getLogger("streamd.sources")
IMAGE_SUFFIXES: Final = tuple(b".jpg .jpeg .jfif .png .webp .bmp .gif .tif .tiff .avif .ppm .pgm .pbm .pnm".split())
PROGRESS_FILES: Final = 4096  # files between two reports: some ten milliseconds of a warm disk
_STAT_THREADS: Final = 16  # a network disk answers many requests at once
_QUICK_STAT_S: Final = 100e-6  # in memory a stat takes a twentieth of this, and threads would only wait for each other
_SHOWN_FILES: Final = 3  # named in a message
_SHOWN_CHARS: Final = 300  # of a path in a message; cells of a wrong column may be pages long


def format_path(path: bytes | str | Path) -> str:
    """Returns a path for a message: quoted, with bytes that are no UTF-8 escaped, and only the end of a very long one.

    `..` is resolved, as in a configuration that begins a path with it, unless a link gives that another meaning.
    """
    name = os.fsencode(path)
    short = os.path.normpath(name) if name.startswith(b"/") and b"/../" in name and b"\0" not in name else name
    same = short == name or os.path.realpath(short) == os.path.realpath(name)
    text = (short if same else name).decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= _SHOWN_CHARS else f"...{text[-_SHOWN_CHARS:]}")


@contextmanager
def translate_read_errors(path: bytes | str | Path, key: str) -> Iterator[None]:
    """Turns the system's errors on `path` into a ConfigError; `key` is the configuration key that named it."""
    try:
        # Libraries open what they are given, and the open of a FIFO never returns. A folder is named by its reader.
        with suppress(IsADirectoryError):
            check_regular_file(path)
        yield
    except FileNotFoundError as error:
        above = Path(os.fsdecode(path)).absolute().parents
        nearest = next((parent for parent in above if parent.exists()), Path("/"))
        raise ConfigError(
            f"{key}: there is no {format_path(path)}; the nearest folder that exists is "
            f"{format_path(nearest)}; correct the path"
        ) from error
    except PermissionError as error:
        try:
            user = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:  # containers run as numbers without a name
            user = str(os.geteuid())
        raise ConfigError(
            f"{key}: user {user} is not allowed to read {format_path(error.filename or path)}; give "
            "that user permission to read it, or run streamd as a user that has this permission"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{key}: cannot read {format_path(error.filename or path)}: {error.strerror or error}"
        ) from error


def is_file_beneath(folder: Path, name: bytes) -> bool:
    """Returns whether `name`, relative to a folder, is a file. An absolute name ignores the folder."""
    return os.path.isfile(folder / os.fsdecode(name))  # noqa: PTH113 - pathlib raises where a name is too long


class ConfinedRoot:
    """A root that no link may lead out of. Names are relative to it; `key` is the configuration key that named it."""

    def __init__(self, root: bytes, key: str) -> None:
        self._root, self._key = root.rstrip(b"/"), key
        self._real = os.path.realpath(root).rstrip(b"/")

    def join_path(self, name: bytes) -> bytes:
        return self._root + b"/" + name if name else self._root or b"/"

    def resolve_name(self, name: bytes) -> bytes:
        """Returns `name` with its links followed. Raises ConfigError, naming it, when they lead out of the root.

        Workers open files beneath the root and refuse absolute links there, so the manifest needs the name without
        links.
        """
        real = os.path.realpath(self.join_path(name))
        if real != (self._real or b"/") and not real.startswith(self._real + b"/"):
            remedy = "give a folder that holds both the link and its target, or copy the files"
            if not os.path.exists(real):  # noqa: PTH110 - names are bytes, which pathlib does not take
                remedy = "there is no such file; remove or fix the link"
            raise ConfigError(
                f"{self._key}: the link {format_path(self.join_path(name))} points to {format_path(real)}, outside "
                f"{format_path(self.join_path(b''))}; {remedy}"
            )
        return real[len(self._real) + 1 :]

    def stat_file(self, name: bytes) -> tuple[bytes, os.stat_result] | None:
        """Returns `name` with its last link followed, and the stat of the file; None when nothing is there.

        Raises ConfigError for a link out of the root, and for anything that is no regular file.
        """
        try:
            found = os.lstat(self.join_path(name))
            if stat.S_ISLNK(found.st_mode):
                name = self.resolve_name(name)
                found = os.stat(self.join_path(name))  # noqa: PTH116 - names are bytes, which pathlib does not take
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # no file can have this name
                return None
            with translate_read_errors(self.join_path(name), self._key):
                raise
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(
                f"{self._key}: {format_path(self.join_path(name))} is not a regular file; only those can be images"
            )
        return name, found

    def find_near_name(self, name: bytes) -> bytes | None:
        """Returns the file that is there under a name that differs from `name` as `find_near_names` says; else None."""
        found = b""
        for part in name.split(b"/"):
            try:
                entries = os.listdir(self.join_path(found))  # noqa: PTH208 - names are bytes, which pathlib does not take
            except OSError:  # the result is only advice
                return None
            near = part if part in entries else find_near_names([part], sorted(entries)).get(part)
            if near is None:
                return None
            found = join_name(found, near)
        return found

    def suggest_near_name(self, names: Iterable[bytes], others: Collection[bytes] = ()) -> str:
        """Returns a remark if one of the first of `names`, which are missing, is there in another spelling; or "".

        Files among `others` are there for another purpose.
        """
        for name, _ in zip(names, range(_SHOWN_FILES), strict=False):
            near = self.find_near_name(name)
            if near is not None and near != name and near not in others:
                return f"{format_near_name(name, near)}; "
        return ""

    def is_link(self, name: bytes) -> bool:
        """Returns whether `name`, where `stat_file` found nothing, is a link to nowhere. Otherwise the file is gone."""
        return os.path.islink(self.join_path(name))  # noqa: PTH114 - names are bytes, which pathlib does not take


def stat_files(
    root: ConfinedRoot, files: MutableFiles, progress: Callable[[int], None]
) -> tuple[Int64s, Int64s, list[int]]:
    """Returns the sizes in bytes and mtimes in ns of `files`, and the positions of the missing ones.

    Names that are links are replaced in `files` by the names that they lead to. Raises ConfigError as
    `ConfinedRoot.stat_file` does.
    """
    # Each folder is resolved once, so that for a file only its last name remains to be checked for a link.
    folders = {name.rpartition(b"/")[0] for name in files}
    linked = {folder: inside for folder in sorted(folders) if (inside := root.resolve_name(folder)) != folder}
    sizes, mtimes_ns = np.zeros(len(files), dtype=np.int64), np.zeros(len(files), dtype=np.int64)
    missing: list[int] = []

    # Runs in this thread first, then in several. Each block writes to positions of its own in `sizes`, `mtimes_ns` and
    # `files`; appending to `missing` is atomic, and its order is restored at the end.
    def stat_block(start: int) -> int:
        rows = range(start, min(start + PROGRESS_FILES, len(files)))
        for row, name in zip(rows, files[rows.start : rows.stop], strict=True):
            folder, _, base = name.rpartition(b"/")
            inside = linked.get(folder) if linked else None
            found = root.stat_file(name if inside is None else join_name(inside, base))
            if found is None:
                missing.append(row)
                continue
            sizes[row], mtimes_ns[row] = found[1].st_size, found[1].st_mtime_ns
            if found[0] != name:
                files[row] = found[0]
        return len(rows)

    seen, starts, began_s = 0, iter(range(0, len(files), PROGRESS_FILES)), time.monotonic()
    for start in starts:
        seen += stat_block(start)
        progress(seen)
        if time.monotonic() - began_s > seen * _QUICK_STAT_S:
            break
    # The remaining blocks, if any. Where one of them raises, those that have begun are finished first.
    with ThreadPoolExecutor(_STAT_THREADS, "streamd-stat") as pool:
        for count in pool.map(stat_block, starts):
            seen += count
            progress(seen)
    return sizes, mtimes_ns, sorted(missing)


def join_name(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def find_near_names(lone: Iterable[bytes], others: Iterable[bytes]) -> dict[bytes, bytes]:
    """Returns for names the first of `others` that differs only in case, blanks or encoded letters.

    Where there is none, it is the first picture that differs so, and in its suffix.
    """
    whole: dict[str, bytes] = {}
    stems: dict[str, bytes] = {}
    for other in others:
        whole.setdefault(fold_name(os.fsdecode(other)), other)
        if other.lower().endswith(IMAGE_SUFFIXES):
            stems.setdefault(_fold_stem(other), other)
    found: dict[bytes, bytes] = {}
    for name in lone:
        near = whole.get(fold_name(os.fsdecode(name)))
        if near is None and posixpath.splitext(name)[1]:
            near = stems.get(_fold_stem(name))
        if near is not None:
            found[name] = near
    return found


def _fold_stem(name: bytes) -> str:
    return fold_name(os.fsdecode(posixpath.splitext(name)[0]))


def format_near_name(name: bytes, near: bytes) -> str:
    """Formats that `near` is there, and in what it differs from `name`; see `find_near_names`."""
    one, other = os.fsdecode(name), os.fsdecode(near)
    is_suffix = fold_name(one) != fold_name(other)
    difference = "the suffix" if is_suffix else describe_name_difference([one, other])
    return f"there is {format_path(near)}, which differs from {format_path(name)} only in {difference}"


def log_unmatched_labels(key: str, labels: Sequence[bytes], pictures: Mapping[bytes, bytes], total: int) -> None:
    """Logs label files that belong to no picture, and pictures that have none.

    `pictures` has the latter by the name that their label file would have; `total` counts all pictures.
    """
    near = find_near_names(labels, pictures)
    if labels:
        first = next((name for name in labels if name in near), None)
        hint = (
            ""
            if first is None
            else f"; for {format_path(pictures[near[first]])}, {format_near_name(near[first], first)}"
        )
        belongs = "label file belongs to no picture", "label files belong to no picture"
        _log.warning("%s: %s: %s%s", key, format_count(len(labels), *belongs), format_first_names(labels), hint)
    if pictures:
        counts = f"{len(pictures):,} of {format_count(total, 'picture')} have no label file"
        _log.info("%s: %s: %s", key, counts, format_first_names(pictures.values()))


def format_first_names(names: Iterable[bytes]) -> str:
    """Formats the first few names for a message."""
    return ", ".join(format_path(name) for name, _ in zip(names, range(_SHOWN_FILES), strict=False))
