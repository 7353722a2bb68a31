"""`kind: npy`: images that are rows of arrays, with labels from a table (one row an image) or from other arrays.

Samples are in the order of the rows. Several files are sorted by the bytes of their names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from streamd.dataset.arrays import NpySource
from streamd.dataset.arrays.npy_images import Images, build_array_files, list_npy_images, split_own_image
from streamd.dataset.files import table
from streamd.dataset.files.clip_frames import ClipRequest, collect_clip_requests, find_frame_rows, find_whole_clips
from streamd.dataset.labels import cells, columns, npy_columns
from streamd.dataset.labels.cells import Column
from streamd.dataset.labels.columns import select_rows
from streamd.dataset.labels.convert import convert_labels
from streamd.dataset.labels.faults import raise_collected_faults
from streamd.dataset.manifest.columns import PACKED_TABLE, is_packed_name_key
from streamd.dataset.manifest.types import Int64s, ScannedSamples
from streamd.dataset.paths import patterns
from streamd.dataset.paths.confined import format_path
from streamd.dataset.sources import ArrayForm, LabelSource
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")


def scan_npy(
    stream: str,
    source: NpySource,
    labels: Mapping[str, LabelSource],
    progress: Callable[[int], None],
    group_column: str | None = None,
    *,
    images: Images | None = None,
    raw: ArrayForm | None = None,
) -> ScannedSamples:
    """Lists the rows of arrays.

    `group_column` is the column of the table by which the stream is split. `images` are those of a sample; None means
    the source's own, which hold what `raw` says. Raises ConfigError.
    """
    key = f"streams.{stream}.source.path"
    form, others = split_own_image(images, raw)
    beside_files = [file for label in labels.values() if (file := label.file)]
    files = patterns.find_files(source.path, key, [*beside_files, *_find_image_files(source, others)], progress)
    arrays = build_array_files(files, source.range, key, form)
    rows = arrays.starts[-1]
    progress(rows)
    more = list_npy_images(stream, others, rows, source.range, files.root, progress)
    clips = collect_clip_requests(stream, images or {})
    beside = read_label_table(stream, source, labels, group_column, rows, clips)
    values, specs, fixed = convert_labels(labels, beside.columns)
    seen = files.root, files.names, files.sizes, files.mtimes_ns
    return ScannedSamples(
        *seen,
        values,
        specs,
        fixed,
        beside.groups,
        arrays,
        beside.kept,
        display_names=beside.display_names,
        image_arrays=more,
        row_frames=beside.row_frames,
    )


def _find_image_files(source: NpySource, images: Images) -> list[Path]:
    """Returns the files of further images, which are none of a folder or pattern of images; a file is what it is."""
    if Path(source.path).is_file():
        return []
    return [path for image in images.values() for path in patterns.glob_files(str(image.place))]


@dataclass(frozen=True, slots=True)
class LabelTable:
    """The columns of a table that describe the samples.

    `columns` are those of each label, and `groups` the values by which the samples are split. `kept` has the rows that
    are samples; None means all rows. `display_names` and `row_frames` are as in `ScannedSamples`.
    """

    columns: dict[str, list[Column]]
    groups: list[bytes] | None
    kept: Int64s | None
    display_names: Sequence[bytes] | None = None
    row_frames: Mapping[str, Int64s] = field(default_factory=dict)


def read_label_table(
    stream: str,
    source: NpySource,
    labels: Mapping[str, LabelSource],
    group_column: str | None,
    images: int,
    clips: Mapping[str, ClipRequest] = MappingProxyType({}),
) -> LabelTable:
    """Reads the columns that the configuration names.

    Raises ConfigError when a column is missing, or the table has not exactly one row for each of the `images`.
    """
    where, by = f"streams.{stream}.source.where", f"streams.{stream}.split.by"
    asked = table.build_label_column_requests(stream, labels)
    group = [] if group_column is None else [columns.ColumnRequest(group_column, by, by)]
    tests = table.build_condition_column_requests(source.where or {}, where)
    opened = None if source.table is None else columns.read_table_header(source.table, f"streams.{stream}.source.table")
    names = _request_name_column(opened, source.names, f"streams.{stream}.source.names")
    sorting = [ask for clip in clips.values() for ask in clip.requests]
    asks = [*(ask for several in asked.values() for ask in several), *group, *tests.values(), *names, *sorting]
    # All columns are read in one pass, and `where` is applied afterwards: the table is compared with the number of
    # images while it still has all its rows.
    found = _read_table_columns(opened, asks, images)
    kept = select_rows(source.where, {name: found[ask] for name, ask in tests.items()}) if source.where else None
    wanted = {name: [found[ask] for ask in several] for name, several in asked.items()}
    # Arrays of labels have one row for each image, too, so they must be added before `where` selects rows.
    wanted |= npy_columns.read_label_files(stream, labels, images)
    row_frames: Mapping[str, Int64s] = {}
    if clips:
        kept, row_frames = _find_clip_rows(clips, found, np.arange(images) if kept is None else kept)
    if kept is not None:
        found = {ask: table.select_column_rows(found[ask], kept) for ask in (*group, *names)}
        wanted = {
            name: [table.select_column_rows(column, kept) for column in several] for name, several in wanted.items()
        }
    groups = [text for ask in group for text in cells.encode_texts(cells.convert_to_nonempty_texts(found[ask]))]
    shown = [cells.build_path_column(cells.convert_to_texts(found[ask])) for ask in names]
    return LabelTable(wanted, groups if group else None, kept, shown[0] if shown else None, row_frames)


def _find_clip_rows(
    clips: Mapping[str, ClipRequest], found: Mapping[columns.ColumnRequest, Column], kept: Int64s
) -> tuple[Int64s, dict[str, Int64s]]:
    """Returns the rows of samples with all of their frames, among the rows `kept`, and the rows of these frames."""
    frames: dict[str, Int64s] = {}
    for name, clip in clips.items():
        by, order = (table.select_column_rows(found[ask], kept) for ask in clip.requests)
        frames[name] = find_frame_rows(clip, by, order)
    whole = find_whole_clips(clips, frames)
    return kept[whole], {name: kept[places[whole]] for name, places in frames.items()}


def _request_name_column(opened: columns.TableFile | None, wanted: str | None, key: str) -> list[columns.ColumnRequest]:
    """Returns the request for the column of names: the configured one, or the one that streamd pack writes, or none."""
    if opened is None:
        return []
    is_packed = opened.path.name == PACKED_TABLE and is_packed_name_key(opened.column_names[0])
    column = wanted or (opened.column_names[0] if is_packed else None)
    return [] if column is None else [columns.ColumnRequest(column, key, key)]


def _read_table_columns(
    opened: columns.TableFile | None, requests: Sequence[columns.ColumnRequest], images: int
) -> dict[columns.ColumnRequest, Column]:
    if opened is None and requests:
        raise ConfigError(
            f"{requests[0].key}: no table has a column {requests[0].column!r}; add table: FILE under source, or "
            f"take the label from an array with from: FILE{patterns.NPY_SUFFIX}"
        )
    if opened is None:
        return {}
    if not requests:
        _log.warning("%s: no column of %s is used; name its columns in labels", opened.key, format_path(opened.path))
        return {}
    with raise_collected_faults() as faults:
        found = table.read_requested_columns(opened, requests, faults)
    npy_columns.check_row_count(opened.key, format_path(opened.path), len(found[requests[0]].cells), images)
    return found
