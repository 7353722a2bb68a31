"""`kind: table`: one row a sample, in the table's order, with a column of file names and columns of labels.

Of a clip, several rows are the frames of a sample: a column of sequences and one of their order say which.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamd.core.spec import ONLY_IMAGE
from streamd.dataset.files import TableSource, lookup
from streamd.dataset.labels import cells, columns
from streamd.dataset.labels.cells import Column, SourceRows
from streamd.dataset.labels.columns import ColumnRequest, select_rows
from streamd.dataset.labels.convert import convert_labels
from streamd.dataset.labels.encode import FaultCollector, format_other_locations, raise_collected_faults
from streamd.dataset.manifest.columns import split_rows_by_column_piece
from streamd.dataset.manifest.types import ImageFiles, Int64s, ScannedSamples, build_label_key
from streamd.dataset.paths.confined import format_path
from streamd.dataset.paths.patterns import NPY_SUFFIX
from streamd.dataset.sources import FrameRule, ImageSource, LabelSource, Scalar, build_images_key
from streamd.errors import ConfigError

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
    separator = "\t" if source.separator == "tab" else source.separator
    with raise_collected_faults() as faults:
        table = columns.read_table_header(source.path, f"{key}.path", separator, source.encoding, source.decimal)
        _log_unread_sizes(table, labels)
        by = f"streams.{stream}.split.by"
        own = asked.requests if group_column is None else [*asked.requests, ColumnRequest(group_column, by, by)]
        read = read_sample_columns(stream, table, own, labels, source.where or {}, asked.clips, faults)
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
        places = {name: read.selected if name in asked.clips else read.own for name in asked.more}
        beside = {
            name: lookup.normalize_file_names(
                places[name][ask].rows,
                cells.convert_to_nonempty_texts(places[name][ask]),
                asked.roots[name],
                ask.named_by,
            )
            for name, ask in asked.more.items()
        }
        frames, all_rows = read.frames, read.selected[asked.own].rows
        # The table's text is not needed while the files are looked up, which takes longest.
        del texts, found, other, places, read
        pa.default_memory_pool().release_unused()
        sizes, mtimes_ns = lookup.stat_listed_files(rows, root, files, f"{key}.root", progress)
        listed = {
            name: ImageFiles(
                names,
                *lookup.stat_listed_files(
                    all_rows if name in frames else rows, asked.roots[name], names, asked.more[name].named_by, progress
                ),
                None if asked.roots[name] == root else asked.roots[name],
                frames=frames.get(name),
            )
            for name, names in beside.items()
        }
    return ScannedSamples(root, files, sizes, mtimes_ns, values, specs, fixed, groups or None, images=listed)


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


@dataclass(slots=True)
class SampleColumns:
    """The columns of the rows that are samples: `own` are those that were asked for, `labels` those of each label.

    `kept` has the row of each sample in the table, and `selected_rows` those that `where` selects; None means all.
    Clips also show rows that are no samples of their own: `frames` has the places of each sample's frames among the
    rows that `where` selects, by the name of the image, and `selected` has the columns of these rows.
    """

    own: dict[ColumnRequest, Column]
    labels: dict[str, list[Column]]
    selected: dict[ColumnRequest, Column]
    selected_rows: Int64s | None = None
    kept: Int64s | None = None
    frames: dict[str, Int64s] = field(default_factory=dict)


def read_sample_columns(
    stream: str,
    table: columns.TableFile | None,
    own: Sequence[ColumnRequest],
    labels: Mapping[str, LabelSource],
    where: Mapping[str, Scalar],
    clips: Mapping[str, ClipRequest],
    faults: FaultCollector,
    images: int | None = None,
) -> SampleColumns:
    """Reads the columns of a stream, and leaves out rows that `where` does not select, and those without all frames.

    `images` is how many rows there must be, where a table lies beside arrays. Without a table, only .npy files hold
    labels. Raises ConfigError when a column is missing, or rows are.
    """
    key = f"streams.{stream}.source.where"
    # The columns that each label is made of, without the labels that .npy files hold.
    asked: dict[str, list[ColumnRequest]] = {}
    for name, label in labels.items():
        if label.file is None:
            label_key = build_label_key(stream, name)
            named_by = label_key if label.source is None else f"{label_key}.from"
            asked[name] = [ColumnRequest(column, label_key, named_by) for column in label.list_columns(name)]
    tests = {name: ColumnRequest(name, f"{key}.{name}", f"{key}.{name}") for name in where}
    sorting = [ask for clip in clips.values() for ask in clip.requests]
    asks = [*own, *(ask for several in asked.values() for ask in several), *tests.values(), *sorting]
    # All columns are read in one pass, and `where` is applied afterwards: the table is compared with the number of
    # images while it still has all its rows.
    found: dict[ColumnRequest, Column] = {}
    if table is None and asks:
        raise ConfigError(
            f"{asks[0].key}: no table has a column {asks[0].column!r}; add table: FILE under source, or "
            f"take the label from an array with from: FILE{NPY_SUFFIX}"
        )
    if table is not None and not asks:
        _log.warning("%s: no column of %s is used; name its columns in labels", table.key, format_path(table.path))
    elif table is not None:
        found = read_requested_columns(table, asks, faults)
        if images is not None:
            if faults.errors:  # rows of other widths are left out, so nothing fits the images any more
                raise faults.errors.pop()
            columns.check_row_count(table.key, format_path(table.path), len(found[asks[0]].cells), images)
    wanted = {name: [found[ask] for ask in several] for name, several in asked.items()}
    # Files of labels have a row for each row of the table, so they are read before `where` selects any rows.
    wanted |= columns.read_label_files(stream, labels, len(found[own[0]].cells) if images is None else images)
    selected_rows = None
    if where:
        selected_rows = select_rows(where, {name: found[ask] for name, ask in tests.items()})
        found = {ask: select_column_rows(found[ask], selected_rows) for ask in [*own, *sorting]}
        wanted = _select_label_rows(wanted, selected_rows)
    selected = {ask: found[ask] for ask in own}
    read = SampleColumns(selected, wanted, selected, selected_rows, selected_rows)
    if clips:
        # Rows that lack a frame of a clip are left out.
        frames = {name: find_frame_rows(clip, found[clip.by], found[clip.order]) for name, clip in clips.items()}
        whole = find_whole_clips(clips, frames)
        read.frames = {name: places[whole] for name, places in frames.items()}
        read.kept = whole if selected_rows is None else selected_rows[whole]
        if whole.size < len(found[sorting[0]].cells):
            read.own = {ask: select_column_rows(column, whole) for ask, column in selected.items()}
            read.labels = _select_label_rows(wanted, whole)
    return read


def _select_label_rows(labels: Mapping[str, Sequence[Column]], rows: Int64s) -> dict[str, list[Column]]:
    return {name: [select_column_rows(column, rows) for column in several] for name, several in labels.items()}


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


# --- Clips: which rows of a table are the frames of each sample, found by a column of sequences and one of their
# order.

_NUMBER: Final = r"^[+-]?[0-9]+([.,][0-9]*)?([eE][+-]?[0-9]+)?$"
_DIGITS: Final = re.compile(rb"([0-9]+)")
_TRIED_TEXTS: Final = 10_000  # of an order of texts, in which numbers without leading zeros are looked for
_NO_ROW: Final = -1


@dataclass(frozen=True, slots=True)
class ClipRequest:
    """The columns of a clip's sequences and their order, and its rule; `key` is the one in the configuration."""

    key: str
    by: ColumnRequest
    order: ColumnRequest
    rule: FrameRule

    @property
    def requests(self) -> tuple[ColumnRequest, ColumnRequest]:
        """The columns that are read for the clip."""
        return self.by, self.order


