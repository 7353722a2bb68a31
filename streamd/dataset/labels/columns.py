"""The wanted columns of a table, and the lines that its rows stand in.

`where`: the rows of a table whose columns have the values that are asked for.

Cells of a CSV are text, and what is asked for has a type. A text asks for that text; a number for cells that say this
number, however they write it; true for `true`, `yes` and 1, false for `false`, `no` and 0, in any case of letters.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from streamd.core.text import format_count
from streamd.dataset.labels.cells import Cells, Column, Texts, convert_to_texts, encode_distinct_texts
from streamd.dataset.manifest.types import Int64s
from streamd.dataset.paths.confined import format_path, translate_read_errors
from streamd.dataset.sources import Scalar
from streamd.errors import ConfigError, suggest_name
from streamd.limits import MIB

DELIMITERS: Final = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET_SUFFIXES: Final = (".parquet", ".pq")
_SHOWN_COLUMNS: Final = 30  # in a message
_ROWS_PER_READ: Final = 1 << 14  # of Parquet
Mask = npt.NDArray[np.bool_]

_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_BOOLEAN_WORDS: Final = {True: ("true", "t", "yes", "y", "1", "1.0"), False: ("false", "f", "no", "n", "0", "0.0")}
_EXACT_BELOW: Final = 1 << 53  # from here on float64 takes neighbours for one whole number
_SHOWN_VALUES: Final = 20  # of a column in a message

csv.field_size_limit(sys.maxsize)  # pyarrow takes cells of any length, and their lines are told with this library


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table: its file, the names of its columns, and the key of the configuration that names it."""

    path: Path
    column_names: tuple[str, ...]
    key: str

    @property
    def delimiter(self) -> str | None:
        """None for Parquet."""
        return DELIMITERS.get(self.path.suffix.lower())

    def format_location(self, row: int) -> str:
        """Where a person finds row `row`, counted from 0."""
        if self.delimiter is None:
            return f"{self.path.name}, row {row + 1}"
        return f"{self.path.name}, line {_find_line_number(self.path, self.delimiter, row)}"

    def find_column_index(self, column: str, key: str) -> int:
        """Where `column` stands in the header. Raises ConfigError, naming `key`, when it is not there exactly once."""
        found = [position for position, name in enumerate(self.column_names) if name == column]
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(
                f"{key}: {format_path(self.path)} has {len(found)} columns named {column!r} (columns "
                f"{', '.join(str(position + 1) for position in found)}); rename all but one"
            )
        there = ", ".join(self.column_names[:_SHOWN_COLUMNS]) + (
            ", ..." if len(self.column_names) > _SHOWN_COLUMNS else ""
        )
        hint = _format_separator_hint(self.column_names, self.delimiter) or suggest_name(column, self.column_names)
        raise ConfigError(f"{key}: {format_path(self.path)} has no column {column!r}{hint}; it has: {there}")


def _format_separator_hint(header: Sequence[str], delimiter: str | None) -> str:
    other = next((mark for mark in ";\t,|" if mark != delimiter and len(header) == 1 and mark in header[0]), None)
    if delimiter is None or other is None:
        return ""
    return f"; columns seem to be separated by {other!r}, not by {delimiter!r}: use .tsv for tabs, .csv for commas"


def read_table_header(path: Path, key: str) -> TableFile:
    """Reads the names of the columns only."""
    suffix = path.suffix.lower()
    with translate_read_errors(path, key):
        if path.is_dir():
            raise ConfigError(
                f"{key}: {format_path(path)} is a folder; kind table wants a file, kind folder takes folders"
            )
        if suffix in PARQUET_SUFFIXES:
            try:
                names = list(pq.read_schema(path).names)
            except pa.ArrowException as error:
                raise ConfigError(f"{key}: {format_path(path)} is no Parquet file: {error}; write it anew") from error
        elif suffix in DELIMITERS:
            names = _read_text_header(path, DELIMITERS[suffix], key)
        else:
            raise ConfigError(
                f"{key}: {format_path(path)} is no table by its suffix; known are "
                f"{', '.join([*DELIMITERS, *PARQUET_SUFFIXES])}; save it as one of these"
            )
    return TableFile(path, tuple(name.strip() for name in names), key)


