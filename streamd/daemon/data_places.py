"""Checks that the files of a configuration are there, and that label files are not newer than the manifest.

File systems may be mounted late, or never answer. The manifest holds the mtimes of images, and the labels of tables and
lists, but not the mtimes of those files. Until --rescan, the labels of the manifest are served.
"""

from __future__ import annotations

import asyncio
import errno
import glob
import os
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from streamd.config.schema import Config, StreamConfig
from streamd.core import log
from streamd.daemon.file_system_events import FileSystemEvents
from streamd.daemon.slow_lookup import NO_ANSWER, SlowLookup, ask_in_thread
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.paths.confined import format_path
from streamd.limits import LOOK_FOR_DATA_S

_LASTING_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


def list_data_places(streams: Iterable[StreamConfig]) -> list[Path]:
    """Returns the files and folders that sources, labels and weights name, each once; of a pattern, its folder."""
    return list(dict.fromkeys(_strip_glob_pattern(path) for stream in streams for path in stream.data_paths))


def _strip_glob_pattern(path: Path) -> Path:
    """Returns the deepest folder above the wildcards of a path; the path itself if it has none, or exists."""
    if not glob.has_magic(str(path)) or path.exists():
        return path
    return next(parent for parent in path.parents if not glob.has_magic(str(parent)))


class DataPlaceLookups:
    """Checks whether the data that streams name are there. Their file systems may never answer."""

    def __init__(self, streams: Iterable[StreamConfig]) -> None:
        self._lookups = [
            SlowLookup(partial(find_absence_reason, path), f"{str(path)!r}: {NO_ANSWER}")
            for path in dict.fromkeys(path for stream in streams for path in stream.data_paths)
        ]

    async def find_absence_reasons(self) -> list[str]:
        """Returns a message for each place that is missing, is an empty folder, or cannot be reached now."""
        answers = await asyncio.gather(*(lookup.wait_for_answer() for lookup in self._lookups))
        return [absence for absence in dict.fromkeys(answers) if absence]


def find_absence_reason(path: Path) -> str:
    """Returns why data at a path are absent, or "". Blocks for as long as the file system takes."""
    place = _strip_glob_pattern(path)
    return f"{format_path(place)}: not there, or empty" if _is_absent_or_empty(place) else ""


def _is_absent_or_empty(place: Path) -> bool:
    """Whether a place is missing, empty, or cannot be read now. False for lasting errors: the listing reports them."""
    try:
        with os.scandir(place) as entries:
            return next(entries, None) is None
    except NotADirectoryError:
        return False  # a file
    except OSError as error:
        return error.errno not in _LASTING_ERRNOS


async def wait_for_mount(lookup_requested: asyncio.Event) -> None:
    """Returns after a mount or unmount, when `lookup_requested` is set, or after `LOOK_FOR_DATA_S`.

    The time limit is there because files may also appear without a mount.
    """
    mounts = FileSystemEvents()
    ways = [
        asyncio.ensure_future(mounts.wait_for_change(LOOK_FOR_DATA_S)),
        asyncio.ensure_future(lookup_requested.wait()),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Both have to end before the mount events are closed, which one of them waits for.
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        mounts.close()


def warn_of_newer_label_files(config: Config, streams: Iterable[ServedStream]) -> None:
    """Warns of label files newer than the manifest. Returns at once: warnings follow when file systems answer."""
    for each in streams:
        if files := config.streams[each.spec.name].label_files:
            asked = ask_in_thread(partial(find_files_newer_than_manifest, files, each.manifest_path))
            asked.add_done_callback(partial(_log_newer_label_files, each.spec.name))


def _log_newer_label_files(stream: str, asked: asyncio.Future[list[str]]) -> None:
    for file in asked.result():
        log.warning(
            "manifest.older",
            f"{file} was written after its samples were listed: restart with --rescan to list them again; until then, "
            "the old labels and files are served",
            stream=stream,
        )


def find_files_newer_than_manifest(files: Collection[Path], manifest: Path) -> list[str]:
    """Returns the files written after the manifest, as messages name them. Blocks while file systems do not answer."""
    written: list[str] = []
    for file in files:
        with suppress(OSError):  # other checks report what is wrong with these files
            found = file.stat()
            if stat.S_ISREG(found.st_mode) and found.st_mtime > manifest.stat().st_mtime:
                written.append(format_path(file))
    return written