def collect_clip_requests(stream: str, images: Mapping[str, ImageSource]) -> dict[str, ClipRequest]:
    """Returns the columns that the clips among `images` need, by the names of the images."""
    found: dict[str, ClipRequest] = {}
    for name, image in images.items():
        if (rule := image.frames) is not None:
            # The only image of `image` has no name in its key.
            key = f"streams.{stream}.{'image' if [*images] == [ONLY_IMAGE] else f'images.{name}'}.frames"
            by, order = f"{key}.by", f"{key}.order"
            asked = ColumnRequest(rule.by, by, by), ColumnRequest(rule.order, order, order)
            found[name] = ClipRequest(key, *asked, rule)
    return found


def find_frame_rows(clip: ClipRequest, by: Column, order: Column) -> Int64s:
    """Returns the row of each frame of each row's clip, (n, frames); -1 where `edge: drop` finds none.

    Raises ConfigError for cells without a value, for an order that mixes numbers with other texts, for two rows of a
    sequence with the same place in it, and if no sequence has two rows.
    """
    _, sequences = cells.encode_distinct_texts(cells.convert_to_nonempty_texts(by))
    places = _rank_cells(order)
    ranked = np.lexsort((places, sequences)).astype(np.int64)
    # Two rows of a sequence must not have the same place in it.
    same = (np.diff(sequences[ranked]) == 0) & (np.diff(places[ranked]) == 0)
    if same.any():
        second = np.flatnonzero(same) + 1
        first_row, later = int(ranked[second[0] - 1]), int(ranked[second[0]])
        others = format_other_locations(ranked[second].tolist(), order.rows.format_location)
        raise ConfigError(
            f"{clip.key}.order: {order.rows.format_location(later)} has the same {clip.rule.order} as "
            f"{order.rows.format_location(first_row)}, in the same {clip.rule.by}{others}, so the order of their "
            "frames is not clear; remove one of them, or choose another column"
        )
    # A clip without neighbours is a mistake where each row is a sequence of its own.
    if sequences.size and set(clip.rule.offsets) != {0}:
        counts = np.bincount(sequences)
        alone = np.flatnonzero(counts[sequences] == 1)
        if alone.size == sequences.size:
            raise ConfigError(
                f"{clip.key}.by: each row has a value of its own in {by.display_name}, so no clip has a neighbour; "
                "choose the column that is equal within a sequence, such as the drive or the video"
            )
        if alone.size:
            what = "shows one picture in all frames" if clip.rule.edge == "repeat" else "is left out"
            _log.warning(
                "%s: %s%s is a sequence of one row, so its clip %s; %scorrect the column if that is a mistake",
                f"{clip.key}.by",
                by.rows.format_location(int(alone[0])),
                format_other_locations(alone.tolist(), by.rows.format_location),
                what,
                "write edge: drop to leave such rows out, or " if clip.rule.edge == "repeat" else "",
            )
    samples = ranked.size
    begins = np.flatnonzero(np.diff(sequences[ranked], prepend=-1))
    lengths = np.diff(begins, append=samples)
    wanted = np.arange(samples)[:, None] + np.array(clip.rule.offsets, np.int64)
    first = np.repeat(begins, lengths)[:, None]
    nearest = np.clip(wanted, first, first + np.repeat(lengths, lengths)[:, None] - 1)
    found = ranked[nearest]
    if clip.rule.edge == "drop":
        found[wanted != nearest] = _NO_ROW
    rows = np.empty_like(found)
    rows[ranked] = found
    return rows


