"""The samples of a source, whatever its kind.

A new kind is one folder with `scan(stream name, source, labels, progress) -> Scanned` and two lines below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final, cast

from streamd.dataset.files import folder
from streamd.dataset.labels.shared_classes import share_classes
from streamd.dataset.labels.weights import asked, split_by_file, weighed
from streamd.dataset.manifest.types import (
    Scanned,
    WantedFilelist,
    WantedFolder,
    WantedHdf5,
    WantedLabel,
    WantedLmdb,
    WantedNpy,
    WantedStream,
    WantedTable,
    WantedTar,
)
from streamd.dataset.split import group_column, take_part
from streamd.errors import ConfigError, MissingExtraError

_WITH_COLUMNS: Final = frozenset({"table", "npy", "hdf5", "lmdb"})  # arrays of labels are among them

__all__ = ["Scanned", "group_column", "scan", "share_classes", "take_part"]


def scan(stream: WantedStream, progress: Callable[[int], None]) -> Scanned:
    """Lists the samples of all parts of `stream`'s source; `take_part` keeps the stream's own.

    `progress` is told now and then how many files have been seen so far. Raises ConfigError for whatever is wrong with
    the data, with what to do about it.
    """
    if stream.source.kind in _WITH_COLUMNS:
        return weighed(_scan(stream, asked(stream), progress))
    labels, files = split_by_file(stream)
    scanned = _scan(stream, labels, progress)
    if not files:
        return weighed(scanned)
    with _needing_pyarrow(f"the arrays beside stream {stream.name!r}"):
        from streamd.dataset.labels.npy_columns import beside  # noqa: PLC0415 - loads pyarrow, which takes a while
    return weighed(beside(stream, files, scanned))


def _scan(stream: WantedStream, labels: Mapping[str, WantedLabel] | None, progress: Callable[[int], None]) -> Scanned:
    name, source, grouped_by = stream.name, stream.source, group_column(stream)
    match source.kind:
        case "folder":
            return folder.scan(name, cast("WantedFolder", source), labels, progress)
        case "table":
            with _needing_pyarrow(f"the table of stream {name!r}"):
                from streamd.dataset.files.table import scan as scan_table  # noqa: PLC0415 - loads pyarrow, which takes a while
            return scan_table(name, cast("WantedTable", source), labels or {}, grouped_by, progress)
        case "filelist":
            with _needing_pyarrow(f"the list of stream {name!r}"):
                from streamd.dataset.files.filelist import scan as scan_list  # noqa: PLC0415 - as above
            return scan_list(name, cast("WantedFilelist", source), labels, progress)
        case "npy" | "hdf5" | "lmdb":
            return _scan_arrays(stream, labels or {}, progress)
        case "tar":
            with _needing_pyarrow(f"the labels of stream {name!r}"):
                from streamd.dataset.tar.scan import scan as scan_shards  # noqa: PLC0415 - as above
            return scan_shards(name, cast("WantedTar", source), labels, progress)
    raise ConfigError(
        f"streams.{name}.source: kind {source.kind} is not served by this version; use folder, table, filelist, npy, "
        "hdf5, lmdb or tar"
    )


def _scan_arrays(stream: WantedStream, labels: Mapping[str, WantedLabel], progress: Callable[[int], None]) -> Scanned:
    """Lists images that are decoded already."""
    name, source = stream.name, stream.source
    with _needing_pyarrow(f"the labels of stream {name!r}"):
        from streamd.dataset.arrays.npy_scan import scan as scan_npy  # noqa: PLC0415 - loads pyarrow, which takes a while
    match source.kind:
        case "npy":
            return scan_npy(name, cast("WantedNpy", source), labels, group_column(stream), progress)
        case "hdf5":
            from streamd.dataset.hdf5.scan import scan as scan_hdf5  # noqa: PLC0415 - as above

            return scan_hdf5(name, cast("WantedHdf5", source), labels, progress)
        case _:
            with _needing("lmdb", f"the samples of stream {name!r}"):
                from streamd.dataset.lmdb.scan import scan as scan_lmdb  # noqa: PLC0415 - loads LMDB, which may be missing
            return scan_lmdb(name, cast("WantedLmdb", source), labels, progress)


def _needing_pyarrow(purpose: str) -> AbstractContextManager[None]:
    return _needing("pyarrow", purpose, extra="serve")


@contextmanager
def _needing(library: str, purpose: str, *, extra: str = "") -> Iterator[None]:
    """Names the `extra` that installs a library, called like it where none is given, when it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise MissingExtraError(library, extra or library, purpose) from error
