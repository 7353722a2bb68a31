"""Sources: from a configured stream to the list of its samples.

    folder     one sub-folder a class, or flat          table      CSV, TSV, Parquet
    columns    a table's cells, with their lines        labels     values to numbers and classes (pure)
    files      names to sizes, confined to their root   wanted     the seams: what is asked for, what is given back

A new kind is one file with `scan(stream name, source, labels, progress) -> Scanned` and two lines below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from streamd.errors import ConfigError, MissingExtraError
from streamd.sources import folder
from streamd.sources.labels import share_classes
from streamd.sources.wanted import Scanned, WantedFolder, WantedStream, WantedTable

__all__ = ["Scanned", "scan", "share_classes"]


def scan(stream: WantedStream, progress: Callable[[int], None]) -> Scanned:
    """Lists the samples of `stream`; `progress` is told now and then how many files have been seen so far.

    Raises ConfigError for whatever is wrong with the data, with what to do about it.
    """
    source, labels = stream.source, stream.labels
    match source.kind:
        case "folder":
            return folder.scan(stream.name, cast("WantedFolder", source), labels, progress)
        case "table":
            return _scan_table(stream, cast("WantedTable", source), progress)
    raise ConfigError(
        f"streams.{stream.name}.source: kind {source.kind} is not served by this version; use folder or table"
    )


def _scan_table(stream: WantedStream, source: WantedTable, progress: Callable[[int], None]) -> Scanned:
    try:
        from streamd.sources.table import scan as scan_table  # noqa: PLC0415 - pyarrow takes a while to load, and folders do without it
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pyarrow"):
            raise
        raise MissingExtraError("pyarrow", "serve", f"the table of stream {stream.name!r}") from error
    return scan_table(stream.name, source, stream.labels, progress)