def find_whole_clips(clips: Mapping[str, ClipRequest], frames: Mapping[str, Int64s]) -> Int64s:
    """Returns the rows that have all frames of all clips, which are the samples. Raises ConfigError if there are none.

    `frames` has what `find_frame_rows` returned for each of `clips`.
    """
    whole = np.logical_and.reduce([(rows != _NO_ROW).all(axis=1) for rows in frames.values()])
    kept: Int64s = np.flatnonzero(whole)
    if not kept.size:
        clip = next(clip for clip in clips.values() if clip.rule.edge == "drop")
        raise ConfigError(
            f"{clip.key}: no row has all of its frames, since no sequence of column {clip.rule.by!r} is as long as the "
            f"offsets {[*clip.rule.offsets]} reach; use edge: repeat, or smaller offsets"
        )
    return kept


def _rank_cells(order: Column) -> Int64s:
    """Returns the place of each row by the column's numbers, or by its texts; equal cells have equal places."""
    texts = cells.convert_to_nonempty_texts(order)
    matches: Any = pc.match_substring_regex(texts, _NUMBER)
    is_number: npt.NDArray[np.bool_] = matches.to_numpy(zero_copy_only=False)
    if is_number.any() and not is_number.all():
        row = int(np.flatnonzero(~is_number)[0])
        raise ConfigError(
            f"{order.key}: {order.display_name} has numbers, but {order.rows.format_location(row)} has "
            f"{texts[row].as_py()!r}; write numbers into all rows, or texts of equal length"
        )
    if is_number.all():
        values: Any = cells.convert_to_numbers(order, "int")
    else:
        values = np.array(cells.encode_texts(texts))
        # Texts that are sorted by their bytes may be in another order by the numbers in them.
        pairs = pairwise(np.unique(values[:_TRIED_TEXTS]).tolist())
        unpadded = next((pair for pair in pairs if _split_numbers(pair[0]) > _split_numbers(pair[1])), None)
        if unpadded is not None:
            _log.warning(
                "%s: %s holds texts, so that %r comes before %r; if that is not the order, use a column of numbers, or "
                "write them with leading zeros",
                order.key,
                order.display_name,
                *(text.decode(errors="backslashreplace") for text in unpadded),
            )
    ranks: Int64s = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return ranks


def _split_numbers(text: bytes) -> list[tuple[int, bytes]]:
    """Returns the parts of a text as a key by which its numbers are compared as numbers."""
    return [(int(part), b"") if part.isdigit() else (-1, part) for part in _DIGITS.split(text) if part]
