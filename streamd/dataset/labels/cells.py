"""A column's cells as text, as numbered distinct texts, as numbers or as lists of them.

Errors name the line of a bad cell. Text is stripped of the white space around it, and a leading plus is no part of a
number: people write `a.jpg, +5`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamd.dataset.labels.encode import (
    EXACT_BELOW,
    INT64_END,
    LIST_TEXT,
    MISSING_WORDS,
    LabelPlace,
    format_other_locations,
    is_list_text,
    is_number_text,
    parse_list_text,
)
from streamd.dataset.labels.text_encoding import BYTE_ORDER_MARK
from streamd.dataset.manifest.columns import PathColumn
from streamd.dataset.manifest.types import Int64s, LocationFormatter
from streamd.errors import ConfigError

Cells: TypeAlias = Any  # a pyarrow Array or ChunkedArray; pyarrow's stubs, where installed, lack many functions
Texts: TypeAlias = Any  # an Array of large strings
DecimalMark = Literal[".", ",", "either"]
WideNumbers = Int64s | npt.NDArray[np.float64]

_SHOWN_CHARS: Final = 80  # of a cell in a message
_DECIMAL_COMMA: Final = r"^([+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?)$"
THOUSANDS: Final = r"^[+-]?[1-9][0-9]{0,2},[0-9]{3}$"
_PIECE_ROWS: Final = 1 << 14  # trimmed at a time


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The rows of the file at `path` that become samples.

    `format_location` returns where a person finds a row, such as `labels.csv, line 7`.
    """

    path: Path
    format_location: LocationFormatter


@dataclass(frozen=True, slots=True)
class Column:
    """One cell a row. `display_name` is its name in messages, `key` the configuration key that needs it.

    `decimal_mark` is the mark before the fraction of a number in a text table; `either` where the numbers themselves
    decide. It is None for everything else.
    """

    cells: Cells
    display_name: str
    rows: SourceRows
    key: str
    decimal_mark: DecimalMark | None = None

    def name_label(self, name: str) -> LabelPlace:
        """Returns the label `name` that the column becomes, as messages name it."""
        return LabelPlace(name, self.key, self.rows.format_location)

    def describe_cell(self, row: int) -> str:
        """Returns the beginning of a message about a cell: the key that needs it, its row, and its column."""
        return f"{self.key}: {self.rows.format_location(row)}: {self.display_name}"

    def format_other_rows(self, rows: Sequence[int], format_value: Callable[[int], str] | None = None) -> str:
        """Formats all `rows` but the first, as `format_other_locations` does."""
        return format_other_locations(rows, self.rows.format_location, format_value)


def convert_to_nonempty_texts(column: Column) -> Texts:
    """Returns the cells as text. Raises ConfigError if one is empty."""
    texts = convert_to_texts(column)
    _check_no_empty_cell(column, find_empty_texts(texts))
    return texts


def check_class_texts(column: Column, levels: Sequence[str], codes: Int64s) -> None:
    """Checks the distinct texts of a column that become classes; `codes`, (n,), say which cell holds which of them.

    Raises ConfigError for a list in brackets, for a text with a NUL, and for a word that stands for a missing value
    where all other texts are numbers.
    """
    odd = [code for code, level in enumerate(levels) if "\0" in level or is_list_text(level)]
    if odd:
        rows = np.flatnonzero(np.isin(codes, odd)).tolist()
        text = levels[codes[rows[0]]]
        what, remedy = (
            ("a text with a NUL in it", "remove it, or save the file as UTF-8")
            if "\0" in text
            else ("a list in brackets", "write the name of one class, or use type tags for any number of classes a row")
        )
        raise ConfigError(
            f"{column.describe_cell(rows[0])} holds {text[:_SHOWN_CHARS]!r}, {what}{column.format_other_rows(rows)}; "
            f"{remedy}"
        )
    words = [code for code, level in enumerate(levels) if level.casefold() in MISSING_WORDS]
    if words and len(words) < len(levels) and all(map(is_number_text, set(levels) - {levels[code] for code in words})):
        rows = np.flatnonzero(np.isin(codes, words)).tolist()
        more = ", or list all classes under classes if it is one of them"
        raise _build_missing_value_error(column, rows, [levels[code] for code in codes[rows].tolist()], more)


