"""Where the data of a configuration lie, and whether they are there yet: file systems may be mounted late."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from streamd.config import StreamConfig
from streamd.engines.mounts import MountEvents
from streamd.limits import LOOK_FOR_DATA_S

_MISTAKES: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


def data_places(streams: Iterable[StreamConfig]) -> list[Path]:
    """The files and folders that sources, labels and weights name, each once; of a pattern, its first folder."""
    return list(dict.fromkeys(place for stream in streams for place in _places(stream)))


def _places(stream: StreamConfig) -> Iterator[Path]:
    for name in ("path", "root", "table"):
        place = getattr(stream.source, name, None)
        if place is not None:
            yield _without_pattern(Path(place))
    yield from stream.array_files


def _without_pattern(path: Path) -> Path:
    """What of a path a shell would not fill in; a file whose own name looks like a pattern is named by itself."""
    if not glob.has_magic(str(path)) or path.exists():
        return path
    return next(parent for parent in path.parents if not glob.has_magic(str(parent)))


def absent_places(streams: Iterable[StreamConfig]) -> list[Path]:
    """Those that are not there, are folders with nothing in them, or cannot be reached now."""
    return [place for place in data_places(streams) if _is_absent(place)]


def _is_absent(place: Path) -> bool:
    """Also while a file server does not answer. What waiting does not mend is left to the listing, which names it."""
    try:
        with os.scandir(place) as entries:
            return next(entries, None) is None
    except NotADirectoryError:
        return False  # a file
    except OSError as error:
        return error.errno not in _MISTAKES


async def wait_for_mount() -> None:
    """Returns when something was mounted or unmounted, or after `LOOK_FOR_DATA_S`: files may come by other ways."""
    mounts = MountEvents()
    try:
        await mounts.change(LOOK_FOR_DATA_S)
    finally:
        mounts.close()
