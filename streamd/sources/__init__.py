"""Sources: from a configured stream to the list of its samples.

    table → columns → conditions ┐         ┌ values → labels, tags ┐
    filelist                     ┼→ cells ─┴ names → files         ┼→ Scanned → parts → sharing → manifest
    npy → shards, beside         ┘                                 │
    folder → labels, files                                         ┘

    folder     one sub-folder a class, or flat          names      names as spelled to files below the root
    table      CSV, TSV, Parquet                        files      names to sizes, confined to their root
    filelist   lines `path label`                       values     cells to labels, by their type
    npy        images that are rows of arrays           labels     categories, numbers, strings (pure)
    columns    a table's cells, with their lines        tags       any number of classes a sample (pure)
    conditions the rows that `where` asks for           shards     .npy files and their headers
    cells      cells to texts, numbers, lists           beside     a table or arrays of labels, a row an image
    wanted     the seams: asked for, given back         parts      train and validation (pure)
    sharing    one class list for all streams (pure)    spelled    names in a column, cut when asked for (pure)

A new kind is one file with `scan(stream name, source, labels, progress) -> Scanned` and two lines below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from streamd.errors import ConfigError, MissingExtraError
from streamd.sources import folder
from streamd.sources.parts import group_column, take_part
from streamd.sources.sharing import share_classes
from streamd.sources.wanted import Scanned, WantedFilelist, WantedFolder, WantedNpy, WantedStream, WantedTable

__all__ = ["Scanned", "group_column", "scan", "share_classes", "take_part"]


def scan(stream: WantedStream, progress: Callable[[int], None]) -> Scanned:
    """Lists the samples of all parts of `stream`'s source; `take_part` keeps the stream's own.

    `progress` is told now and then how many files have been seen so far. Raises ConfigError for whatever is wrong with
    the data, with what to do about it.
    """
    name, source, labels, grouped_by = stream.name, stream.source, stream.labels, group_column(stream)
    match source.kind:
        case "folder":
            return folder.scan(name, cast("WantedFolder", source), labels, progress)
        case "table":
            with _needing_pyarrow(f"the table of stream {name!r}"):
                from streamd.sources.table import scan as scan_table  # noqa: PLC0415 - loads pyarrow, which takes a while
            return scan_table(name, cast("WantedTable", source), labels or {}, grouped_by, progress)
        case "filelist":
            with _needing_pyarrow(f"the list of stream {name!r}"):
                from streamd.sources.filelist import scan as scan_list  # noqa: PLC0415 - as above
            return scan_list(name, cast("WantedFilelist", source), labels, progress)
        case "npy":
            with _needing_pyarrow(f"the labels of stream {name!r}"):
                from streamd.sources.npy import scan as scan_arrays  # noqa: PLC0415 - as above
            return scan_arrays(name, cast("WantedNpy", source), labels or {}, grouped_by, progress)
    raise ConfigError(
        f"streams.{name}.source: kind {source.kind} is not served by this version; use folder, table, filelist or npy"
    )


@contextmanager
def _needing_pyarrow(purpose: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pyarrow"):
            raise
        raise MissingExtraError("pyarrow", "serve", purpose) from error