def parse_list_texts(column: Column) -> Column | None:
    """Returns a column of texts such as ['cat', 'dog'] as one of lists; None if no text has this form.

    Raises ConfigError where only some cells have it, and for lists in lists.
    """
    texts = convert_to_texts(column)
    if not pc.any(pc.match_substring_regex(texts, LIST_TEXT)).as_py():
        return None
    levels, codes = encode_distinct_texts(texts)
    lists = [parse_list_text(level) for level in levels]
    unread = [code for code, parsed in enumerate(lists) if parsed is None]
    if unread:
        one = next(level for level in levels if is_list_text(level))
        rows = np.flatnonzero(np.isin(codes, unread)).tolist()
        text = levels[codes[rows[0]]]
        raise ConfigError(
            f"{column.describe_cell(rows[0])} holds {text[:_SHOWN_CHARS]!r}, which is not a list such as "
            f"{one[:_SHOWN_CHARS]!r} ({column.rows.format_location(int(np.argmax(codes == levels.index(one))))})"
            f"{column.format_other_rows(rows)}; write all cells in one way, such as cat|dog"
        )
    cells: Cells = pa.array(lists, pa.large_list(pa.large_string()))
    return replace(column, cells=cells.take(pa.array(codes)))


def convert_to_texts(column: Column) -> Texts:
    """Returns the cells as text, which may be empty; a missing value is an empty text. Raises ConfigError."""
    cells = column.cells
    try:
        if pa.types.is_dictionary(cells.type):
            cells = cells.cast(cells.type.value_type)
        if pa.types.is_floating(cells.type):  # some tables write a missing value as NaN
            cells = pc.if_else(pc.is_nan(cells), pa.scalar(None, cells.type), cells)
        trimmed = trim_texts(_join_chunks(cells).cast(pa.large_string()))
        texts: Texts = pc.fill_null(trimmed, pa.scalar("", trimmed.type))
    except pa.ArrowException as error:
        raise ConfigError(
            f"{column.key}: {column.display_name} of {column.rows.path.name} holds {cells.type}, which is not text: "
            f"{_format_first_error_line(error)}; choose another column, or for a label another type"
        ) from error
    return texts


def trim_texts(texts: Texts) -> Texts:
    """Returns the texts without white space around them, and without the byte order marks of files that were joined."""
    trimmed: Texts = pc.utf8_trim_whitespace(texts)
    if pc.any(pc.match_substring(trimmed, BYTE_ORDER_MARK)).as_py():
        trimmed = pc.utf8_trim_whitespace(pc.utf8_trim(trimmed, BYTE_ORDER_MARK))
    return trimmed


def convert_to_text_pieces(column: Column) -> list[Texts]:
    """Returns the cells as text, which may be empty, some rows a piece, in the column's own memory where possible."""
    cells = column.cells
    chunks = cells.chunks if isinstance(cells, pa.ChunkedArray) else [cells]
    parts = (chunk.slice(start, _PIECE_ROWS) for chunk in chunks for start in range(0, len(chunk), _PIECE_ROWS))
    # A loop would keep the texts of one piece until those of the next one are made.
    return [_reuse_original_cells(part, convert_to_texts(replace(column, cells=part))) for part in parts]


def _reuse_original_cells(cells: Any, texts: Texts) -> Texts:
    """Returns the cells instead of the `texts` made of them, if both are the same."""
    has_offsets = pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)  # others are copied anyway
    # The texts are the cells, stripped. Stripping only removes bytes, so an equal number of bytes means equal texts.
    if not has_offsets or cells.null_count:
        return texts
    before, after = (pc.sum(pc.binary_length(each)).as_py() for each in (cells, texts))
    return cells.cast(pa.large_string()) if before == after else texts


def find_empty_texts(texts: Texts) -> Any:
    """Returns which texts are empty, as an Array."""
    return pc.equal(texts, pa.scalar("", texts.type))


def encode_distinct_texts(texts: Texts) -> tuple[list[str], Int64s]:
    """Returns the distinct texts, and for each cell the position of its text among them, (n,)."""
    encoded = texts.dictionary_encode()
    levels: list[str] = encoded.dictionary.to_pylist()
    return levels, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def encode_texts(texts: Texts) -> list[bytes]:
    """Returns the texts in UTF-8."""
    encoded: list[bytes] = texts.cast(pa.large_binary()).to_pylist()
    return encoded


def build_path_column(texts: Texts) -> PathColumn:
    """Returns the texts as a PathColumn over the same memory."""
    # A sliced array shares the buffers of the whole one, so its offset counts here; the ends index the whole blob.
    _, ends, blob = texts.cast(pa.large_string()).buffers()
    return PathColumn(
        memoryview(blob), np.frombuffer(ends, dtype=np.int64, count=len(texts) + 1, offset=8 * texts.offset)
    )


