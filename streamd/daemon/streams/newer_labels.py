"""Files of labels that were written after their samples were listed: until --rescan, the list's labels are served.

Images have their mtimes in the manifest; a table or a list, whose labels are there too, has none.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from streamd.config import Config, StreamConfig
from streamd.config.schema_sources import FolderSource, NpySource
from streamd.core import log
from streamd.daemon.slow_lookup import ask_in_thread
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.paths.confined import shown


def warn_of_labels(config: Config, streams: Iterable[ServedStream]) -> None:
    """Warns of such files of these streams, once their file systems have answered; it does not wait for that."""
    for each in streams:
        files = list(_label_files(config.streams[each.spec.name]))
        if files:
            asked = ask_in_thread(partial(find_written, files, each.manifest_path))
            asked.add_done_callback(partial(_warn, each.spec.name))


def _warn(stream: str, asked: asyncio.Future[list[str]]) -> None:
    for file in asked.result():
        log.warning(
            "manifest.older",
            f"{file} was written after its samples were listed: --rescan lists them anew, until then labels and files "
            "are those of before",
            stream=stream,
        )


def find_written(files: Collection[Path], manifest: Path) -> list[str]:
    """Those that were written after the manifest, as messages name them. It asks file systems, as long as they take."""
    written: list[str] = []
    for file in files:
        with suppress(OSError):  # the looks for the data say what is wrong with them
            found = file.stat()
            if stat.S_ISREG(found.st_mode) and found.st_mtime > manifest.stat().st_mtime:
                written.append(shown(file))
    return written


def _label_files(stream: StreamConfig) -> Iterator[Path]:
    """The files that labels and weights are taken from."""
    if isinstance(stream.source, NpySource):
        if stream.source.table is not None:
            yield stream.source.table
    elif not isinstance(stream.source, FolderSource):
        yield Path(stream.source.path)
    yield from stream.array_files
