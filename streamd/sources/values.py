"""From columns of cells to a label of the type that is wanted: tables and lists alike.

A string is the cell's text, and may be empty. Several columns of numbers, or a column of lists of equal length, are a
vector. Tags are the elements of a list; else `|`, `;` or `,` separate them, or, in a column that has none of these,
white space. A cell without tags is legal.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamd.errors import ConfigError
from streamd.sources import cells
from streamd.sources import labels as labelling
from streamd.sources.cells import Column
from streamd.sources.tags import Tagged, tags
from streamd.sources.wanted import LabelValues, WantedLabel
from streamd.spec import LabelSpec

_log: Final = logging.getLogger("streamd.sources")
_TAG_MARKS: Final = "[|;,]"

Label = tuple[LabelValues, LabelSpec]
Labels = tuple[dict[str, LabelValues], dict[str, LabelSpec], frozenset[str]]  # as Scanned has them


def labels_of(wanted: Mapping[str, WantedLabel], columns: Mapping[str, Sequence[Column]]) -> Labels:
    """All labels, each from its columns: one, or several where `source` lists them. Raises ConfigError."""
    found = {name: _label(name, label, columns[name]) for name, label in wanted.items()}
    return (
        {name: values for name, (values, _) in found.items()},
        {name: spec for name, (_, spec) in found.items()},
        frozenset(name for name, label in wanted.items() if label.classes is not None),
    )


def _label(name: str, wanted: WantedLabel, columns: Sequence[Column]) -> Label:
    column = columns[0]
    match wanted.type:
        case "int" | "float" as kind:
            return _numbers(name, "int" if kind == "int" else "float", columns, listed=isinstance(wanted.source, tuple))
        case _ if isinstance(wanted.source, tuple):
            raise ConfigError(
                f"{column.key}.from: several columns make a vector of type float or int, and no {wanted.type}; name one"
            )
        case "category":
            texts, codes = cells.as_levels(cells.as_texts(column))
            return labelling.category(name, texts, codes, _fixed(wanted, column), column.rows.place, column.key)
        case "tags":
            return tags(name, _tagged(column), _fixed(wanted, column), column.rows.place, column.key)
        case _:
            return labelling.string(name, cells.as_bytes(cells.as_any_texts(column)), column.rows.place, column.key)


def _fixed(wanted: WantedLabel, column: Column) -> tuple[labelling.Class, ...] | None:
    return None if wanted.classes is None else labelling.configured(wanted.classes, column.key)


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
    elements, owners = cells.as_lists(column)
    lengths = np.bincount(owners, minlength=len(column.cells))
    width = int(lengths[0])
    odd = int(np.argmax(lengths != width)) if width else 0
    if not width or lengths[odd] != width:
        raise ConfigError(
            f"{column.key}: {column.rows.place(odd)}: {column.what} holds {lengths[odd]} numbers where the first row "
            f"holds {width}; a vector has as many in every row, and at least one"
        )
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
