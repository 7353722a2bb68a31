"""Clips: which rows of a table are the frames of each sample, found by a column of sequences and one of their order."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from streamd.core.spec import ONLY_IMAGE
from streamd.dataset.labels import cells
from streamd.dataset.labels.cells import Column
from streamd.dataset.labels.columns import ColumnRequest
from streamd.dataset.labels.faults import format_other_locations
from streamd.dataset.manifest.types import Int64s
from streamd.dataset.sources import FrameRule, ImageSource
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")
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

    @staticmethod
    def from_rule(key: str, rule: FrameRule) -> ClipRequest:
        by, order = f"{key}.by", f"{key}.order"
        return ClipRequest(key, ColumnRequest(rule.by, by, by), ColumnRequest(rule.order, order, order), rule)

    @property
    def requests(self) -> tuple[ColumnRequest, ColumnRequest]:
        """The columns that are read for the clip."""
        return self.by, self.order


def collect_clip_requests(stream: str, images: Mapping[str, ImageSource]) -> dict[str, ClipRequest]:
    """Returns the columns that the clips among `images` need, by the names of the images."""
    # The only image of `image` has no name in its key.
    keys = {name: "image" if [*images] == [ONLY_IMAGE] else f"images.{name}" for name in images}
    return {
        name: ClipRequest.from_rule(f"streams.{stream}.{keys[name]}.frames", each.frames)
        for name, each in images.items()
        if each.frames is not None
    }


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
