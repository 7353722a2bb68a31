"""`where`: the rows of a table whose columns have the values that are asked for.

Cells of a CSV are text, and what is asked for has a type. A text asks for that text; a number for cells that say this
number, however they write it; true for `true`, `yes` and 1, false for `false`, `no` and 0, in any case of letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamd.errors import ConfigError, near_name
from streamd.sources.cells import Column, Texts, as_any_texts, as_levels
from streamd.sources.wanted import Int64s, Scalar

Mask = npt.NDArray[np.bool_]

_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_WORDS: Final = {True: ("true", "t", "yes", "y", "1", "1.0"), False: ("false", "f", "no", "n", "0", "0.0")}
_EXACT: Final = 1 << 53  # from here on float64 takes neighbours for one whole number
_SHOWN_VALUES: Final = 20  # of a column in a message


def rows_where(conditions: Mapping[str, Scalar], columns: Mapping[str, Column]) -> Int64s:
    """The rows that meet all of `conditions`, ascending; `columns` by the same names. Raises ConfigError for none."""
    texts = {name: as_any_texts(columns[name]) for name in conditions}
    masks = {name: says(texts[name], value) for name, value in conditions.items()}
    for name, mask in masks.items():
        if not mask.any():
            raise _nothing(columns[name], texts[name], conditions[name])
    rows: Int64s = np.flatnonzero(np.logical_and.reduce(list(masks.values())))
    if not rows.size:
        counts = ", ".join(f"{mask.sum()} with {name} {conditions[name]!r}" for name, mask in masks.items())
        first = next(iter(columns.values()))
        raise ConfigError(
            f"{first.key.rpartition('.')[0]}: no row of {first.rows.path.name} meets all conditions (it has {counts}); "
            "leave one out"
        )
    return rows


def says(texts: Texts, value: Scalar) -> Mask:
    """Which cells say `value`, (n,)."""
    match value:
        case bool():
            return _to_mask(pc.is_in(pc.utf8_lower(texts), pa.array(_WORDS[value], texts.type)))
        case str():
            return _to_mask(pc.equal(texts, pa.scalar(value.strip(), texts.type)))
        case _:
            return _says_number(texts, value)


def _says_number(texts: Texts, value: float) -> Mask:
    said = _to_mask(pc.equal(texts, pa.scalar(str(value), texts.type)))
    if not isinstance(value, int) or abs(value) < _EXACT:
        numeric = _to_mask(pc.match_substring_regex(texts, _NUMBER))
        plain = pc.replace_substring_regex(texts.filter(pa.array(numeric)), r"^\+", "")
        said[numeric] |= plain.cast(pa.float64()).to_numpy(zero_copy_only=False) == float(value)
    return said


def _nothing(column: Column, texts: Texts, value: Scalar) -> ConfigError:
    levels, codes = as_levels(texts)
    counts = sorted(zip(levels, np.bincount(codes).tolist(), strict=True), key=lambda each: (-each[1], each[0]))
    there = ", ".join(f"{text!r} {count}" for text, count in counts[:_SHOWN_VALUES])
    more = f" and {len(counts) - _SHOWN_VALUES} other values" if len(counts) > _SHOWN_VALUES else ""
    return ConfigError(
        f"{column.key}: no row of {column.rows.path.name} has {value!r} in {column.what}"
        f"{near_name(str(value), levels)}; its values, and rows of each: {there}{more}"
    )


def _to_mask(mask: Any) -> Mask:
    return np.array(mask.to_numpy(zero_copy_only=False), dtype=bool)
