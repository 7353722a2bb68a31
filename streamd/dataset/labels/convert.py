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
from streamd.dataset.labels.tags import Tagged, tags
from streamd.dataset.manifest.text_column import TextColumn
from streamd.dataset.manifest.types import ListedValues
from streamd.dataset.sources import LabelSource
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")
_TAG_MARKS: Final = "[|;,]"

Label = tuple[ListedValues, LabelSpec]
Labels = tuple[dict[str, ListedValues], dict[str, LabelSpec], frozenset[str]]  # as Scanned has them


def labels_of(wanted: Mapping[str, LabelSource], columns: Mapping[str, Sequence[Column]]) -> Labels:
    """All labels, each from its columns: one, or several where `source` lists them. Raises ConfigError."""
    found = {name: _label(name, label, columns[name]) for name, label in wanted.items()}
    return (
        {name: values for name, (values, _) in found.items()},
        {name: spec for name, (_, spec) in found.items()},
        frozenset(name for name, label in wanted.items() if label.classes is not None or _stands_in_columns(label)),
    )


def _stands_in_columns(label: LabelSource) -> bool:
    """Whether the columns that the configuration lists are classes."""
    return isinstance(label.source, tuple) and label.type in {"category", "tags"}


def _label(name: str, wanted: LabelSource, columns: Sequence[Column]) -> Label:
    column = columns[0]
    listed = isinstance(wanted.source, tuple)
    match wanted.type:
        case "int" | "float" as kind:
            return _numbers(name, "int" if kind == "int" else "float", columns, listed=listed)
        case "category":
            return _category(name, wanted, columns)
        case "tags":
            return _tags(name, wanted, columns)
        case _ if listed or cells.holds_lists(column):
            raise ConfigError(
                f"{column.key}.from: several {'columns' if listed else 'numbers a row'} make a vector of type float or "
                f"int, a category or tags, and no {wanted.type}; name one column"
            )
        case "weight":
            return _weights(name, column)
        case _:
            return _string(name, column)


def _string(name: str, column: Column) -> tuple[TextColumn, LabelSpec]:
    pieces = cells.as_pieces(column)
    lengths = np.concatenate([np.asarray(pc.binary_length(piece), np.int64) for piece in pieces])
    nul = np.concatenate([np.asarray(pc.match_substring(piece, "\0"), np.bool_) for piece in pieces])
    spec = labelling.string_spec(name, lengths, np.flatnonzero(nul), column.rows.place, column.key)
    return TextColumn(pieces, max(spec.text_bytes, 1)), spec


def _weights(name: str, column: Column) -> tuple[labelling.Numbers, LabelSpec]:
    values, spec = _number(name, "float", column)
    if (values < 0).any():
        row = int(np.argmax(values < 0))
        raise ConfigError(
            f"{column.key}: {column.rows.place(row)} holds {values[row]:g}; a sample weighs 0 or more: correct it"
        )
    return values, spec


def _category(name: str, wanted: LabelSource, columns: Sequence[Column]) -> Label:
    column, fixed = columns[0], _fixed(wanted, columns[0])
    marks = one_hot.stored(columns, listed=isinstance(wanted.source, tuple), single=True)
    if marks:
        return one_hot.category(name, marks, fixed)
    texts, codes = cells.as_levels(cells.as_texts(column))
    return labelling.category(name, texts, codes, fixed, column.rows.place, column.key)


def _tags(name: str, wanted: LabelSource, columns: Sequence[Column]) -> Label:
    column, fixed = columns[0], _fixed(wanted, columns[0])
    marks = one_hot.stored(columns, listed=isinstance(wanted.source, tuple), single=False)
    if marks:
        return one_hot.tags(name, marks, fixed)
    return tags(name, _tagged(column), fixed, column.rows.place, column.key)


def _fixed(wanted: LabelSource, column: Column) -> tuple[labelling.Class, ...] | None:
    """The classes that the configuration lists: as such, or as the columns that they are stored in."""
    listed = wanted.source if isinstance(wanted.source, tuple) else None
    classes = wanted.classes if wanted.classes is not None else listed
    return None if classes is None else labelling.configured(classes, column.key)


def _numbers(name: str, kind: Literal["int", "float"], columns: Sequence[Column], *, listed: bool) -> Label:
    if not listed:
        column = columns[0]
        return _list_of_numbers(name, kind, column) if cells.holds_lists(column) else _number(name, kind, column)
    each = [_number(name, kind, column)[0] for column in columns]
    values = cast("labelling.Numbers", np.stack(each, axis=1))  # all of one dtype
    return values, labelling.with_moments(LabelSpec(name, kind, width=len(columns)), values)


def _number(name: str, kind: Literal["int", "float"], column: Column) -> tuple[labelling.Numbers, LabelSpec]:
    return labelling.number(name, kind, cells.as_numbers(column, kind), column.rows.place, column.key)


def _list_of_numbers(name: str, kind: Literal["int", "float"], column: Column) -> Label:
    width = one_hot.width_of([column])
    elements, _ = cells.as_lists(column)
    values = _number(name, kind, elements)[0].reshape(-1, width)
    return values, labelling.with_moments(LabelSpec(name, kind, width=width), values)


def _tagged(column: Column) -> Tagged:
    elements, owners = cells.as_lists(column if cells.holds_lists(column) else _split(column))
    texts = cells.as_any_texts(elements)
    there = ~cells.is_empty(texts).to_numpy(zero_copy_only=False)
    levels, codes = cells.as_levels(texts.filter(pa.array(there)))
    return Tagged(len(column.cells), levels, owners[there], codes)


def _split(column: Column) -> Column:
    """The column with its texts as lists of tags."""
    texts = cells.as_any_texts(column)
    marked = pc.any(pc.match_substring_regex(texts, _TAG_MARKS)).as_py()
    if not marked:
        _log.info("%s: no cell holds | ; or , so white space separates the tags", column.key)
    return replace(column, cells=pc.split_pattern_regex(texts, _TAG_MARKS if marked else r"\s+"))