def convert_to_numbers(column: Column, kind: Literal["int", "float"]) -> WideNumbers:
    """Returns the cells, (n,): as int64 where `kind` is int and all are whole, else as float64. Raises ConfigError."""
    cells = _join_chunks(column.cells)
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if is_text_type(cells.type):
        texts = pc.replace_substring_regex(convert_to_nonempty_texts(replace(column, cells=cells)), r"^\+", "")
        if column.decimal_mark in {",", "either"}:
            commas = _find_matches(texts, _DECIMAL_COMMA)
            if commas.any():
                points = _find_matches(texts, r"\.")
                first = int(np.argmax(commas))
                where = f"{column.describe_cell(first)} holds {texts[first].as_py()!r}"
                if points.any():
                    row = int(np.argmax(points))
                    raise ConfigError(
                        f"{where}, with a decimal comma, but {texts[row].as_py()[:_SHOWN_CHARS]!r} "
                        f"({column.rows.format_location(row)}) has a point; write all numbers of the column in the "
                        "same way, without thousands separators"
                    )
                # Where every comma may stand between thousands, as in 1,234, the meaning is unclear. One number whose
                # comma may not, such as 1,5, settles it for all.
                if column.decimal_mark == "either" and not (commas & ~_find_matches(texts, THOUSANDS)).any():
                    raise ConfigError(
                        f"{where}, whose comma may be a decimal comma or a thousands separator, as in every number of "
                        "the column; add decimal: ',' under source, or remove the commas"
                    )
                texts = replace_decimal_commas(texts)
        # Whole numbers are parsed as int64 first, since float64 is not exact for large ones. Some tables write 3 as
        # 3.0. The library would also read 0x1F.
        if kind == "int" and not pc.any(pc.match_substring(texts, "x", ignore_case=True)).as_py():
            whole = _cast_texts_or_none(pc.replace_substring_regex(texts, r"\.0*$", ""), pa.int64())
            if whole is not None:
                return _convert_to_numpy(whole)
        numbers = _cast_texts_or_none(texts, pa.float64())
        if numbers is None:
            raise _build_no_number_error(column, texts)
        values = _convert_to_numpy(numbers)
        if np.isnan(values).any():
            raise _build_no_number_error(column, texts)
        return values if kind == "float" else _replace_large_numbers(column, texts, values)
    _check_no_empty_cell(column, cells.is_null())
    if kind == "int":
        check_exact_floats(column)
    exact = kind == "int" and (pa.types.is_integer(cells.type) or pa.types.is_boolean(cells.type))
    try:
        return _convert_to_numpy(cells.cast(pa.int64() if exact else pa.float64()))
    except pa.ArrowException as error:
        what = "a number that int64 can hold; use type category or string" if exact else "a number"
        raise ConfigError(
            f"{column.key}: {column.display_name} of {column.rows.path.name} holds {cells.type}, which is not {what}: "
            f"{_format_first_error_line(error)}"
        ) from error


def check_exact_floats(column: Column) -> None:
    """Raises ConfigError for a column of floats with numbers so large that not every whole number is among them.

    A program has put whole numbers into it, and its file holds neighbours of some of them.
    """
    if not pa.types.is_float64(column.cells.type):
        return
    values = np.abs(_convert_to_numpy(pc.fill_null(_join_chunks(column.cells), 0.0)))
    large = np.flatnonzero((values >= EXACT_BELOW) & np.isfinite(values)).tolist()
    if large:
        raise ConfigError(
            f"{column.describe_cell(large[0])} holds {column.cells[large[0]].as_py():.0f} as float64, which does not "
            f"hold every whole number of this size{column.format_other_rows(large)}; save the column as int64 or as "
            "text"
        )


def has_lists(column: Column) -> bool:
    """Returns whether each cell is a list, as in Parquet."""
    return _is_list_type(column.cells.type)


def has_nested_lists(column: Column) -> bool:
    """Returns whether each cell is a list of lists."""
    return has_lists(column) and _is_list_type(column.cells.type.value_type)


