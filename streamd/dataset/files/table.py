"""`kind: table`: one row a sample, in the table's order, with a column of file names and columns of labels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from streamd.dataset.files import TableSource, lookup
from streamd.dataset.files.beside import build_images_key
from streamd.dataset.files.clip_frames import ClipRequest, collect_clip_requests, find_frame_rows, find_whole_clips
from streamd.dataset.labels import cells, columns, npy_columns
from streamd.dataset.labels.cells import Column, SourceRows
from streamd.dataset.labels.columns import ColumnRequest, select_rows
from streamd.dataset.labels.convert import convert_labels
from streamd.dataset.labels.faults import FaultCollector, raise_collected_faults
from streamd.dataset.manifest.columns import split_rows_by_column_piece
from streamd.dataset.manifest.types import ImageFiles, Int64s, ScannedSamples, build_label_key
from streamd.dataset.paths.confined import PathColumn
from streamd.dataset.sources import ImageSource, LabelSource, Scalar

_log: Final = logging.getLogger("streamd.sources")
_SIZE_COLUMNS: Final = frozenset(
    f"{prefix}{side}" for prefix in ("", "image_", "img_") for side in ("width", "height", "w", "h")
)


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
        _log_unread_sizes(table, labels)
        read = _read_sample_columns(stream, source, table, asked, labels, group_column, faults)
        found, rows, root = read.own, read.own[asked.own].rows, asked.root
        # A mistake in a label does not keep the file names from being checked: one message names both.
        with faults.collect():
            values, specs, fixed = convert_labels(labels, read.labels)
        read.labels.clear()
        texts = cells.convert_to_nonempty_texts(found[asked.own])
        files = lookup.normalize_file_names(rows, texts, root, f"{key}.root")
        # Columns that are none of file names have the values by which the samples are split.
        other = [cells.convert_to_nonempty_texts(found[ask]) for ask in found if ask not in asked.requests]
        groups = [text for several in other for text in cells.encode_texts(several)]
        beside = asked.normalize_names(read)
        frames, all_rows = read.frames, read.all_rows
        # The table's text is not needed while the files are looked up, which takes longest.
        del texts, found, other, read
        pa.default_memory_pool().release_unused()
        sizes, mtimes_ns = lookup.stat_listed_files(rows, root, files, f"{key}.root", progress)
        listed = asked.stat_images(rows, beside, progress, frames, all_rows)
    return ScannedSamples(root, files, sizes, mtimes_ns, values, specs, fixed, groups or None, images=listed)


@dataclass(slots=True)
class _SampleColumns:
    """The columns of the rows that are samples: `own` has file names and groups, `labels` those of each label.

    Clips also show rows that are no samples of their own: `clips` has the file names of all rows that `where` selects,
    which are `all_rows`, and `frames` the places among them of the frames of each sample, by the name of the image.
    """

    own: dict[ColumnRequest, Column]
    labels: dict[str, list[Column]]
    clips: dict[ColumnRequest, Column]
    frames: dict[str, Int64s]
    all_rows: SourceRows


@dataclass(frozen=True, slots=True)
class _ImageColumns:
    """The column that gives each sample its file, `own`, and those of further images by name, each with its root.

    The images in `clips`, with the columns by which their frames are found, are among the further ones.
    """

    own: ColumnRequest
    root: Path
    more: dict[str, ColumnRequest]
    roots: dict[str, Path]
    clips: dict[str, ClipRequest]

    @staticmethod
    def from_request(stream: str, source: TableSource, images: Mapping[str, ImageSource]) -> _ImageColumns:
        """Returns the columns of `images`. Without one of the source's own, the first gives each sample its file."""
        named = {name: image for name, image in images.items() if image.place is not None and not image.is_pattern}
        more = {
            name: ColumnRequest(str(image.place), f"streams.{stream}.images.{name}", build_images_key(stream, name))
            for name, image in named.items()
        }
        roots = {name: lookup.resolve_root(image.root or source.root, source.path) for name, image in named.items()}
        clips = collect_clip_requests(stream, images)
        if source.image is not None:
            key = f"streams.{stream}.source.image"
            own, root = ColumnRequest(source.image, key, key), lookup.resolve_root(source.root, source.path)
        else:
            first = next(iter(more))
            own, root = (more[first], roots[first]) if first in clips else (more.pop(first), roots.pop(first))
        for name in clips.keys() - more.keys():
            more[name], roots[name] = own, root
        return _ImageColumns(own, root, more, roots, clips)

    @property
    def requests(self) -> list[ColumnRequest]:
        """The columns of file names, the sample's own first."""
        return [self.own, *self.more.values()]

    def normalize_names(self, read: _SampleColumns) -> dict[str, PathColumn]:
        """Returns the file names of further images. Raises ConfigError for names that lead out of their root."""
        places = {name: read.clips if name in self.clips else read.own for name in self.more}
        return {
            name: lookup.normalize_file_names(
                places[name][ask].rows,
                cells.convert_to_nonempty_texts(places[name][ask]),
                self.roots[name],
                ask.named_by,
            )
            for name, ask in self.more.items()
        }

    def stat_images(
        self,
        rows: SourceRows,
        names: Mapping[str, PathColumn],
        progress: Callable[[int], None],
        frames: Mapping[str, Int64s],
        all_rows: SourceRows,
    ) -> dict[str, ImageFiles]:
        """Returns the files of further images, with their sizes and mtimes. Raises ConfigError for missing ones."""
        return {
            name: ImageFiles(
                files,
                *lookup.stat_listed_files(
                    all_rows if name in frames else rows, self.roots[name], files, self.more[name].named_by, progress
                ),
                None if self.roots[name] == self.root else self.roots[name],
                frames=frames.get(name),
            )
            for name, files in names.items()
        }


