"""`kind: npy`: images that are rows of arrays, with labels from a table, a row an image, or from other arrays.

Samples are in the order of the rows, those of several files by bytes of the files' names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.dataset.arrays import NpySource
from streamd.dataset.arrays.pixels import FEW, Range, Shape, beyond, images_of, is_plain
from streamd.dataset.files import table
from streamd.dataset.labels import cells, columns, npy_columns
from streamd.dataset.labels.cells import Column
from streamd.dataset.labels.columns import rows_where
from streamd.dataset.labels.convert import labels_of
from streamd.dataset.manifest.types import Arrays, Int64s, Scanned, Stored
from streamd.dataset.paths import patterns
from streamd.dataset.paths.confined import shown
from streamd.dataset.paths.patterns import Files, Header
from streamd.dataset.sources import LabelSource
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")


def scan_npy(
    stream: str,
    source: NpySource,
    labels: Mapping[str, LabelSource],
    progress: Callable[[int], None],
    group_column: str | None = None,
) -> Scanned:
    """Lists the rows of arrays. `group_column` is the column of the table that a split goes by."""
    key = f"streams.{stream}.source.path"
    files = patterns.find(source.path, key, [file for label in labels.values() if (file := label.file)], progress)
    arrays = _arrays(files, source.range, key)
    progress(arrays.starts[-1])
    beside = read(stream, source, labels, group_column, arrays.starts[-1])
    values, specs, fixed = labels_of(labels, beside.columns)
    seen = files.root, files.names, files.sizes, files.mtimes_ns
    return Scanned(*seen, values, specs, fixed, beside.groups, arrays, beside.kept)


def _arrays(files: Files, bounds: Range | None, key: str) -> Arrays:
    """What lies in the files. Raises ConfigError unless all hold images of one kind."""
    headers = [patterns.read_header(files.path(number), key) for number in range(len(files.names))]
    kinds = [_images(header, files.path(number), bounds, key) for number, header in enumerate(headers)]
    other = next((number for number, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        raise ConfigError(
            f"{key}: {shown(files.names[other])} holds images of {_told(*kinds[other])}, and "
            f"{shown(files.names[0])} of {_told(*kinds[0])}; images of a stream are alike: name only files that "
            "belong together, such as images-*.npy"
        )
    if bounds and (said := beyond(_few(headers[0], files.path(0)), bounds)):
        _log.warning("%s: %s: %s", key, shown(files.names[0]), said)
    starts = accumulate((header.shape[0] for header in headers), initial=0)
    shape, stored = kinds[0]
    offsets = tuple(header.offset for header in headers)
    return Arrays(shape, tuple(starts), offsets, None if is_plain(stored) else stored)


def _images(header: Header, path: Path, bounds: Range | None, key: str) -> tuple[Shape, Stored]:
    """What the images in an array are. Raises ConfigError when it holds none."""
    what, stored = f"{key}: {shown(path)}", Stored("npy", range=bounds)
    return images_of(what, header.shape, header.dtype, stored, lambda: _few(header, path))


def _few(header: Header, path: Path) -> npt.NDArray[Any]:
    """The first images of an array."""
    return np.array(np.memmap(path, header.dtype, "r", header.offset, header.shape)[:FEW])


def _told(shape: Shape, stored: Stored) -> str:
    order = ", channels first" if stored.channels_first else ""
    return f"{_sides(shape)}{order}" if stored.dtype == "|u1" else f"{_sides(shape)} {np.dtype(stored.dtype)}{order}"


def _sides(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


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
