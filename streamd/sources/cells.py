"""A column's cells as text, as numbered levels, or as numbers; a bad cell is named by its line.

Text is taken without the white space around it, and a leading plus is no part of a number: people write `a.jpg, +5`.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamd.errors import ConfigError
from streamd.sources.columns import Cells, Table
from streamd.sources.wanted import Int64s

Texts: TypeAlias = Any  # a pyarrow Array of large strings, see Cells
Numbers = Int64s | npt.NDArray[np.float64]

_SHOWN_CHARS: Final = 80  # of a cell in a message


def as_texts(table: Table, name: str, cells: Cells, key: str) -> Texts:
    """The cells as text, none of it empty. `key` is the key of the configuration that wants the column `name`."""
    try:
        if pa.types.is_dictionary(cells.type):
            cells = cells.cast(cells.type.value_type)
        if pa.types.is_floating(cells.type):  # whole numbers, when a table had gaps at some time
            cells = cells.cast(pa.int64())
        text: Texts = pc.utf8_trim_whitespace(cells.cast(pa.large_string())).combine_chunks()
    except pa.ArrowException as error:
        raise ConfigError(
            f"{key}: column {name!r} of {table.path.name} holds {cells.type}, which is no text: {_first(error)}; "
            "choose another type for this label, or another column"
        ) from error
    _refuse_empty(table, name, pc.fill_null(pc.equal(text, pa.scalar("", text.type)), pa.scalar(True)), key)
    return text


def as_levels(texts: Texts) -> tuple[list[str], Int64s]:
    """The distinct texts, and for each cell the position of its own among them, (n,)."""
    encoded = texts.dictionary_encode()
    levels: list[str] = encoded.dictionary.to_pylist()
    return levels, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def as_numbers(table: Table, name: str, cells: Cells, kind: Literal["int", "float"], key: str) -> Numbers:
    """The cells as int64 where they are whole and wanted so, else as float64, (n,)."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if _is_text(cells.type):
        texts = as_texts(table, name, cells, key)
        return _parsed(table, name, pc.replace_substring_regex(texts, r"^\+", ""), kind, key)
    _refuse_empty(table, name, cells.is_null().combine_chunks(), key)
    exact = kind == "int" and (pa.types.is_integer(cells.type) or pa.types.is_boolean(cells.type))
    try:
        return _to_numpy(cells.cast(pa.int64() if exact else pa.float64()).combine_chunks())
    except pa.ArrowException as error:
        raise ConfigError(
            f"{key}: column {name!r} of {table.path.name} holds {cells.type}, which is no number: {_first(error)}"
        ) from error


def _is_text(dtype: pa.DataType) -> bool:
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype)


def _parsed(table: Table, name: str, texts: Texts, kind: Literal["int", "float"], key: str) -> Numbers:
    if kind == "int" and _casts(texts, pa.int64()):
        return _to_numpy(texts.cast(pa.int64()))
    if _casts(texts, pa.float64()):
        return _to_numpy(texts.cast(pa.float64()))
    row = _first_failing(texts)
    raise ConfigError(
        f"{key}: {table.place(row)}: column {name!r} holds {texts[row].as_py()[:_SHOWN_CHARS]!r}, which is no number; "
        "correct it, or use type category"
    )


def _casts(texts: Texts, dtype: pa.DataType) -> bool:
    try:
        texts.cast(dtype)
    except pa.ArrowInvalid:
        return False
    return True


def _first_failing(texts: Texts) -> int:
    """The first row that is no number, by halving: the library does not say which."""
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        if _casts(texts[low:middle], pa.float64()):
            low = middle
        else:
            high = middle
    return low


def _refuse_empty(table: Table, name: str, empty: Any, key: str) -> None:
    mask = empty.to_numpy(zero_copy_only=False)
    if mask.any():
        others = int(mask.sum()) - 1
        more = f" (and {others} more like it)" if others else ""
        raise ConfigError(
            f"{key}: {table.place(int(np.argmax(mask)))}: column {name!r} is empty{more}; fill it or leave the row out"
        )


def _to_numpy(cells: Any) -> Numbers:
    values: Numbers = cells.to_numpy(zero_copy_only=False)
    return values


def _first(error: Exception) -> str:
    return str(error).partition("\n")[0]
