"""`kind: table`: one row a sample, in the table's order, with a column of file names and columns of labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from streamd.dataset.files import TableSource, lookup
from streamd.dataset.files.beside import build_images_key
from streamd.dataset.labels import cells, columns, npy_columns
from streamd.dataset.labels.cells import Column, SourceRows
from streamd.dataset.labels.columns import select_rows
from streamd.dataset.labels.convert import convert_labels
from streamd.dataset.labels.faults import FaultCollector, raise_collected_faults
from streamd.dataset.manifest.columns import split_rows_by_column_piece
from streamd.dataset.manifest.types import ImageFiles, Int64s, ScannedSamples, build_label_key
from streamd.dataset.paths.path_column import PathColumn
from streamd.dataset.sources import ImageSource, LabelSource, Scalar


@dataclass(frozen=True, slots=True)
class ColumnRequest:
    """A column, the configuration key that needs it (`key`), and the key that names it (`named_by`)."""

    column: str
    key: str
    named_by: str


def scan_table(
    stream: str,
    source: TableSource,
    labels: Mapping[str, LabelSource],
    progress: Callable[[int], None],
    group_column: str | None = None,
    images: Mapping[str, ImageSource] | None = None,
) -> ScannedSamples:
    """Lists the rows of a table. `group_column` is the column by which the stream is split. Raises ConfigError.

    `images` names the columns of several images a row. Without a column of the source's own, the first of them gives
    each sample its file.
    """
    key = f"streams.{stream}.source"
    asked = _ImageColumns.from_request(stream, source, images or {})
    settings = columns.TextSettings(source.separator_mark, source.encoding, source.decimal)
    with raise_collected_faults() as faults:
        table = columns.read_table_header(source.path, f"{key}.path", settings)
        found, wanted = _read_sample_columns(stream, source, table, asked.requests, labels, group_column, faults)
        rows, root = found[asked.own].rows, asked.root
        # A mistake in a label does not keep the file names from being checked: one message names both.
        with faults.collect():
            values, specs, fixed = convert_labels(labels, wanted)
        wanted.clear()
        texts = cells.convert_to_nonempty_texts(found[asked.own])
        files = lookup.normalize_file_names(rows, texts, root, f"{key}.root")
        groups, beside = _encode_groups(found, asked.requests), asked.normalize_names(found)
        # The table's text is not needed while the files are looked up, which takes longest.
        del texts
        found.clear()
        pa.default_memory_pool().release_unused()
        sizes, mtimes_ns = lookup.stat_listed_files(rows, root, files, f"{key}.root", progress)
        listed = asked.stat_images(rows, beside, progress)
    return ScannedSamples(root, files, sizes, mtimes_ns, values, specs, fixed, groups or None, images=listed)


@dataclass(frozen=True, slots=True)
class _ImageColumns:
    """The column that gives each sample its file, `own`, and those of further images by name, each with its root."""

    own: ColumnRequest
    root: Path
    more: dict[str, ColumnRequest]
    roots: dict[str, Path]

    @staticmethod
    def from_request(stream: str, source: TableSource, images: Mapping[str, ImageSource]) -> _ImageColumns:
        """Returns the columns of `images`. Without one of the source's own, the first gives each sample its file."""
        named = {name: image for name, image in images.items() if image.place is not None and not image.is_pattern}
        more = {
            name: ColumnRequest(str(image.place), f"streams.{stream}.images.{name}", build_images_key(stream, name))
            for name, image in named.items()
        }
        roots = {name: lookup.resolve_root(image.root or source.root, source.path) for name, image in named.items()}
        if source.image is not None:
            key = f"streams.{stream}.source.image"
            root = lookup.resolve_root(source.root, source.path)
            return _ImageColumns(ColumnRequest(source.image, key, key), root, more, roots)
        first = next(iter(more))
        return _ImageColumns(more.pop(first), roots.pop(first), more, roots)

    @property
    def requests(self) -> list[ColumnRequest]:
        """All of the columns, the sample's own first."""
        return [self.own, *self.more.values()]

    def normalize_names(self, found: Mapping[ColumnRequest, Column]) -> dict[str, PathColumn]:
        """Returns the file names of further images. Raises ConfigError for names that lead out of their root."""
        return {
            name: lookup.normalize_file_names(
                found[ask].rows, cells.convert_to_nonempty_texts(found[ask]), self.roots[name], ask.named_by
            )
            for name, ask in self.more.items()
        }

    def stat_images(
        self, rows: SourceRows, names: Mapping[str, PathColumn], progress: Callable[[int], None]
    ) -> dict[str, ImageFiles]:
        """Returns the files of further images, with their sizes and mtimes. Raises ConfigError for missing ones."""
        return {
            name: ImageFiles(
                files,
                *lookup.stat_listed_files(rows, self.roots[name], files, self.more[name].named_by, progress),
                None if self.roots[name] == self.root else self.roots[name],
            )
            for name, files in names.items()
        }