def _read_sample_columns(
    stream: str,
    source: TableSource,
    table: columns.TableFile,
    images: _ImageColumns,
    labels: Mapping[str, LabelSource],
    group_column: str | None,
    faults: FaultCollector,
) -> _SampleColumns:
    """Reads the columns of a stream, and leaves out rows that `where` does not select, and those without all frames."""
    by, where = f"streams.{stream}.split.by", source.where or {}
    own = images.requests if group_column is None else [*images.requests, ColumnRequest(group_column, by, by)]
    asked, tests = (
        build_label_column_requests(stream, labels),
        build_condition_column_requests(where, f"streams.{stream}.source.where"),
    )
    sorting = [ask for clip in images.clips.values() for ask in clip.requests]
    found = read_requested_columns(
        table, [*own, *sorting, *(ask for several in asked.values() for ask in several), *tests.values()], faults
    )
    wanted = {name: [found[ask] for ask in several] for name, several in asked.items()}
    # Files of labels have a row for each row of the table, so they are read before `where` selects any rows.
    wanted |= npy_columns.read_label_files(stream, labels, len(found[images.own].cells))
    if where:
        kept = select_rows(where, {name: found[ask] for name, ask in tests.items()})
        found = {ask: select_column_rows(found[ask], kept) for ask in [*own, *sorting]}
        wanted = {name: [select_column_rows(column, kept) for column in several] for name, several in wanted.items()}
    read = _SampleColumns({ask: found[ask] for ask in own}, wanted, {}, {}, found[images.own].rows)
    if images.clips:
        # Rows that lack a frame of a clip are left out.
        frames = {name: find_frame_rows(clip, found[clip.by], found[clip.order]) for name, clip in images.clips.items()}
        read.clips = {images.more[name]: found[images.more[name]] for name in frames}
        kept = find_whole_clips(images.clips, frames)
        read.frames = {name: places[kept] for name, places in frames.items()}
        if kept.size < len(found[images.own].cells):
            read.own = {ask: select_column_rows(column, kept) for ask, column in read.own.items()}
            read.labels = {
                name: [select_column_rows(column, kept) for column in several] for name, several in read.labels.items()
            }
    return read


def _log_unread_sizes(table: columns.TableFile, labels: Mapping[str, LabelSource]) -> None:
    """Logs that boxes are not compared with the sizes of pictures, where a table has columns of these."""
    sizes = [name for name in table.column_names if name.lower() in _SIZE_COLUMNS]
    for name, label in labels.items():
        if len(sizes) > 1 and label.boxes is not None and label.boxes.unit == "pixel":
            _log.info(
                "%s: columns %s are not read: %r of type %s is in pixels of the pictures as they are, upright; write "
                "unit: fraction and divide by these sizes if it was drawn on others",
                table.key,
                " and ".join(map(repr, sizes)),
                name,
                label.type,
            )


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
    held = next((ask for ask in requests if ask.column in table.picture_columns), None)
    if held is not None:  # refused before it is read: such columns are the largest
        raise columns.build_picture_column_error(table.path, held.column, held.named_by)
    cells_at = columns.read_columns(table, list(positions.values()), faults)
    mark = None if table.text is None else table.text.decimal_mark
    rows = SourceRows(table.path, table.format_location)
    return {ask: Column(cells_at[positions[ask]], f"column {ask.column!r}", rows, ask.key, mark) for ask in positions}


def select_column_rows(column: Column, kept: Int64s) -> Column:
    """Returns the rows `kept` of a column. Locations still refer to the rows of the file."""
    rows, several = SourceRows(column.rows.path, lambda row: column.rows.format_location(int(kept[row]))), column.cells
    if not isinstance(several, pa.ChunkedArray):
        return replace(column, cells=several.take(pa.array(kept)), rows=rows)
    # Rows are taken from each piece, since pyarrow would first join all pieces into one.
    taken = [piece.take(pa.array(own)) for piece, own in split_rows_by_column_piece(several.chunks, kept)]
    return replace(column, cells=pa.chunked_array(taken, several.type), rows=rows)
