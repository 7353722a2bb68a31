"""`kind: table`: one row a sample, in the table's order; a column of file names, and columns of labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from streamd.errors import ConfigError
from streamd.sources import cells, columns, names
from streamd.sources.cells import Column, Rows
from streamd.sources.conditions import rows_where
from streamd.sources.values import labels_of
from streamd.sources.wanted import Scalar, Scanned, WantedLabel, WantedTable


@dataclass(frozen=True, slots=True)
class _Ask:
    """A column, the key of the configuration that wants it, and the key that names it."""

    column: str
    key: str
    named_by: str


def scan(
    stream: str,
    source: WantedTable,
    labels: Mapping[str, WantedLabel],
    group_column: str | None,
    progress: Callable[[int], None],
) -> Scanned:
    """Lists the rows of a table. `group_column` is the one that a split goes by."""
    key = f"streams.{stream}.source"
    image = _Ask(source.image, f"{key}.image", f"{key}.image")
    by = f"streams.{stream}.split.by"
    group = None if group_column is None else _Ask(group_column, by, by)
    asked = {name: _asks(name, label, f"streams.{stream}.labels.{name}") for name, label in labels.items()}
    table = columns.open_table(source.path, f"{key}.path")
    asks = [image, *(ask for several in asked.values() for ask in several), *([group] if group else [])]
    read = _read(table, asks, source.where or {}, f"{key}.where")
    rows, root = read[image].rows, names.root_of(source.root, source.path)
    files = names.tidy(rows, cells.as_texts(read[image]), root, f"{key}.root")
    values, specs, fixed = labels_of(labels, {name: [read[ask] for ask in several] for name, several in asked.items()})
    groups = None if group is None else cells.as_bytes(cells.as_texts(read[group]))
    sizes, mtimes_ns = names.look_up(rows, root, files, f"{key}.root", progress)
    return Scanned(root, files, sizes, mtimes_ns, values, specs, fixed, groups)


def _asks(name: str, label: WantedLabel, key: str) -> list[_Ask]:
    match label.source:
        case None:
            return [_Ask(name, key, key)]
        case str() as column:
            return [_Ask(column, key, f"{key}.from")]
        case tuple() as several if all(isinstance(column, str) for column in several):
            return [_Ask(column, key, f"{key}.from") for column in several]
    raise ConfigError(f"{key}.from: {label.source!r} is not served by this version for a table; name columns")


def _read(table: columns.Table, asks: Sequence[_Ask], conditions: Mapping[str, Scalar], key: str) -> dict[_Ask, Column]:
    """The columns asked for, of the rows that meet the conditions."""
    tested = {name: _Ask(name, f"{key}.{name}", f"{key}.{name}") for name in conditions}
    positions = {ask: table.position(ask.column, ask.named_by) for ask in (*asks, *tested.values())}
    read = columns.read_columns(table, list(positions.values()))
    rows = Rows(table.path, table.place)
    found = {ask: Column(read[positions[ask]], f"column {ask.column!r}", rows, ask.key) for ask in positions}
    if not conditions:
        return found
    kept = rows_where(conditions, {name: found[ask] for name, ask in tested.items()})
    kept_rows = Rows(table.path, lambda row: table.place(int(kept[row])))
    return {ask: replace(found[ask], cells=found[ask].cells.take(pa.array(kept)), rows=kept_rows) for ask in asks}
