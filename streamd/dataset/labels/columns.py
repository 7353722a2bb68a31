"""Reads the needed columns of a table, finds the lines of its rows, and selects rows by condition.

`where` selects the rows of a table whose columns have given values. Cells of a CSV are text, and a given value has a
type. A text matches the same text; a number matches cells with this number, in any notation; true matches `true`, `yes`
and 1, false matches `false`, `no` and 0, in any case of letters.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from streamd.core.text import format_count
from streamd.dataset.labels.cells import (
    Cells,
    Column,
    DecimalMark,
    SourceRows,
    Texts,
    convert_to_texts,
    encode_distinct_texts,
    replace_decimal_commas,
)
from streamd.dataset.labels.encode import (
    EXACT_BELOW,
    INT64_END,
    NUMBER,
    SHOWN_FAULTS,
    FaultCollector,
    format_other_locations,
    is_number_text,
)
from streamd.dataset.labels.text_encoding import BYTE_ORDER_MARK, UTF8, build_text_error, choose_text_encoding
from streamd.dataset.manifest.types import Int64s, build_label_key
from streamd.dataset.paths import patterns
from streamd.dataset.paths.confined import format_path, translate_read_errors
from streamd.dataset.sources import LabelSource, Scalar
from streamd.errors import ConfigError, suggest_name
from streamd.limits import MIB

SEPARATORS: Final = (",", ";", "\t", "|")
USUAL_SEPARATORS: Final = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET_SUFFIXES: Final = (".parquet", ".pq")
_SHOWN_COLUMNS: Final = 30  # in a message
_HEAD_CHARS: Final = 1 << 16  # of a text, from which its separator is found
_HEAD_ROWS: Final = 20  # in which a separator must fit
_ROWS_PER_READ: Final = 1 << 14  # of Parquet
Mask = npt.NDArray[np.bool_]

BOOLEAN_WORDS: Final = {True: ("true", "t", "yes", "y", "1", "1.0"), False: ("false", "f", "no", "n", "0", "0.0")}
_SHOWN_VALUES: Final = 20  # of a column in a message

csv.field_size_limit(sys.maxsize)  # pyarrow takes cells of any length, and this library finds their lines


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How the text of a table is read: the separator of its cells, and its encoding under Python's name.

    `decimal_mark` is the mark before the fraction of a number, as in `Column`.
    """

    separator: str
    encoding: str
    decimal_mark: DecimalMark


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table: its file, the names of its columns, and the configuration key that names it.

    `text` is None for Parquet, where `picture_columns` hold encoded pictures instead of their names.
    """

    path: Path
    column_names: tuple[str, ...]
    key: str
    text: TextFormat | None = None
    picture_columns: frozenset[str] = frozenset()
    _lines: list[int] = field(default_factory=list)  # where each row begins; filled by the first `format_location`

    def format_location(self, row: int) -> str:
        """Returns where a person finds row `row`, counted from 0 without the rows of other widths."""
        if self.text is None:
            return f"{self.path.name}, row {row + 1}"
        if not self._lines:
            rows = _iterate_rows(self.path, self.text)
            next(rows, None)  # the header
            self._lines.extend(line for line, row in rows if len(row) == len(self.column_names))
        # The csv module may read unusual quotes differently from pyarrow, and then find fewer rows.
        return f"{self.path.name}, " + (f"line {self._lines[row]}" if row < len(self._lines) else f"row {row + 1}")

    def find_column_index(self, column: str, key: str) -> int:
        """Returns the position of `column` in the header.

        Raises ConfigError, naming `key`, unless it is there exactly once.
        """
        if self.column_names.count(column) == 1:
            return self.column_names.index(column)
        found = [position for position, name in enumerate(self.column_names) if name == column]
        if found:
            raise ConfigError(
                f"{key}: {format_path(self.path)} has {len(found)} columns named {column!r} (columns "
                f"{', '.join(str(position + 1) for position in found)}); rename all but one"
            )
        there = ", ".join(self.column_names[:_SHOWN_COLUMNS]) + (
            ", ..." if len(self.column_names) > _SHOWN_COLUMNS else ""
        )
        hint = f"its columns are: {there}{suggest_name(column, self.column_names)}"
        # A header that holds another separator may have been split at the wrong one.
        used = None if self.text is None else self.text.separator
        marks = (mark for mark in SEPARATORS if mark != used and any(mark in name for name in self.column_names))
        other = None if used is None else next(map(format_separator, marks), None)
        if used is not None and other is not None:
            hint = (
                f"streamd split its lines at {format_separator(used)} and found the columns: {there}; its header also "
                f"contains {other}: if {other} separates the columns, add separator: {other} under source"
            )
        raise ConfigError(f"{key}: {format_path(self.path)} has no column {column!r}; {hint}")


def format_separator(mark: str) -> str:
    """Returns a separator as a configuration spells it."""
    return "tab" if mark == "\t" else f"{mark!r}"


@dataclass(frozen=True, slots=True)
class ColumnRequest:
    """A column, the configuration key that needs it (`key`), and the key that names it (`named_by`)."""

    column: str
    key: str
    named_by: str


def read_table_header(
    path: Path,
    key: str,
    separator: str | None = None,
    encoding: str | None = None,
    decimal: Literal[".", ","] | None = None,
) -> TableFile:
    """Reads the names of the columns, and decides how the rest is read. Raises ConfigError.

    The last three are the configured settings for the text of a table; None where the file decides.
    """
    suffix = path.suffix.lower()
    text: TextFormat | None = None
    pictures: frozenset[str] = frozenset()
    with translate_read_errors(path, key):
        if path.is_dir():
            raise ConfigError(
                f"{key}: {format_path(path)} is a folder, but kind table needs a file; give the path of a file, or use "
                "kind folder"
            )
        if suffix in PARQUET_SUFFIXES:
            try:
                names = list(pq.read_schema(path).names)
                with pq.ParquetFile(path) as file:
                    schema = file.schema_arrow
                    found = {
                        each.name.strip()
                        for each in schema
                        if pa.types.is_struct(each.type) and any(_is_bytes_type(inner.type) for inner in each.type)
                    }
                    binary = [field.name for field in schema if _is_bytes_type(field.type)]
                    for binary_name in binary:
                        # A database may write names as bytes, so the first cell decides.
                        first_cells = next(file.iter_batches(1, columns=[binary_name]), None)
                        if (
                            first_cells is not None
                            and first_cells.num_rows
                            and not _is_name(first_cells.column(0)[0].as_py() or b"")
                        ):
                            found.add(binary_name.strip())
                pictures = frozenset(found)
            except (pa.ArrowException, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"{key}: {format_path(path)} is not a Parquet file: {error}; write it again"
                ) from error
        elif suffix in USUAL_SEPARATORS or separator is not None:
            # What is not configured is found from the beginning of the file. A comma may be a decimal mark only where
            # it does not separate cells.
            encoding = choose_text_encoding(path, encoding, key)
            separator = separator or _choose_separator(path, encoding, key)
            text = TextFormat(separator, encoding, decimal or ("." if separator == "," else "either"))
            try:
                with path.open(newline="", encoding=text.encoding) as lines:
                    header = next(csv.reader(lines, delimiter=text.separator), None)
            except UnicodeError as error:
                raise build_text_error(path, text.encoding, key, error) from error
            except csv.Error as error:
                raise ConfigError(f"{key}: {format_path(path)} cannot be read: {error}; write it again") from error
            if not header:
                state = "is empty" if header is None else "begins with a blank line"
                raise ConfigError(f"{key}: {format_path(path)} {state}; its first line has to name the columns")
            names = header
        else:
            raise ConfigError(
                f"{key}: {format_path(path)} does not have the suffix of a table; streamd reads "
                f"{', '.join([*USUAL_SEPARATORS, *PARQUET_SUFFIXES])}; save the table as one of these"
            )
    return TableFile(path, tuple(name.strip().strip(BYTE_ORDER_MARK).strip() for name in names), key, text, pictures)


def _is_bytes_type(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_name(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def build_picture_column_error(path: Path, column: str, key: str) -> ConfigError:
    """Returns the error for a column that should name pictures, and holds them."""
    return ConfigError(
        f"{key}: column {column!r} of {format_path(path)} holds the pictures themselves, as bytes, and not the names "
        "of files; write each picture into a file and its name into a column, or pack them into tar shards and "
        "use kind tar"
    )


def _choose_separator(path: Path, encoding: str, key: str) -> str:
    with path.open(newline="", encoding=encoding, errors="replace") as file:
        head = file.read(_HEAD_CHARS)
        # The head ends at a whole line. A text of one block needs no cut, even where its last line has no break.
        cut = head.rfind("\n") + 1 if file.read(1) else 0
    first, *others = find_separators(head[:cut] if cut else head, USUAL_SEPARATORS[path.suffix.lower()])
    if others:
        marks = " or ".join(map(format_separator, (first, *others)))
        raise ConfigError(
            f"{key}: the cells of {format_path(path)} may be separated by {marks}; add the right one under source, "
            f"such as separator: {format_separator(first)}"
        )
    return first


def find_separators(head: str, usual: str) -> list[str]:
    """Returns the separator of a table that begins with `head`, whole lines; several where these fit equally well.

    A mark fits when it splits the header, outside quotes, and each of the first rows into the same number of cells. The
    `usual` mark of the file's suffix wins if it fits.
    """
    cells: dict[str, list[int]] = {}  # of the header and of each of the first rows, without blank lines
    for mark in (usual, *SEPARATORS):
        rows = csv.reader(io.StringIO(head, newline=""), delimiter=mark)
        with suppress(csv.Error):
            cells[mark] = [len(row) for row in islice(filter(None, rows), _HEAD_ROWS)]
    splitting = [mark for mark, counts in cells.items() if counts and counts[0] > 1]
    # If no mark fits all rows, those that split the header at least are considered: rows of another width are reported
    # later.
    marks = [mark for mark in splitting if len(set(cells[mark])) == 1] or splitting
    return [usual] if usual in marks or not marks else marks


def _iterate_rows(path: Path, text: TextFormat) -> Iterator[tuple[int, list[str]]]:
    """Yields each row that is not blank, the header first, with the line, from 1, where it begins.

    Blank lines and breaks inside quotes count as lines.
    """
    with path.open(newline="", encoding=text.encoding, errors="replace") as lines:
        reader, begun = csv.reader(lines, delimiter=text.separator), 1
        for row in reader:
            if row:
                yield begun, row
            begun = reader.line_num + 1


def read_columns(table: TableFile, positions: Sequence[int], faults: FaultCollector) -> dict[int, Cells]:
    """Reads the columns at `positions`. Rows of another width than the header are left out, and added to `faults`.

    Raises ConfigError, also for a table without rows.
    """
    wanted = sorted(set(positions))
    with translate_read_errors(table.path, table.key):
        try:
            if table.text is None:
                names = pq.read_schema(table.path).names
                # Some rows at a time: a whole row group takes twice its memory while it is read.
                asked = [names[position] for position in wanted]
                with pq.ParquetFile(table.path) as file:
                    schema = pa.schema([file.schema_arrow.field(name) for name in asked])
                    read = pa.Table.from_batches(file.iter_batches(_ROWS_PER_READ, columns=asked), schema)
                read.validate(full=True)  # the reader takes texts as they are, also where they are no UTF-8
                columns = {position: read.column(names[position]) for position in wanted}
            else:
                read = _read_delimited(table, wanted, table.text, faults)
                columns = {position: read.column(str(position)) for position in wanted}
        except (pa.ArrowException, KeyError, UnicodeError) as error:
            if table.text is not None:
                raise build_text_error(table.path, table.text.encoding, table.key, error) from error
            raise ConfigError(
                f"{table.key}: {format_path(table.path)} cannot be read: {error}; write it again"
            ) from error
    if read.num_rows == 0:
        raise ConfigError(
            f"{table.key}: {format_path(table.path)} has column names but no rows; add one row for each sample"
        )
    return columns


def _read_delimited(table: TableFile, wanted: Sequence[int], text: TextFormat, faults: FaultCollector) -> pa.Table:
    uneven: list[pa_csv.InvalidRow] = []  # left out for having more or fewer cells than the header

    def skip_row(row: pa_csv.InvalidRow) -> Literal["skip"]:
        uneven.append(row)
        return "skip"

    try:
        numbers = [str(position) for position in range(len(table.column_names))]  # unlike names, positions are unique
        types = {str(position): pa.large_string() for position in wanted}
        # Other encodings than UTF-8 are converted by Python, which takes longer.
        encoding = "utf8" if text.encoding == UTF8 else text.encoding
        read = pa_csv.read_csv(
            table.path,
            # One thread, since only then does the library know the number of a row that it refuses.
            pa_csv.ReadOptions(column_names=numbers, skip_rows_after_names=1, use_threads=False, encoding=encoding),
            pa_csv.ParseOptions(delimiter=text.separator, newlines_in_values=True, invalid_row_handler=skip_row),
            pa_csv.ConvertOptions(include_columns=list(types), column_types=types, strings_can_be_null=False),
        )
    except pa.ArrowInvalid:
        _check_quotes_closed(table, text)  # an unclosed quote makes a cell larger than the library takes
        raise
    # If there are more line breaks than rows, the others are in blank lines or inside cells, perhaps because of a quote
    # that is not closed. Only then is the text parsed a second time.
    with table.path.open("rb") as file:
        breaks = sum(data.count(b"\n") for data in iter(partial(file.read, MIB), b""))
    if breaks > 1 + read.num_rows + len(uneven):
        _check_quotes_closed(table, text)
    if uneven:
        error = _uneven_rows_error(table, text, uneven, is_whole_table=read.num_rows == 0)
        if read.num_rows == 0:
            raise error
        faults.errors.append(error)
    return read


def _uneven_rows_error(
    table: TableFile, text: TextFormat, uneven: Sequence[pa_csv.InvalidRow], *, is_whole_table: bool
) -> ConfigError:
    first = uneven[0]
    # The lines where the shown rows begin. The library counts rows from 1, with the header and without blank lines.
    wanted = {row.number or 0 for row in uneven[:SHOWN_FAULTS]}
    numbered = enumerate(islice(_iterate_rows(table.path, text), max(wanted)), 1)
    lines = [line for number, (line, _) in numbered if number in wanted]

    def format_place(each: int) -> str:
        # The csv module may read unusual quotes differently from pyarrow, and then find fewer rows.
        return f"line {lines[each]}" if each < len(lines) else f"row {uneven[each].number or each}"

    others = format_other_locations(
        range(len(uneven)), format_place, lambda each: f"with {uneven[each].actual_columns}"
    )
    if is_whole_table:
        remedy = "give every column a name in the first line"
    elif first.actual_columns > first.expected_columns:
        remedy = "put quotes around cells that hold the separator"
    else:
        remedy = "add the cells that are missing, or remove the line"
    cells = format_count(first.actual_columns, "cell")
    return ConfigError(
        f"{table.key}: {table.path.name}, {format_place(0)} has {cells} where the first line has "
        f"{first.expected_columns}: {first.text[:80]!r}{others}; {remedy}"
    )


def _check_quotes_closed(table: TableFile, text: TextFormat) -> None:
    """Raises ConfigError for a quote that is closed rows later, or never.

    pyarrow would silently make one cell of these rows.
    """
    with table.path.open(newline="", encoding=text.encoding, errors="replace") as lines:
        reader = csv.reader(lines, delimiter=text.separator, strict=True)
        row: list[str] | None = []
        while row is not None:
            begun = reader.line_num + 1
            try:
                row = next(reader, None)
            except csv.Error:
                # Quotes extend the row over several lines, and it ends inside a cell.
                if reader.line_num > begun:
                    raise ConfigError(
                        f"{table.key}: {table.path.name}, line {begun} opens a quote that is not closed where its cell "
                        "ends; close it, or write a quote that belongs to the text twice"
                    ) from None


def select_rows(conditions: Mapping[str, Scalar], columns: Mapping[str, Column]) -> Int64s:
    """Returns the rows that meet all of `conditions`, ascending. `columns` has a column for each condition.

    Raises ConfigError if no row does.
    """
    masks: dict[str, Mask] = {}
    for name, value in conditions.items():
        column = columns[name]
        texts = convert_to_texts(column)
        if column.decimal_mark in {",", "either"} and isinstance(value, float):
            texts = replace_decimal_commas(texts)
        mask = masks[name] = find_matching_cells(texts, value)
        if not mask.any():
            levels, codes = encode_distinct_texts(texts)
            ordered = sorted(
                zip(levels, np.bincount(codes).tolist(), strict=True), key=lambda each: (-each[1], each[0])
            )
            there = ", ".join(f"{text!r} {count}" for text, count in ordered[:_SHOWN_VALUES])
            more = f" and {len(ordered) - _SHOWN_VALUES} other values" if len(ordered) > _SHOWN_VALUES else ""
            raise ConfigError(
                f"{column.key}: no row of {column.rows.path.name} has {value!r} in {column.display_name}; its values, "
                f"and rows of each: {there}{more}{suggest_name(str(value), levels)}"
            )
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
    """Returns which cells match `value`, (n,)."""
    match value:
        case bool():
            return _convert_to_mask(pc.is_in(pc.utf8_lower(texts), pa.array(BOOLEAN_WORDS[value], texts.type)))
        case str():
            return _convert_to_mask(pc.equal(texts, pa.scalar(value.strip(), texts.type)))
        case _:
            matches = _convert_to_mask(pc.equal(texts, pa.scalar(str(value), texts.type)))
            if (
                abs(value) >= INT64_END
            ):  # the distinct cells are compared one by one: no type of numbers holds all of these
                levels, codes = encode_distinct_texts(texts)
                return matches | _are_equal_numbers(levels, value)[codes]
            numeric = _convert_to_mask(pc.match_substring_regex(texts, NUMBER))
            plain = pc.replace_substring_regex(texts.filter(pa.array(numeric)), r"^\+", "")
            equal = plain.cast(pa.float64()).to_numpy(zero_copy_only=False) == float(value)
            if abs(value) >= EXACT_BELOW:  # as float64, the value equals its neighbours, too
                levels, codes = encode_distinct_texts(plain.filter(pa.array(equal)))
                equal[equal] = _are_equal_numbers(levels, value)[codes]
            matches[numeric] |= equal
            return matches


def _are_equal_numbers(levels: Sequence[str], value: float) -> Mask:
    """Returns which texts are exactly the number `value`, (n,)."""
    found = [is_number_text(text) and Decimal(text.replace(",", ".")) == Decimal(value) for text in levels]
    return np.array(found, np.bool_)


def _convert_to_mask(mask: Any) -> Mask:
    return np.array(mask.to_numpy(zero_copy_only=False), dtype=bool)


# --- Arrays of labels as columns, with one row an image in their order; and the .npy files that hold them.


_KINDS: Final = "biufSU"  # of dtypes: numbers and texts
_VECTOR: Final = 2  # dimensions
_BOX_WIDTHS: Final = range(2, 6)  # numbers of a point or a box: other arrays of three dimensions are not even read


def read_label_files(stream: str, labels: Mapping[str, LabelSource], images: int) -> dict[str, list[Column]]:
    """Reads those of the `labels` that .npy files hold. Raises ConfigError unless each file has one row an image."""
    found: dict[str, list[Column]] = {}
    for name, label in labels.items():
        if path := label.file:
            key = build_label_key(stream, name)
            header = patterns.read_npy_header(path, f"{key}.from")
            # The header is checked before the file is mapped, since an empty array cannot be.
            check_label_array(header.shape, header.dtype, format_path(path), f"{key}.from", images)
            found[name] = [build_array_column(np.load(path, mmap_mode="r"), path, path.name, key, images)]
    return found


def build_array_column(values: npt.NDArray[Any], path: Path, name: str, key: str, images: int) -> Column:
    """Returns an array of numbers or texts, (n,), (n, 1) or (n, k), as a column; where k > 1, the cells are lists.

    An array of boxes or points, (n, m, k), has cells that are lists of lists.

    `path` is its file, `name` its name for people, such as samples.hdf5:/labels, and `key` that of its label. Raises
    ConfigError where it holds something else, or its number of rows is not `images`.
    """
    check_label_array(values.shape, values.dtype, format_path(path), f"{key}.from", images)
    widths = [] if values.ndim == _VECTOR and values.shape[1] == 1 else values.shape[:0:-1]  # the innermost first
    native = values.reshape(-1).astype(values.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind == "U":
        # The library would end a text at a NUL inside it.
        codes = native.view(np.uint32).reshape(native.size, -1)
        cut = ((codes[:, :-1] == 0) & (codes[:, 1:] != 0)).any(axis=1)
        if cut.any():
            row = int(np.argmax(cut)) * len(values) // native.size
            raise ConfigError(f"{key}.from: {name}[{row}] holds a text with a NUL in it; remove it")
    try:
        # Classes are made of their digits, and 0.1 has other digits in each width.
        cells = pa.array(
            native if widths else (native.astype(np.float64, copy=False) if native.dtype.kind == "f" else native)
        )
    except UnicodeDecodeError as error:  # NumPy's texts may hold any number of 32 bits in place of a character
        raise ConfigError(
            f"{key}.from: {format_path(path)} is damaged: {error}; write it again with np.save"
        ) from error
    for width in widths:
        cells = pa.FixedSizeListArray.from_arrays(cells, width)
    return Column(cells, "the array", SourceRows(path, lambda row: f"{name}[{row}]"), key)


def check_label_array(shape: tuple[int, ...], dtype: np.dtype[Any], file: str, key: str, images: int) -> None:
    """Raises ConfigError unless an array of `file` is a label of so many `images`.

    The array need not have been read.
    """
    may_be_boxes = len(shape) == _VECTOR + 1 and shape[-1] in _BOX_WIDTHS
    if dtype.kind not in _KINDS or not (may_be_boxes or len(shape) in {1, _VECTOR}) or 0 in shape:
        raise ConfigError(
            f"{key}: {file} holds {dtype} {shape}; labels must be numbers or text, of shape (n,) or (n, k), boxes "
            "of shape (n, max, 4) or (n, max, 5), and points of shape (n, max, 2) or (n, max, 3): reshape the array, "
            "or convert it with .astype and save it again"
        )
    check_row_count(key, file, shape[0], images)


def check_row_count(key: str, file: str, rows: int, images: int) -> None:
    """Raises ConfigError unless `file` has as many rows as there are images."""
    if rows != images:
        raise ConfigError(
            f"{key}: {file} has {format_count(rows, 'row')}, but there {'is' if images == 1 else 'are'} "
            f"{format_count(images, 'image')}; it needs one row per image, in the order of the images: correct the "
            "rows, or the path of the images"
        )
