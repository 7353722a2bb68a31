"""What stands beside arrays of images: the columns of a table, other arrays; a row an image, in their order."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamd.errors import ConfigError
from streamd.sources import cells, columns, shards, table
from streamd.sources.cells import Column, Rows
from streamd.sources.conditions import rows_where
from streamd.sources.files import shown
from streamd.sources.wanted import Int64s, WantedLabel, WantedNpy

_log: Final = logging.getLogger("streamd.sources")
_KINDS: Final = "biufSU"  # of dtypes: numbers and texts
_VECTOR: Final = 2  # dimensions


@dataclass(frozen=True, slots=True)
class Beside:
    """The `columns` of each label, the `groups` of a split, and which rows are samples, `kept`; None: all."""

    columns: dict[str, list[Column]]
    groups: list[bytes] | None
    kept: Int64s | None


def read(
    stream: str, source: WantedNpy, labels: Mapping[str, WantedLabel], group_column: str | None, images: int
) -> Beside:
    """Reads what the configuration asks for. Raises ConfigError unless it has as many rows as there are `images`."""
    where, by = f"streams.{stream}.source.where", f"streams.{stream}.split.by"
    keys = {name: f"streams.{stream}.labels.{name}" for name in labels}
    files = {name: file for name, label in labels.items() if (file := label.file)}
    asked = {name: table.asks_of(name, label, keys[name]) for name, label in labels.items() if name not in files}
    group = [] if group_column is None else [table.Ask(group_column, by, by)]
    tests = table.tests_of(source.where or {}, where)
    asks = [*(ask for several in asked.values() for ask in several), *group, *tests.values()]
    found = _of_table(f"streams.{stream}.source.table", source.table, asks, images)
    kept = rows_where(source.where, {name: found[ask] for name, ask in tests.items()}) if source.where else None
    wanted = {name: [found[ask] for ask in several] for name, several in asked.items()}
    wanted |= {name: [_of_array(file, labels[name].type, keys[name], images)] for name, file in files.items()}
    if kept is not None:
        found = {ask: table.only(found[ask], kept) for ask in group}
        wanted = {name: [table.only(column, kept) for column in several] for name, several in wanted.items()}
    groups = [text for ask in group for text in cells.as_bytes(cells.as_texts(found[ask]))]
    return Beside(wanted, groups if group else None, kept)


def _of_table(key: str, path: Path | None, asks: Sequence[table.Ask], images: int) -> dict[table.Ask, Column]:
    if path is None and asks:
        raise ConfigError(
            f"{asks[0].key}: there is no table that has {asks[0].column!r}; add table: FILE to the source, or take the "
            f"label from an array, from: FILE{shards.SUFFIX}"
        )
    if path is None:
        return {}
    opened = columns.open_table(path, key)
    if not asks:
        _log.warning("%s: nothing is taken from %s; name its columns in labels", key, shown(path))
        return {}
    found = table.read(opened, asks)
    _check_rows(key, path, len(found[asks[0]].cells), images)
    return found


def _of_array(path: Path, kind: str, label: str, images: int) -> Column:
    """An array of labels, (n,), (n, 1) or (n, k), as a column; one of k numbers holds lists."""
    key = f"{label}.from"
    header = shards.read_header(path, key)
    what = f"{key}: {shown(path)} holds {header.dtype} {header.shape}"
    if header.dtype.kind not in _KINDS or len(header.shape) not in {1, _VECTOR} or 0 in header.shape:
        raise ConfigError(f"{what}; labels are numbers or texts, (n,) or (n, k): reshape it, or save it with .astype")
    _check_rows(key, path, header.shape[0], images)
    width = header.shape[1] if len(header.shape) == _VECTOR else 1
    if width > 1 and kind not in {"int", "float"}:
        raise ConfigError(f"{what}, {width} an image; they make a vector of type float or int, and no {kind}")
    flat = pa.array(_plain(np.load(path, mmap_mode="r").reshape(-1)))
    rows = Rows(path, lambda row: f"{path.name}[{row}]")
    lists = flat if width == 1 else pa.FixedSizeListArray.from_arrays(flat, width)
    return Column(lists, "the array", rows, label)


def _plain(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same values, in a dtype that is read as cells of a table are."""
    return values.astype(np.float64 if values.dtype.kind == "f" else values.dtype.newbyteorder("="))


def _check_rows(key: str, path: Path, rows: int, images: int) -> None:
    if rows != images:
        raise ConfigError(
            f"{key}: {shown(path)} has {rows:,} rows, and there are {images:,} images; it needs one row an image, in "
            "their order: correct it, or the path of the images"
        )
