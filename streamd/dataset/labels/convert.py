"""From columns of cells to a label of the type that is wanted: tables and lists alike.

A string is the cell's text, and may be empty. Several columns of numbers, or a column of lists of equal length, are a
vector; a category or tags where they are 0 and 1, a number a class, see `one_hot`. Other tags are the elements of a
list; else `|`, `;` or `,` separate them, or, in a column that has none of these, white space. A cell without tags is
legal.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamd.core.spec import LabelSpec
from streamd.dataset.labels import cells, one_hot
from streamd.dataset.labels import encode as labelling
from streamd.dataset.labels.cells import Column
from streamd.dataset.labels.tags import SampleTags, build_tags_label
from streamd.dataset.manifest.text_column import TextColumn
from streamd.dataset.manifest.types import ListedValues
from streamd.dataset.sources import LabelSource
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")
_TAG_MARKS: Final = "[|;,]"

Label = tuple[ListedValues, LabelSpec]
Labels = tuple[dict[str, ListedValues], dict[str, LabelSpec], frozenset[str]]  # as Scanned has them


def convert_labels(wanted: Mapping[str, LabelSource], columns: Mapping[str, Sequence[Column]]) -> Labels:
    """All labels, each from its columns: one, or several where `source` lists them. Raises ConfigError."""
    found = {name: _convert_label(name, label, columns[name]) for name, label in wanted.items()}
    return (
        {name: values for name, (values, _) in found.items()},
        {name: spec for name, (_, spec) in found.items()},
        frozenset(name for name, label in wanted.items() if label.classes is not None or _has_class_columns(label)),
    )


def _has_class_columns(label: LabelSource) -> bool:
    """Whether the columns that the configuration lists are classes."""
    return isinstance(label.source, tuple) and label.type in {"category", "tags"}


def _convert_label(name: str, wanted: LabelSource, columns: Sequence[Column]) -> Label:
    column = columns[0]
    listed = isinstance(wanted.source, tuple)
    match wanted.type:
        case "int" | "float" as kind:
            return _convert_numeric_label(name, "int" if kind == "int" else "float", columns, listed=listed)
        case "category":
            return _convert_category(name, wanted, columns)
        case "tags":
            return _convert_tags(name, wanted, columns)
        case _ if listed or cells.has_lists(column):
            raise ConfigError(
                f"{column.key}.from: several {'columns' if listed else 'numbers a row'} make a vector of type float or "
                f"int, a category or tags, and no {wanted.type}; name one column"
            )
        case "weight":
            return _convert_weights(name, column)
        case _:
            return _convert_string(name, column)


def _convert_string(name: str, column: Column) -> tuple[TextColumn, LabelSpec]:
    pieces = cells.convert_to_text_pieces(column)
    lengths = np.concatenate([np.asarray(pc.binary_length(piece), np.int64) for piece in pieces])
    nul = np.concatenate([np.asarray(pc.match_substring(piece, "\0"), np.bool_) for piece in pieces])
    spec = labelling.build_string_spec(name, lengths, np.flatnonzero(nul), column.rows.format_location, column.key)
    return TextColumn(pieces, max(spec.text_bytes, 1)), spec


def _convert_weights(name: str, column: Column) -> tuple[labelling.Numbers, LabelSpec]:
    values, spec = _convert_number_column(name, "float", column)
    if (values < 0).any():
        row = int(np.argmax(values < 0))
        raise ConfigError(
            f"{column.key}: {column.rows.format_location(row)} holds {values[row]:g}; a sample weighs 0 or more: "
            "correct it"
        )
    return values, spec


def _convert_category(name: str, wanted: LabelSource, columns: Sequence[Column]) -> Label:
    column, fixed = columns[0], _find_fixed_classes(wanted, columns[0])
    marks = one_hot.find_mark_columns(columns, listed=isinstance(wanted.source, tuple), single=True)
    if marks:
        return one_hot.convert_one_hot(name, marks, fixed)
    texts, codes = cells.encode_levels(cells.convert_to_nonempty_texts(column))
    return labelling.build_category_label(name, texts, codes, fixed, column.rows.format_location, column.key)


def _convert_tags(name: str, wanted: LabelSource, columns: Sequence[Column]) -> Label:
    column, fixed = columns[0], _find_fixed_classes(wanted, columns[0])
    marks = one_hot.find_mark_columns(columns, listed=isinstance(wanted.source, tuple), single=False)
    if marks:
        return one_hot.convert_multi_hot(name, marks, fixed)
    return build_tags_label(name, _collect_tags(column), fixed, column.rows.format_location, column.key)


def _find_fixed_classes(wanted: LabelSource, column: Column) -> tuple[labelling.ClassValue, ...] | None:
    """The classes that the configuration lists: as such, or as the columns that they are stored in."""
    listed = wanted.source if isinstance(wanted.source, tuple) else None
    classes = wanted.classes if wanted.classes is not None else listed
    return None if classes is None else labelling.parse_configured_classes(classes, column.key)


def _convert_numeric_label(
    name: str, kind: Literal["int", "float"], columns: Sequence[Column], *, listed: bool
) -> Label:
    if not listed:
        column = columns[0]
        return (
            _convert_number_lists(name, kind, column)
            if cells.has_lists(column)
            else _convert_number_column(name, kind, column)
        )
    each = [_convert_number_column(name, kind, column)[0] for column in columns]
    values = cast("labelling.Numbers", np.stack(each, axis=1))  # all of one dtype
    return values, labelling.with_moments(LabelSpec(name, kind, width=len(columns)), values)


def _convert_number_column(
    name: str, kind: Literal["int", "float"], column: Column
) -> tuple[labelling.Numbers, LabelSpec]:
    return labelling.build_number_label(
        name, kind, cells.convert_to_numbers(column, kind), column.rows.format_location, column.key
    )


def _convert_number_lists(name: str, kind: Literal["int", "float"], column: Column) -> Label:
    width = one_hot.compute_vector_width([column])
    elements, _ = cells.flatten_lists(column)
    values = _convert_number_column(name, kind, elements)[0].reshape(-1, width)
    return values, labelling.with_moments(LabelSpec(name, kind, width=width), values)


def _collect_tags(column: Column) -> SampleTags:
    elements, owners = cells.flatten_lists(column if cells.has_lists(column) else _split_tags(column))
    texts = cells.convert_to_texts(elements)
    there = ~cells.find_empty(texts).to_numpy(zero_copy_only=False)
    levels, codes = cells.encode_levels(texts.filter(pa.array(there)))
    return SampleTags(len(column.cells), levels, owners[there], codes)


def _split_tags(column: Column) -> Column:
    """The column with its texts as lists of tags."""
    texts = cells.convert_to_texts(column)
    marked = pc.any(pc.match_substring_regex(texts, _TAG_MARKS)).as_py()
    if not marked:
        _log.info("%s: no cell holds | ; or , so white space separates the tags", column.key)
    return replace(column, cells=pc.split_pattern_regex(texts, _TAG_MARKS if marked else r"\s+"))
