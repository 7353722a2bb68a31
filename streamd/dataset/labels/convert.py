"""Converts columns of cells to labels of the configured types, for tables and lists alike.

A string is the cell's text, and may be empty. Several columns of numbers, or a column of lists of equal length, are a
vector; for a category or tags they hold 0 and 1, one number a class. Other tags are the elements of a list, or are
separated by `|`, `;` or `,`, or by white space in a column that has none of these. A cell without tags is legal.

Where classes are stored as 0 and 1, a category has one 1 in every row, and tags have any number of them. These numbers
are converted some rows at a time: all at once, the one-hot labels of ImageNet would take ten gigabytes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamd.core.spec import LabelSpec
from streamd.core.text import format_count
from streamd.dataset.labels import cells, encode
from streamd.dataset.labels.boxes import convert_object_label
from streamd.dataset.labels.cells import Column, SourceRows, Texts
from streamd.dataset.labels.encode import (
    ClassValue,
    SampleTags,
    build_tags_label,
    measure_label,
    raise_collected_faults,
)
from streamd.dataset.manifest.columns import TextColumn
from streamd.dataset.manifest.types import ListedValues
from streamd.dataset.sources import LabelSource
from streamd.errors import ConfigError

Label = tuple[ListedValues, LabelSpec]
Labels = tuple[dict[str, ListedValues], dict[str, LabelSpec], frozenset[str]]  # as in ScannedSamples


_log: Final = logging.getLogger("streamd.sources")
_TAG_MARKS: Final = "[|;,]"
_BLOCK_NUMBERS: Final = 1 << 22  # at a time
_SHOWN_NUMBERS: Final = 8  # numbers of a row in a message
_GAP: Final = r"(?:\s*[,;|]\s*|\s+)"
_ZERO, _ONE, _ANY = (rf"{digits}(?:\.0*)?" for digits in ("0", "1", "[01]"))
_ONE_HOT: Final = rf"^[\[(]?\s*(?:(?:{_ZERO}{_GAP})+{_ONE}(?:{_GAP}{_ZERO})*|{_ONE}(?:{_GAP}{_ZERO})+)\s*[\])]?$"
_MULTI_HOT: Final = rf"^[\[(]?\s*{_ANY}(?:{_GAP}{_ANY})+\s*[\])]?$"


def convert_labels(wanted: Mapping[str, LabelSource], columns: Mapping[str, Sequence[Column]]) -> Labels:
    """Converts all labels, each from its columns: one, or several where `source` lists them.

    Raises one ConfigError for the faults of all labels.
    """
    found: dict[str, Label] = {}
    with raise_collected_faults() as faults:
        for name, label in wanted.items():
            with faults.collect():
                found[name] = _convert_label(name, label, columns[name])
    return (
        {name: values for name, (values, _) in found.items()},
        {name: spec for name, (_, spec) in found.items()},
        frozenset(
            name
            for name, label in wanted.items()
            if label.classes is not None or (isinstance(label.source, tuple) and label.type in {"category", "tags"})
        ),
    )


def _convert_label(name: str, wanted: LabelSource, columns: Sequence[Column]) -> Label:
    column = columns[0]
    listed = isinstance(wanted.source, tuple)
    if wanted.type not in {"boxes", "points"} and cells.has_nested_lists(column):
        raise ConfigError(
            f"{column.key}: {column.display_name} of {column.rows.path.name} holds lists of lists, which are boxes or "
            f"points, but not type {wanted.type}; change the type, or name a column of numbers"
        )
    match wanted.type:
        case "int" | "float" as kind:
            return _convert_numeric_label(name, "int" if kind == "int" else "float", columns, listed=listed)
        case "category" | "tags":
            return _convert_class_label(name, wanted, columns)
        case "boxes" | "points" if not listed:
            return convert_object_label(name, wanted, column)
        # The types above take lists or several columns. No type below does.
        case _ if listed or cells.has_lists(column):
            raise ConfigError(
                f"{column.key}.from: several {'columns' if listed else 'numbers per row'} make a vector of type float "
                f"or int, a category or tags, but not type {wanted.type}; name one column"
            )
        case "weight":
            values, spec = _convert_number_column(name, "float", column)
            if (values < 0).any():
                row = int(np.argmax(values < 0))
                raise ConfigError(
                    f"{column.key}: {column.rows.format_location(row)} holds {values[row]:g}; the weight of a sample "
                    "must be 0 or more: correct it"
                )
            return values, spec
        case _:
            pieces = cells.convert_to_text_pieces(column)
            lengths = np.concatenate([np.asarray(pc.binary_length(piece), np.int64) for piece in pieces])
            nul = np.concatenate([np.asarray(pc.match_substring(piece, "\0"), np.bool_) for piece in pieces])
            spec = encode.build_string_spec(column.name_label(name), lengths, np.flatnonzero(nul))
            return TextColumn(pieces, max(spec.text_bytes, 1)), spec


def _convert_class_label(name: str, wanted: LabelSource, columns: Sequence[Column]) -> Label:
    column, single = columns[0], wanted.type == "category"
    listed = wanted.source if isinstance(wanted.source, tuple) else None
    classes = wanted.classes if wanted.classes is not None else listed
    fixed = None if classes is None else encode.parse_configured_classes(classes, column.key)
    # Classes as 0 and 1: in several columns, in texts such as `0 0 1`, or in lists.
    if listed is not None:
        return _convert_marks(name, columns, fixed, single=single)
    if not cells.has_lists(column):
        lists = _parse_mark_texts(column, single=single)
        if lists is not None:
            return _convert_marks(name, [lists], fixed, single=single)
    elif single or _has_marks(column):
        return _convert_marks(name, columns, fixed, single=single)
    # Words and brackets in the cells are classes where the configuration lists them.
    is_literal = any(encode.is_list_text(str(each)) for each in fixed or ())
    if not single:
        if not cells.has_lists(column):
            lists = None if is_literal else cells.parse_list_texts(column)
            if lists is None:
                joined = cells.convert_to_texts(column)
                marked = pc.any(pc.match_substring_regex(joined, _TAG_MARKS)).as_py()
                if not marked:
                    _log.info("%s: no cell holds | ; or , so white space separates the tags", column.key)
                lists = replace(column, cells=pc.split_pattern_regex(joined, _TAG_MARKS if marked else r"\s+"))
            column = lists
        elements, owners = cells.flatten_lists(column)
        cells.check_exact_floats(elements)
        tag_texts = cells.convert_to_texts(elements)
        # An empty element, as between two separators, is no tag.
        there = ~cells.find_empty_texts(tag_texts).to_numpy(zero_copy_only=False)
        levels, codes = cells.encode_distinct_texts(tag_texts.filter(pa.array(there)))
        if fixed is None:
            places = np.flatnonzero(there)
            rows = replace(elements.rows, format_location=lambda tag: elements.rows.format_location(int(places[tag])))
            cells.check_class_texts(replace(elements, rows=rows), levels, codes)
        tags = SampleTags(len(column.cells), levels, owners[there], codes)
        return build_tags_label(column.name_label(name), tags, fixed)
    cells.check_exact_floats(column)
    texts, codes = cells.encode_distinct_texts(cells.convert_to_nonempty_texts(column))
    if fixed is None:
        cells.check_class_texts(column, texts, codes)
    return encode.build_category_label(column.name_label(name), texts, codes, fixed)


def _convert_numeric_label(
    name: str, kind: Literal["int", "float"], columns: Sequence[Column], *, listed: bool
) -> Label:
    if listed:
        each = [_convert_number_column(name, kind, column)[0] for column in columns]
        values = cast("encode.Numbers", np.stack(each, axis=1))  # all of one dtype
    elif cells.has_lists(columns[0]):
        width = compute_vector_width(columns)
        values = _convert_number_column(name, kind, cells.flatten_lists(columns[0])[0])[0].reshape(-1, width)
    else:
        return _convert_number_column(name, kind, columns[0])
    return values, measure_label(LabelSpec(name, kind, width=values.shape[1]), values)


def _convert_number_column(
    name: str, kind: Literal["int", "float"], column: Column
) -> tuple[encode.Numbers, LabelSpec]:
    return encode.build_number_label(column.name_label(name), kind, cells.convert_to_numbers(column, kind))


def _convert_marks(
    name: str, columns: Sequence[Column], classes: tuple[ClassValue, ...] | None, *, single: bool
) -> Label:
    """Returns the class of each row, the position of its 1, if `single`; else the classes whose numbers are 1, packed.

    `classes` names the classes in the order of the numbers; None names them 0 to k - 1. Raises ConfigError, naming the
    row, for other numbers than 0 and 1, and if `single` unless one number is 1.
    """
    width, first, rows = compute_vector_width(columns), columns[0], len(columns[0].cells)
    if classes is not None and len(classes) != width:
        raise ConfigError(
            f"{first.key}: classes has {format_count(len(classes), 'class', 'classes')}, but {first.display_name} "
            f"holds {format_count(width, 'number')} per row, one per class; list that many classes, in the order of "
            "the numbers"
        )
    named = tuple(range(width)) if classes is None else classes
    blocks: list[npt.NDArray[Any]] = []
    step = max(1, _BLOCK_NUMBERS // width)
    for start in range(0, rows, step):
        parts = [slice_column_rows(column, start, min(rows, start + step)) for column in columns]
        flat = [cells.flatten_lists(part)[0] if cells.has_lists(part) else part for part in parts]
        numbers = [cells.convert_to_numbers(part, "float").astype(np.float64, copy=False) for part in flat]
        marks = np.concatenate([each.reshape(len(parts[0].cells), -1) for each in numbers], axis=1)
        ones = marks.sum(axis=1)
        if (other := ((marks != 0) & (marks != 1)).any(axis=1)).any():
            row = int(np.argmax(other))
            raise ConfigError(
                f"{first.key}: {first.rows.format_location(start + row)} holds {_format_first_numbers(marks[row])}; "
                "several numbers per row give a class only if each is 0 or 1: use type: float for a vector or for "
                "soft labels, or correct the row"
            )
        if single and (ones != 1).any():
            row = int(np.argmax(ones != 1))
            raise ConfigError(
                f"{first.key}: {first.rows.format_location(start + row)} holds {_format_first_numbers(marks[row])}, "
                f"which contains {ones[row]:g} ones; a category needs exactly one 1 in each row: use type: tags for "
                "any number of classes per sample, or correct the row"
            )
        blocks.append(np.asarray(marks.argmax(axis=1), np.int64) if single else np.packbits(marks == 1, axis=1))
    values = np.concatenate(blocks)
    if single:
        return values, measure_label(LabelSpec(name, "category", classes=named), values)
    return values, measure_label(LabelSpec(name, "tags", width=width, classes=named), values)


def compute_vector_width(columns: Sequence[Column]) -> int:
    """Returns how many numbers a row has: one for each column, or the length of the lists.

    Raises ConfigError unless all lists have the same length, which is not 0.
    """
    column = columns[0]
    if not cells.has_lists(column):
        return len(columns)
    lengths = cells.compute_list_lengths(column.cells)
    odd = int(np.argmax(lengths != lengths[0])) if lengths[0] else 0
    if not lengths[0] or lengths[odd] != lengths[0]:
        raise ConfigError(
            f"{column.describe_cell(odd)} holds {format_count(int(lengths[odd]), 'number')}, but the first row holds "
            f"{lengths[0]}; a vector needs the same number of values in every row, and at least one"
        )
    return int(lengths[0])


def _parse_mark_texts(column: Column, *, single: bool) -> Column | None:
    """Returns a column of texts such as `0 0 1` or `[0, 1, 0]` as one of lists; None if any text has another form.

    `single`: exactly one number is 1. Where any text has another number of them, all texts are names of classes.
    """
    pattern = _ONE_HOT if single else _MULTI_HOT
    # The first text decides for nearly all columns.
    if not _all_texts_match(cells.convert_to_texts(slice_column_rows(column, 0, 1)), pattern):
        return None
    texts = cells.convert_to_texts(column)
    if not _all_texts_match(texts, pattern):
        return None
    lists = pc.split_pattern_regex(pc.utf8_trim(texts, "[]() \t"), _GAP)
    return replace(column, cells=lists) if _has_equal_lengths(lists) else None


def _has_marks(column: Column) -> bool:
    """Returns whether lists are rows of an array, or hold only 0 and 1, more than one and equally many in each row.

    The latter cannot be names of tags: there are only two names, so a list of three would have one of them twice.
    """
    kind = column.cells.type
    if pa.types.is_fixed_size_list(kind) and _is_number_type(kind.value_type):
        return True
    if not _has_equal_lengths(column.cells):
        return False
    elements = cells.flatten_lists(column)[0].cells
    if not _is_number_type(elements.type):
        return cells.is_text_type(elements.type) and _all_texts_match(elements, f"^{_ANY}$")
    return bool(pc.all(pc.is_in(elements, value_set=pa.array([0, 1]).cast(elements.type))).as_py())


def _is_number_type(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def slice_column_rows(column: Column, start: int, stop: int) -> Column:
    """Returns the rows from `start` to `stop`. Locations still refer to the rows of the file."""
    rows = SourceRows(column.rows.path, lambda row: column.rows.format_location(start + row))
    return replace(column, cells=column.cells.slice(start, stop - start), rows=rows)


def _all_texts_match(texts: Texts, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def _has_equal_lengths(lists: Any) -> bool:
    lengths = cells.compute_list_lengths(lists)
    return bool(lengths.size and lengths[0] > 1 and (lengths == lengths[0]).all())


def _format_first_numbers(numbers: npt.NDArray[np.float64]) -> str:
    shown = ", ".join(f"{number:g}" for number in numbers[:_SHOWN_NUMBERS])
    return f"[{shown}, ...]" if numbers.size > _SHOWN_NUMBERS else f"[{shown}]"
