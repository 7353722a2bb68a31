"""What stands beside arrays of images: the columns of a table, other arrays; a row an image, in their order."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamd.dataset.arrays import NpySource
from streamd.dataset.files import table
from streamd.dataset.labels import cells, columns, npy_columns
from streamd.dataset.labels.cells import Column
from streamd.dataset.labels.columns import rows_where
from streamd.dataset.manifest.types import Int64s
from streamd.dataset.paths import patterns
from streamd.dataset.paths.confined import shown
from streamd.dataset.sources import LabelSource
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")


@dataclass(frozen=True, slots=True)
class Beside:
    """The `columns` of each label, the `groups` of a split, and which rows are samples, `kept`; None: all."""

    columns: dict[str, list[Column]]
    groups: list[bytes] | None
    kept: Int64s | None


def read(
    stream: str, source: NpySource, labels: Mapping[str, LabelSource], group_column: str | None, images: int
) -> Beside:
    """Reads what the configuration asks for. Raises ConfigError unless it has as many rows as there are `images`."""
    where, by = f"streams.{stream}.source.where", f"streams.{stream}.split.by"
    asked = table.asked_of(stream, labels)
    group = [] if group_column is None else [table.Ask(group_column, by, by)]
    tests = table.tests_of(source.where or {}, where)
    asks = [*(ask for several in asked.values() for ask in several), *group, *tests.values()]
    found = _of_table(f"streams.{stream}.source.table", source.table, asks, images)
    kept = rows_where(source.where, {name: found[ask] for name, ask in tests.items()}) if source.where else None
    wanted = {name: [found[ask] for ask in several] for name, several in asked.items()}
    wanted |= npy_columns.of_files(stream, labels, images)
    if kept is not None:
        found = {ask: table.only(found[ask], kept) for ask in group}
        wanted = {name: [table.only(column, kept) for column in several] for name, several in wanted.items()}
    groups = [text for ask in group for text in cells.as_bytes(cells.as_texts(found[ask]))]
    return Beside(wanted, groups if group else None, kept)


def _of_table(key: str, path: Path | None, asks: Sequence[table.Ask], images: int) -> dict[table.Ask, Column]:
    if path is None and asks:
        raise ConfigError(
            f"{asks[0].key}: there is no table that has {asks[0].column!r}; add table: FILE to the source, or take the "
            f"label from an array, from: FILE{patterns.SUFFIX}"
        )
    if path is None:
        return {}
    opened = columns.open_table(path, key)
    if not asks:
        _log.warning("%s: nothing is taken from %s; name its columns in labels", key, shown(path))
        return {}
    found = table.read(opened, asks)
    npy_columns.check_rows(key, shown(path), len(found[asks[0]].cells), images)
    return found