def _read_text_header(path: Path, delimiter: str, key: str) -> list[str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            header = next(csv.reader(lines, delimiter=delimiter), None)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{key}: {format_path(path)} cannot be read: {error}; save it as UTF-8 text") from error
    if not header:
        state = "is empty" if header is None else "begins with a blank line"
        raise ConfigError(f"{key}: {format_path(path)} {state}; its first line has to name the columns")
    return header


def _find_line_number(path: Path, delimiter: str, row: int) -> int:
    """The line, from 1, where row `row` begins; blank lines and line breaks in quotes count, as in an editor."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        reader = csv.reader(lines, delimiter=delimiter)
        begun, records = 1, -1
        for record in reader:
            records += bool(record)
            if records == row + 1:
                break
            begun = reader.line_num + 1
        return begun


def read_columns(table: TableFile, positions: Sequence[int]) -> dict[int, Cells]:
    """The columns at `positions`, and no others."""
    wanted = sorted(set(positions))
    with translate_read_errors(table.path, table.key):
        try:
            if table.delimiter is None:
                names = pq.read_schema(table.path).names
                read = _read_parquet(table.path, [names[position] for position in wanted])
                columns = {position: read.column(names[position]) for position in wanted}
            else:
                read = _read_delimited(table, wanted, table.delimiter)
                columns = {position: read.column(str(position)) for position in wanted}
        except (pa.ArrowException, KeyError) as error:
            remedy = "save it as UTF-8 text" if "UTF8" in str(error) else "write it anew"
            raise ConfigError(f"{table.key}: {format_path(table.path)} cannot be read: {error}; {remedy}") from error
    if read.num_rows == 0:
        raise ConfigError(f"{table.key}: {format_path(table.path)} names its columns and has no rows; add samples")
    return columns


def _read_parquet(path: Path, names: list[str]) -> pa.Table:
    """Some rows at a time: a group of rows at once takes twice the memory until it is read."""
    with pq.ParquetFile(path) as file:
        schema = pa.schema([file.schema_arrow.field(name) for name in names])
        return pa.Table.from_batches(file.iter_batches(_ROWS_PER_READ, columns=names), schema)


def _read_delimited(table: TableFile, wanted: Sequence[int], delimiter: str) -> pa.Table:
    try:
        read, uneven = _parse_delimited(table, wanted, delimiter)
    except pa.ArrowInvalid:
        _check_quotes_closed(table, delimiter)  # they make cells larger than the library takes
        raise
    if _count_line_breaks(table.path) > 1 + read.num_rows + len(uneven):  # then blank lines have them, or cells
        _check_quotes_closed(table, delimiter)
    if uneven:
        raise _uneven_rows_error(table, uneven, is_whole_table=read.num_rows == 0)
    return read


def _parse_delimited(
    table: TableFile, wanted: Sequence[int], delimiter: str
) -> tuple[pa.Table, list[pa_csv.InvalidRow]]:
    """The wanted columns, and the rows left out for having more or fewer cells than the header."""

    def skip_row(row: pa_csv.InvalidRow) -> Literal["skip"]:
        uneven.append(row)
        return "skip"

    uneven: list[pa_csv.InvalidRow] = []
    numbers = [str(position) for position in range(len(table.column_names))]  # names may be there twice, numbers not
    text = {str(position): pa.large_string() for position in wanted}
    read = pa_csv.read_csv(
        table.path,
        # One thread, since only then does the library know the number of a row that it refuses.
        pa_csv.ReadOptions(column_names=numbers, skip_rows_after_names=1, use_threads=False),
        pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=skip_row),
        pa_csv.ConvertOptions(include_columns=list(text), column_types=text, strings_can_be_null=False),
    )
    return read, uneven


def _uneven_rows_error(table: TableFile, uneven: Sequence[pa_csv.InvalidRow], *, is_whole_table: bool) -> ConfigError:
    first = uneven[0]
    if is_whole_table:
        remedy = "give every column a name in the first line"
    elif first.actual_columns > first.expected_columns:
        remedy = "put quotes around cells that hold the separator"
    else:
        remedy = "add the cells that are missing, or take the line out"
    more = f" (and {len(uneven) - 1} more like it)" if len(uneven) > 1 else ""
    return ConfigError(
        f"{table.key}: {table.format_location((first.number or 0) - 2)} has "
        f"{format_count(first.actual_columns, 'cell')}{more} "
        f"where the first has {first.expected_columns}: {first.text[:80]!r}; {remedy}"
    )


def _check_quotes_closed(table: TableFile, delimiter: str) -> None:
    """A quote that is closed rows later, or never, makes one cell of them, which pyarrow takes without a word."""
    line = _find_unclosed_quote_line(table.path, delimiter)
    if line is not None:
        raise ConfigError(
            f"{table.key}: {table.path.name}, line {line} opens a quote that is not closed where its cell ends; "
            "close it, or write a quote that belongs to the text twice"
        )


def _find_unclosed_quote_line(path: Path, delimiter: str) -> int | None:
    """The line of the first row that a quote draws over several lines and that ends amid a cell."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        while True:
            begun = reader.line_num + 1
            try:
                if next(reader, None) is None:
                    return None
            except csv.Error:
                if reader.line_num > begun:
                    return begun


def _count_line_breaks(path: Path) -> int:
    with path.open("rb") as file:
        return sum(data.count(b"\n") for data in iter(partial(file.read, MIB), b""))


def select_rows(conditions: Mapping[str, Scalar], columns: Mapping[str, Column]) -> Int64s:
    """The rows that meet all of `conditions`, ascending; `columns` by the same names. Raises ConfigError for none."""
    texts = {name: convert_to_texts(columns[name]) for name in conditions}
    masks = {name: find_matching_cells(texts[name], value) for name, value in conditions.items()}
    for name, mask in masks.items():
        if not mask.any():
            raise _no_matching_row_error(columns[name], texts[name], conditions[name])
    rows: Int64s = np.flatnonzero(np.logical_and.reduce(list(masks.values())))
    if not rows.size:
        counts = ", ".join(f"{mask.sum()} with {name} {conditions[name]!r}" for name, mask in masks.items())
        first = next(iter(columns.values()))
        raise ConfigError(
            f"{first.key.rpartition('.')[0]}: no row of {first.rows.path.name} meets all conditions (it has {counts}); "
            "leave one out"
        )
    return rows


def find_matching_cells(texts: Texts, value: Scalar) -> Mask:
    """Which cells say `value`, (n,)."""
    match value:
        case bool():
            return _convert_to_mask(pc.is_in(pc.utf8_lower(texts), pa.array(_BOOLEAN_WORDS[value], texts.type)))
        case str():
            return _convert_to_mask(pc.equal(texts, pa.scalar(value.strip(), texts.type)))
        case _:
            return _find_matching_number_cells(texts, value)


def _find_matching_number_cells(texts: Texts, value: float) -> Mask:
    said = _convert_to_mask(pc.equal(texts, pa.scalar(str(value), texts.type)))
    if not isinstance(value, int) or abs(value) < _EXACT_BELOW:
        numeric = _convert_to_mask(pc.match_substring_regex(texts, _NUMBER))
        plain = pc.replace_substring_regex(texts.filter(pa.array(numeric)), r"^\+", "")
        said[numeric] |= plain.cast(pa.float64()).to_numpy(zero_copy_only=False) == float(value)
    return said


def _no_matching_row_error(column: Column, texts: Texts, value: Scalar) -> ConfigError:
    levels, codes = encode_distinct_texts(texts)
    counts = sorted(zip(levels, np.bincount(codes).tolist(), strict=True), key=lambda each: (-each[1], each[0]))
    there = ", ".join(f"{text!r} {count}" for text, count in counts[:_SHOWN_VALUES])
    more = f" and {len(counts) - _SHOWN_VALUES} other values" if len(counts) > _SHOWN_VALUES else ""
    return ConfigError(
        f"{column.key}: no row of {column.rows.path.name} has {value!r} in {column.display_name}"
        f"{suggest_name(str(value), levels)}; its values, and rows of each: {there}{more}"
    )


def _convert_to_mask(mask: Any) -> Mask:
    return np.array(mask.to_numpy(zero_copy_only=False), dtype=bool)
