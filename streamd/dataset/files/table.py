"""`kind: table`: one row a sample, in the table's order; a column of file names, and columns of labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from streamd.dataset.files import TableSource, lookup
from streamd.dataset.labels import cells, columns, npy_columns
from streamd.dataset.labels.cells import Column, Rows
from streamd.dataset.labels.columns import rows_where
from streamd.dataset.labels.convert import labels_of
from streamd.dataset.manifest.text_column import by_piece
from streamd.dataset.manifest.types import Int64s, Scanned, key_of
from streamd.dataset.sources import LabelSource, Scalar
from streamd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Ask:
    """A column, the key of the configuration that wants it, and the key that names it."""

    column: str
    key: str
    named_by: str


def scan_table(
    stream: str,
    source: TableSource,
    labels: Mapping[str, LabelSource],
    progress: Callable[[int], None],
    group_column: str | None = None,
) -> Scanned:
    """Lists the rows of a table. `group_column` is the one that a split goes by."""
    key = f"streams.{stream}.source"
    image = Ask(source.image, f"{key}.image", f"{key}.image")
    table = columns.open_table(source.path, f"{key}.path")
    found, wanted = _taken(stream, source, table, image, labels, group_column)
    rows, root = found[image].rows, lookup.root_of(source.root, source.path)
    files = lookup.tidy(rows, cells.as_texts(found[image]), root, f"{key}.root")
    values, specs, fixed = labels_of(labels, wanted)
    groups = [text for ask in found if ask != image for text in cells.as_bytes(cells.as_texts(found[ask]))]
    found.clear()  # the table's text, which nobody needs while the files are looked up
    wanted.clear()
    pa.default_memory_pool().release_unused()
    sizes, mtimes_ns = lookup.look_up(rows, root, files, f"{key}.root", progress)
    return Scanned(root, files, sizes, mtimes_ns, values, specs, fixed, groups or None)


def _taken(
    stream: str,
    source: TableSource,
    table: columns.Table,
    image: Ask,
    labels: Mapping[str, LabelSource],
    group_column: str | None,
) -> tuple[dict[Ask, Column], dict[str, list[Column]]]:
    """The columns of the file names and of the groups, and those of the labels, of the rows that are samples."""
    by, where = f"streams.{stream}.split.by", source.where or {}
    own = [image] if group_column is None else [image, Ask(group_column, by, by)]
    asked, tests = asked_of(stream, labels), tests_of(where, f"streams.{stream}.source.where")
    found = read(table, [*own, *(ask for several in asked.values() for ask in several), *tests.values()])
    wanted = {name: [found[ask] for ask in several] for name, several in asked.items()}
    wanted |= npy_columns.of_files(stream, labels, len(found[image].cells))
    if where:
        kept = rows_where(where, {name: found[ask] for name, ask in tests.items()})
        found = {ask: only(found[ask], kept) for ask in own}
        wanted = {name: [only(column, kept) for column in several] for name, several in wanted.items()}
    return {ask: found[ask] for ask in own}, wanted


def asked_of(stream: str, labels: Mapping[str, LabelSource]) -> dict[str, list[Ask]]:
    """The columns that each label is made of, but for those that files hold."""
    return {name: _asks_of(name, label, key_of(stream, name)) for name, label in labels.items() if not label.file}


def _asks_of(name: str, label: LabelSource, key: str) -> list[Ask]:
    """The columns that a label is made of; `key` is the label's own."""
    match label.source:
        case None:
            return [Ask(name, key, key)]
        case str() as column:
            return [Ask(column, key, f"{key}.from")]
        case tuple() as several if all(isinstance(column, str) for column in several):
            return [Ask(column, key, f"{key}.from") for column in several]
    raise ConfigError(f"{key}.from: {label.source!r} is not served by this version for a table; name columns")


def tests_of(conditions: Mapping[str, Scalar], key: str) -> dict[str, Ask]:
    """The column that each of the conditions looks at; `key` is that of all."""
    return {name: Ask(name, f"{key}.{name}", f"{key}.{name}") for name in conditions}


def read(table: columns.Table, asks: Sequence[Ask]) -> dict[Ask, Column]:
    """The columns asked for, with all their rows."""
    positions = {ask: table.position(ask.column, ask.named_by) for ask in asks}
    cells_at = columns.read_columns(table, list(positions.values()))
    rows = Rows(table.path, table.place)
    return {ask: Column(cells_at[positions[ask]], f"column {ask.column!r}", rows, ask.key) for ask in positions}


def only(column: Column, kept: Int64s) -> Column:
    """The rows `kept` of a column; places still tell where they stand."""
    rows = Rows(column.rows.path, lambda row: column.rows.place(int(kept[row])))
    return replace(column, cells=_taken_of(column.cells, kept), rows=rows)


def _taken_of(several: cells.Cells, kept: Int64s) -> cells.Cells:
    """The rows `kept` of some cells; of their pieces one by one, for pyarrow would first make them into one."""
    if not isinstance(several, pa.ChunkedArray):
        return several.take(pa.array(kept))
    taken = [piece.take(pa.array(rows)) for piece, rows in by_piece(several.chunks, kept)]
    return pa.chunked_array(taken, several.type)
