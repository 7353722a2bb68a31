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
    image, more = _request_image_columns(stream, source, images or {})
    settings = columns.TextSettings(source.separator_mark, source.encoding, source.decimal)
    with raise_collected_faults() as faults:
        table = columns.read_table_header(source.path, f"{key}.path", settings)
        found, wanted = _read_sample_columns(
            stream, source, table, [image, *more.values()], labels, group_column, faults
        )
        own = next((each for name, each in (images or {}).items() if name not in more and not each.is_pattern), None)
        rows, root = found[image].rows, _resolve_image_root(own, source)
        # A mistake in a label does not keep the file names from being checked: one message names both.
        with faults.collect():
            values, specs, fixed = convert_labels(labels, wanted)
        wanted.clear()
        files = lookup.normalize_file_names(rows, cells.convert_to_nonempty_texts(found[image]), root, f"{key}.root")
        groups = _encode_groups(found, [image, *more.values()])
        roots = {name: _resolve_image_root((images or {})[name], source) for name in more}
        beside = {
            name: lookup.normalize_file_names(rows, cells.convert_to_nonempty_texts(found[ask]), roots[name], ask.key)
            for name, ask in more.items()
        }
        # The table's text is not needed while the files are looked up, which takes longest.
        found.clear()
        pa.default_memory_pool().release_unused()
        sizes, mtimes_ns = lookup.stat_listed_files(rows, root, files, f"{key}.root", progress)
        listed = {
            name: ImageFiles(
                names,
                *lookup.stat_listed_files(rows, roots[name], names, more[name].key, progress),
                None if roots[name] == root else roots[name],
            )
            for name, names in beside.items()
        }
    return ScannedSamples(root, files, sizes, mtimes_ns, values, specs, fixed, groups or None, images=listed)


def _request_image_columns(
    stream: str, source: TableSource, images: Mapping[str, ImageSource]
) -> tuple[ColumnRequest, dict[str, ColumnRequest]]:
    """Returns the column that gives each sample its file, and those of further images."""
    asked = {
        name: ColumnRequest(image.place, f"streams.{stream}.images.{name}", build_images_key(stream, name))
        for name, image in images.items()
        if image.place is not None and not image.is_pattern
    }
    if source.image is not None:
        key = f"streams.{stream}.source.image"
        return ColumnRequest(source.image, key, key), asked
    first = next(iter(asked))
    return asked.pop(first), asked


def _resolve_image_root(image: ImageSource | None, source: TableSource) -> Path:
    return lookup.resolve_root(source.root if image is None or image.root is None else image.root, source.path)


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