def compute_list_lengths(lists: Any) -> Int64s:
    """Returns the length of each list of an Array, (n,); a missing list has length 0."""
    lengths = pc.fill_null(pc.list_value_length(lists), pa.scalar(0, pa.int32()))
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def _is_list_type(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def flatten_lists(column: Column) -> tuple[Column, Int64s]:
    """Returns the elements of a column of lists as one column, and the row of each element, (elements,)."""
    lists = _join_chunks(column.cells)
    owners: Int64s = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    rows = SourceRows(column.rows.path, lambda element: column.rows.format_location(int(owners[element])))
    return replace(column, cells=pc.list_flatten(lists), rows=rows), owners


def is_text_type(kind: pa.DataType) -> bool:
    """Returns whether cells of this type are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _join_chunks(cells: Cells) -> Any:
    return cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells


def _replace_large_numbers(column: Column, texts: Texts, values: WideNumbers) -> WideNumbers:
    """Returns the numbers as int64 if all are whole, also those so large that float64 has only their neighbours."""
    large = np.flatnonzero(np.abs(values) >= EXACT_BELOW).tolist()
    exact = {row: Decimal(texts[row].as_py()) for row in large}
    wrong = [row for row in large if not -INT64_END <= exact[row] < INT64_END or exact[row] % 1]
    if wrong:
        others = column.format_other_rows(wrong, lambda row: texts[row].as_py())
        raise ConfigError(
            f"{column.describe_cell(wrong[0])} holds {texts[wrong[0]].as_py()[:_SHOWN_CHARS]}{others}, which is not a "
            "whole number that int64 can hold; use type category or string"
        )
    if not large or (np.trunc(values) != values).any():
        return values
    whole = values.astype(np.int64)
    whole[large] = [int(number) for number in exact.values()]
    return whole


def _find_matches(texts: Texts, pattern: str) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.match_substring_regex(texts, pattern), np.bool_)


def replace_decimal_commas(texts: Texts) -> Texts:
    """Returns the texts, with a point in those that are a number with a decimal comma."""
    return pc.replace_substring_regex(texts, _DECIMAL_COMMA, r"\1.\2")


def _build_no_number_error(column: Column, texts: Texts) -> ConfigError:
    # Each distinct text is tried, since the library does not name those that are no numbers.
    levels, codes = encode_distinct_texts(texts)
    is_failing = [
        level.casefold() in MISSING_WORDS
        or _cast_texts_or_none(pa.array([level], pa.large_string()), pa.float64()) is None
        for level in levels
    ]
    rows: list[int] = np.flatnonzero(np.array(is_failing, np.bool_)[codes]).tolist()
    failing = [texts[row].as_py() for row in rows]
    if all(text.casefold() in MISSING_WORDS for text in failing):
        return _build_missing_value_error(column, rows, failing, "")

    def format_cell(row: int) -> str:
        return repr(texts[row].as_py()[:_SHOWN_CHARS])

    others = column.format_other_rows(rows, format_cell)
    remedy = "correct it"
    if re.fullmatch(_DECIMAL_COMMA, failing[0]):
        can_say = column.decimal_mark == "."
        remedy = "add decimal: ',' under source if numbers have decimal commas" if can_say else "write it with a point"
    return ConfigError(
        f"{column.describe_cell(rows[0])} holds {format_cell(rows[0])}, which is not a number{others}; {remedy}, or "
        "use type category"
    )


def _cast_texts_or_none(texts: Texts, dtype: pa.DataType) -> Any:
    """Returns the texts as numbers, or None where one of them is no such number."""
    try:
        return texts.cast(dtype)
    except pa.ArrowInvalid:
        return None


def _check_no_empty_cell(column: Column, empty: Any) -> None:
    mask = empty.to_numpy(zero_copy_only=False)
    if mask.any():
        rows = np.flatnonzero(mask).tolist()
        row, others = rows[0], column.format_other_rows(rows)
        is_nan = isinstance(column.cells[row].as_py(), float)
        state = "holds NaN, which is not a number" if is_nan else "has no value"
        remedy = "correct" if is_nan else "add"
        remedy += " the value, or remove the row" if len(rows) == 1 else " the values, or remove the rows"
        raise ConfigError(f"{column.describe_cell(row)} {state}{others}; {remedy}")


def _build_missing_value_error(column: Column, rows: Sequence[int], words: Sequence[str], more: str) -> ConfigError:
    """Returns the error for `rows` whose `words` stand for a missing value; `more` ends the remedy."""
    places = dict(zip(rows, words, strict=True))
    others = column.format_other_rows(rows, lambda row: repr(places[row]))
    remedy = "add the value, or remove the row" if len(rows) == 1 else "add the values, or remove the rows"
    return ConfigError(
        f"{column.describe_cell(rows[0])} holds {words[0]!r}, which stands for a missing value in a column of "
        f"numbers{others}; {remedy}{more}"
    )


def _convert_to_numpy(cells: Any) -> WideNumbers:
    values: WideNumbers = cells.to_numpy(zero_copy_only=False)
    return values


def _format_first_error_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
