"""The files that a configuration names: whether they are there yet, and whether labels are newer than their listing.

File systems may be mounted late, or never answer. Images have their mtimes in the manifest; a table or a list, whose
labels are there too, has none: until --rescan, the list's labels are served.
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
from streamd.daemon.engine.mount_events import MountEvents
from streamd.daemon.slow_lookup import NO_ANSWER, SlowLookup, ask_in_thread
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.paths.confined import format_path
from streamd.limits import LOOK_FOR_DATA_S

_LASTING_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


def list_data_places(streams: Iterable[StreamConfig]) -> list[Path]:
    """The files and folders that sources, labels and weights name, each once; of a pattern, its first folder."""
    return list(dict.fromkeys(_strip_glob_pattern(path) for stream in streams for path in stream.data_paths))


def _strip_glob_pattern(path: Path) -> Path:
    """What of a path a shell would not fill in; a file whose own name looks like a pattern is named by itself."""
    if not glob.has_magic(str(path)) or path.exists():
        return path
    return next(parent for parent in path.parents if not glob.has_magic(str(parent)))


class DataPlaceLookups:
    """Looks for the data that streams name, whose file systems may never answer."""

    def __init__(self, streams: Iterable[StreamConfig]) -> None:
        self._lookups = [
            SlowLookup(partial(find_absence_reason, path), f"{str(path)!r}: {NO_ANSWER}")
            for path in dict.fromkeys(path for stream in streams for path in stream.data_paths)
        ]

    async def find_absence_reasons(self) -> list[str]:
        """Those that are not there, are folders with nothing in them, or cannot be reached now, as messages say it."""
        answers = await asyncio.gather(*(lookup.wait_for_answer() for lookup in self._lookups))
        return [absence for absence in dict.fromkeys(answers) if absence]


def find_absence_reason(path: Path) -> str:
    """What is absent of a path of the data, nothing if it is there. It asks a file system, as long as that takes."""
    place = _strip_glob_pattern(path)
    return f"{format_path(place)}: not there, or empty" if _is_absent_or_empty(place) else ""


def _is_absent_or_empty(place: Path) -> bool:
    """Also while a file server does not answer. What waiting does not mend is left to the listing, which names it."""
    try:
        with os.scandir(place) as entries:
            return next(entries, None) is None
    except NotADirectoryError:
        return False  # a file
    except OSError as error:
        return error.errno not in _LASTING_ERRNOS


async def wait_for_mount(lookup_requested: asyncio.Event) -> None:
    """Returns when something was mounted or unmounted, or when a look is `lookup_requested`.

    And after `LOOK_FOR_DATA_S`: files may come by other ways.
    """
    mounts = MountEvents()
    ways = [
        asyncio.ensure_future(mounts.wait_for_change(LOOK_FOR_DATA_S)),
        asyncio.ensure_future(lookup_requested.wait()),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        mounts.close()


def warn_of_newer_label_files(config: Config, streams: Iterable[ServedStream]) -> None:
    """Warns of such files of these streams, once their file systems have answered; it does not wait for that."""
    for each in streams:
        if files := config.streams[each.spec.name].label_files:
            asked = ask_in_thread(partial(find_files_newer_than_manifest, files, each.manifest_path))
            asked.add_done_callback(partial(_log_newer_label_files, each.spec.name))


def _log_newer_label_files(stream: str, asked: asyncio.Future[list[str]]) -> None:
    for file in asked.result():
        log.warning(
            "manifest.older",
            f"{file} was written after its samples were listed: --rescan lists them anew, until then labels and files "
            "are those of before",
            stream=stream,
        )


def find_files_newer_than_manifest(files: Collection[Path], manifest: Path) -> list[str]:
    """Those that were written after the manifest, as messages name them. It asks file systems, as long as they take."""
    written: list[str] = []
    for file in files:
        with suppress(OSError):  # the looks for the data say what is wrong with them
            found = file.stat()
            if stat.S_ISREG(found.st_mode) and found.st_mtime > manifest.stat().st_mtime:
                written.append(format_path(file))
    return written