def _encode_groups(found: Mapping[ColumnRequest, Column], images: Sequence[ColumnRequest]) -> list[bytes]:
    """Returns the values by which the samples are split; none where that is a column of file names."""
    return [
        text
        for ask in found
        if ask not in images
        for text in cells.encode_texts(cells.convert_to_nonempty_texts(found[ask]))
    ]


def _read_sample_columns(
    stream: str,
    source: TableSource,
    table: columns.TableFile,
    images: Sequence[ColumnRequest],
    labels: Mapping[str, LabelSource],
    group_column: str | None,
    faults: FaultCollector,
) -> tuple[dict[ColumnRequest, Column], dict[str, list[Column]]]:
    """Returns the columns of file names and groups, and those of each label, of the rows that are samples."""
    by, where = f"streams.{stream}.split.by", source.where or {}
    own = [*images] if group_column is None else [*images, ColumnRequest(group_column, by, by)]
    asked, tests = (
        build_label_column_requests(stream, labels),
        build_condition_column_requests(where, f"streams.{stream}.source.where"),
    )
    found = read_requested_columns(
        table, [*own, *(ask for several in asked.values() for ask in several), *tests.values()], faults
    )
    wanted = {name: [found[ask] for ask in several] for name, several in asked.items()}
    # Files of labels have a row for each row of the table, so they are read before `where` selects any rows.
    wanted |= npy_columns.read_label_files(stream, labels, len(found[images[0]].cells))
    if where:
        kept = select_rows(where, {name: found[ask] for name, ask in tests.items()})
        found = {ask: select_column_rows(found[ask], kept) for ask in own}
        wanted = {name: [select_column_rows(column, kept) for column in several] for name, several in wanted.items()}
    return {ask: found[ask] for ask in own}, wanted


def build_label_column_requests(stream: str, labels: Mapping[str, LabelSource]) -> dict[str, list[ColumnRequest]]:
    """Returns the columns that each label is made of, without the labels that .npy files hold."""
    requests: dict[str, list[ColumnRequest]] = {}
    for name, label in labels.items():
        if label.file is None:
            key = build_label_key(stream, name)
            named_by = key if label.source is None else f"{key}.from"
            requests[name] = [ColumnRequest(column, key, named_by) for column in label.list_columns(name)]
    return requests


def build_condition_column_requests(conditions: Mapping[str, Scalar], key: str) -> dict[str, ColumnRequest]:
    """Returns the column that each condition compares; `key` is the key of all conditions."""
    return {name: ColumnRequest(name, f"{key}.{name}", f"{key}.{name}") for name in conditions}


def read_requested_columns(
    table: columns.TableFile, requests: Sequence[ColumnRequest], faults: FaultCollector
) -> dict[ColumnRequest, Column]:
    """Reads the requested columns. Rows of another width than the header are left out, and added to `faults`."""
    positions = {ask: table.find_column_index(ask.column, ask.named_by) for ask in requests}
    cells_at = columns.read_columns(table, list(positions.values()), faults)
    mark = None if table.text is None else table.text.decimal_mark
    rows = SourceRows(table.path, table.format_location)
    return {ask: Column(cells_at[positions[ask]], f"column {ask.column!r}", rows, ask.key, mark) for ask in positions}


def select_column_rows(column: Column, kept: Int64s) -> Column:
    """Returns the rows `kept` of a column. Locations still refer to the rows of the file."""
    rows = SourceRows(column.rows.path, lambda row: column.rows.format_location(int(kept[row])))
    return replace(column, cells=_select_cell_rows(column.cells, kept), rows=rows)


def _select_cell_rows(several: cells.Cells, kept: Int64s) -> cells.Cells:
    """Returns the rows `kept` of some cells.

    Takes them from each piece, since pyarrow would first join all pieces into one.
    """
    if not isinstance(several, pa.ChunkedArray):
        return several.take(pa.array(kept))
    taken = [piece.take(pa.array(rows)) for piece, rows in split_rows_by_column_piece(several.chunks, kept)]
    return pa.chunked_array(taken, several.type)
