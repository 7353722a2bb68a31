"""Reads cells that each hold a list of boxes or points: lists in Parquet and arrays, JSON text elsewhere.

A box is a list of four numbers and perhaps a class, a point one of two numbers and perhaps whether it is visible. An
empty or missing cell holds none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamd.dataset.labels import cells
from streamd.dataset.labels.cells import Column
from streamd.dataset.labels.encode import parse_number
from streamd.dataset.labels.text_encoding import decode_json
from streamd.dataset.manifest.types import Int64s
from streamd.errors import ConfigError

Element = float | bool | str
Floats = npt.NDArray[np.float64]

_cell_decoder: Final = msgspec.json.Decoder(list[list[Element]])
_SHOWN_CHARS: Final = 80  # of a cell in a message
_ABSENT: Final = -1.0  # every number of a row of an array that holds no box


@dataclass(frozen=True, slots=True)
class CellForm:
    """The form of the lists in a cell: `least` numbers, and perhaps one `extra` element behind them."""

    name: str
    least: int
    example: str
    takes_names: bool


BOX_FORM: Final = CellForm("box", 4, "[[x0, y0, x1, y1, class], ...]", takes_names=True)
POINT_FORM: Final = CellForm("point", 2, "[[x, y], ...] or [[x, y, visible], ...]", takes_names=False)


@dataclass(frozen=True, slots=True, eq=False)
class CellLists:
    """The lists of all cells, one after another: float64 `numbers` (total, 4) or (total, 2), of cell `owners[i]`.

    `counts` (n,) is how many each cell has. `extras` are the elements behind the numbers, (total,): numbers, or texts
    where `names` is not None; a list without that element has 0 for a box and 1 for a point.
    """

    counts: Int64s
    numbers: Floats
    extras: Floats
    names: Sequence[str | None] | None = None  # of the extras; None in places where the extra is a number

    @property
    def owners(self) -> Int64s:
        return np.repeat(np.arange(self.counts.size, dtype=np.int64), self.counts)


def read_cell_lists(column: Column, form: CellForm) -> CellLists:
    """Returns the lists in the cells of a column. Raises ConfigError, which names the row, for any other content."""
    if cells.is_text_type(column.cells.type) or pa.types.is_dictionary(column.cells.type):
        return _collect_lists(column, form, _parse_json_cells(column, form))
    if not cells.has_lists(column):
        if pa.types.is_null(column.cells.type):
            return _collect_lists(column, form, [[] for _ in range(len(column.cells))])
        raise _build_form_error(column, form, 0, f"{column.cells.type}")
    if cells.has_nested_lists(column):
        kind = column.cells.type.value_type.value_type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return _collect_number_lists(column, form)
    return _collect_lists(column, form, [each or [] for each in column.cells.to_pylist()])


def _parse_json_cells(column: Column, form: CellForm) -> list[list[list[Element]]]:
    found: list[list[list[Element]]] = []
    for row, text in enumerate(cells.convert_to_texts(column).to_pylist()):
        try:
            found.append(decode_json(text.encode(), _cell_decoder) if text else [])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise _build_form_error(column, form, row, repr(text[:_SHOWN_CHARS])) from error
    return found


def _collect_lists(column: Column, form: CellForm, rows: Sequence[Sequence[Any]]) -> CellLists:
    """Collects cells that are Python lists. Texts may be numbers or, behind those of a box, the name of a class."""
    numbers: list[list[float]] = []
    extras: list[float] = []
    names: list[str | None] = []
    for row, lists in enumerate(rows):
        for each in lists:
            try:
                one, extra, name = _parse_list(form, each)
            except (TypeError, ValueError) as error:
                raise _build_form_error(column, form, row, _shorten_value(each)) from error
            numbers.append(one)
            extras.append(extra)
            names.append(name)
    return CellLists(
        np.array([len(lists) for lists in rows], np.int64),
        np.array(numbers, np.float64).reshape(-1, form.least),
        np.array(extras, np.float64),
        names if any(name is not None for name in names) else None,
    )


def _parse_list(form: CellForm, given: object) -> tuple[list[float], float, str | None]:
    """Returns the numbers of a list, and the number or the name behind them. Raises ValueError or TypeError."""
    if not isinstance(given, list) or len(given) < form.least:
        raise TypeError
    return [_convert_element(each) for each in given[: form.least]], *_parse_extra(form, given[form.least :])


def _convert_element(given: Element) -> float:
    return parse_number(given) if isinstance(given, str) else float(given)


def _parse_extra(form: CellForm, rest: Sequence[Element]) -> tuple[float, str | None]:
    """Returns the number behind the others, or 0 and the text there. Raises ValueError for what cannot stand there."""
    if not rest:
        return _get_default_extra(form), None
    (only,) = rest
    if isinstance(only, str) and form.takes_names:
        return 0.0, only
    return _convert_element(only), None


def _get_default_extra(form: CellForm) -> float:
    """Returns what a list without an extra element means: class 0, or a visible point."""
    return 0.0 if form.takes_names else 1.0


def _collect_number_lists(column: Column, form: CellForm) -> CellLists:
    """Collects nested lists of numbers without making a Python object of each. Rows of -1 in an array are none."""
    outer = column.cells.combine_chunks() if isinstance(column.cells, pa.ChunkedArray) else column.cells
    is_array = pa.types.is_fixed_size_list(outer.type.value_type)
    counts = _compute_lengths(outer)
    lists = pc.list_flatten(outer)
    lengths = _compute_lengths(lists)
    odd = np.flatnonzero((lengths != form.least) & (lengths != form.least + 1))
    if odd.size:
        owner = int(np.repeat(np.arange(counts.size), counts)[odd[0]])
        raise _build_form_error(column, form, owner, _shorten_value(lists[int(odd[0])].as_py()))
    flat = np.asarray(pc.list_flatten(lists).to_numpy(zero_copy_only=False), np.float64)
    starts = np.cumsum(lengths) - lengths
    numbers = flat[starts[:, None] + np.arange(form.least)]
    has_extra = lengths > form.least
    extras = np.full(lengths.size, _get_default_extra(form))
    extras[has_extra] = flat[starts[has_extra] + form.least]
    if not (is_array and form.takes_names):
        return CellLists(counts, numbers, extras)
    there = (numbers != _ABSENT).any(axis=1)
    kept = np.bincount(np.repeat(np.arange(counts.size), counts)[there], minlength=counts.size).astype(np.int64)
    return CellLists(kept, numbers[there], extras[there])


def _compute_lengths(lists: Any) -> Int64s:
    """Returns the length of each list; a missing list has length 0."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def _shorten_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _build_form_error(column: Column, form: CellForm, row: int, found: str) -> ConfigError:
    return ConfigError(
        f"{column.key}: {column.rows.format_location(row)}: {column.display_name} holds {found}, but a cell needs a "
        f"list of {form.name}{'es' if form.name == 'box' else 's'}, each a list itself: {form.example}; correct it"
    )
