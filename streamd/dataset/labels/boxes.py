"""Labels of type boxes and points: any number of them a sample, kept as the data have them. Pure.

Boxes become left, top, right, bottom and class, in the unit of the data: the size of a picture is only known when it is
decoded. Points that are not visible become NaN, so that the others keep their places.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamd.core.spec import BoxUnit, LabelSpec
from streamd.core.text import format_count
from streamd.dataset.labels import cells
from streamd.dataset.labels.cells import Column
from streamd.dataset.labels.encode import (
    ClassValue,
    LabelPlace,
    build_class_numbers,
    format_classes,
    format_other_locations,
    measure_label,
    parse_configured_classes,
    parse_number,
)
from streamd.dataset.labels.text_encoding import decode_json
from streamd.dataset.manifest.columns import RaggedColumn
from streamd.dataset.manifest.types import Int64s
from streamd.dataset.sources import BoxFormat, BoxRule, LabelSource
from streamd.errors import ConfigError, suggest_name
from streamd.limits import MAX_BOX_CLASS

_log: Final = logging.getLogger("streamd.sources")
DEFAULT_BOX_LABELS: Final = {"boxes": LabelSource("boxes", boxes=BoxRule(100))}  # of sources with boxes of their own
Floats = npt.NDArray[np.float64]
Values = TypeVar("Values", bound=np.generic)
BOX_WIDTH: Final = 5  # left, top, right, bottom, class
POINT_WIDTH: Final = 2
_CLASS_NUMBER: Final = re.compile(r"[0-9]{1,9}")  # as a text; isdecimal() would take digits of other scripts
_FAR_OUT: Final = 2.0  # a fraction beyond it is meant as a number of pixels


@dataclass(frozen=True, slots=True, eq=False)
class Objects(Generic[Values]):
    """The boxes or points of all samples, one sample after another.

    `counts` (n,) is how many each sample has, `numbers` their boxes in the format of the data (total, 4), or their
    points (total, 2), and `values` (total,) the number of each box's class, or which points are visible.
    """

    counts: Int64s
    numbers: Floats
    values: npt.NDArray[Values]


def convert_object_label(name: str, wanted: LabelSource, column: Column) -> tuple[RaggedColumn, LabelSpec]:
    """Returns the boxes or points in the cells of a column, with their spec.

    Raises ConfigError for cells of another form, unknown classes, sides below 0, and for more boxes or points than
    `max` allows.
    """
    rule, label = get_box_rule(wanted), column.name_label(name)
    if wanted.type == "points":
        lists = read_cell_lists(column, POINT_FORM)
        return build_point_label(label, rule, Objects(lists.counts, lists.numbers, lists.extras != 0))
    lists = read_cell_lists(column, BOX_FORM)
    fixed = None if wanted.classes is None else parse_configured_classes(wanted.classes, column.key)
    found = Objects(lists.counts, lists.numbers, _number_box_classes(lists, fixed, column))
    return build_box_label(label, rule, found, fixed or ())


def get_box_rule(wanted: LabelSource) -> BoxRule:
    """Returns the rule of a label of boxes or points, which the configuration always gives."""
    assert wanted.boxes is not None  # noqa: S101 - the schema requires `max` for these types
    return wanted.boxes


def get_own_box_rule(wanted: LabelSource, form: BoxFormat, unit: BoxUnit) -> BoxRule:
    """Returns the rule of boxes whose format and unit the files of their source prescribe."""
    return replace(get_box_rule(wanted), format=form, unit=unit, has_own_form=True)


def build_box_label(
    label: LabelPlace, rule: BoxRule, found: Objects[np.int64], classes: tuple[ClassValue, ...]
) -> tuple[RaggedColumn, LabelSpec]:
    """Builds a label of the boxes `found`, and checks them. `classes` are the names of their classes, if they have any.

    Raises ConfigError.
    """
    counts, numbers = found.counts, found.numbers
    owners = np.repeat(np.arange(counts.size), counts)
    _check_count(label, counts, rule.most, "box")
    _check_numbers(label, numbers, owners)
    first, second = numbers[:, :2], numbers[:, 2:]
    match rule.format:
        case "xyxy":
            corners = numbers
        case "xywh":
            corners = np.concatenate([first, first + second], axis=1)
        case "cxcywh":
            corners = np.concatenate([first - second / 2, first + second / 2], axis=1)
    # A box whose right side lies left of its left side, or whose height is below 0, is refused.
    turned = np.flatnonzero((corners[:, 2:] < corners[:, :2]).any(axis=1)).tolist()
    if turned:
        worst = turned[0]
        others = format_other_locations([int(owners[each]) for each in turned], label.format_location)
        if rule.format == "xyxy":
            fact, other = "ends before it begins", "xywh if its last two numbers are width and height"
        else:
            fact, other = "has a width or height below 0", "xyxy if its last two numbers are a corner"
        remedy = "" if rule.has_own_form else f"write format: {other}, or "
        raise ConfigError(
            f"{label.describe_row(int(owners[worst]))} holds the box {_format_numbers(numbers[worst])}, which "
            f"{fact}{others}; {remedy}correct it in the data"
        )
    # Boxes without area are never delivered, and numbers far out belong to the other unit.
    empty = np.flatnonzero((corners[:, 2:] == corners[:, :2]).any(axis=1))
    if empty.size:
        what = format_count(int(empty.size), "box has", "boxes have")
        _log.warning(
            "%s: %s no area and will not be delivered, the first in %s: %s; correct or remove such boxes",
            label.key,
            what,
            label.format_location(int(owners[empty[0]])),
            _format_numbers(corners[empty[0]]),
        )
    largest = float(np.abs(corners).max(initial=0))
    if rule.unit == "fraction" and largest > _FAR_OUT:
        remedy = "correct the data" if rule.has_own_form else "write unit: pixel if the boxes are in pixels"
        _log.warning(
            "%s: boxes are fractions of the picture, but one has the number %g; %s", label.key, largest, remedy
        )
    elif rule.unit == "pixel" and 0 < largest <= 1 and len(corners) > 1 and not rule.has_own_form:
        _log.warning(
            "%s: unit is pixel, but no number of any box is above 1; write unit: fraction if they are parts of the "
            "picture's width and height",
            label.key,
        )
    rows = np.concatenate([corners, found.values[:, None]], axis=1).astype(np.float32)
    spec = LabelSpec(label.name, "boxes", width=BOX_WIDTH, classes=classes, rows=rule.most)
    column = RaggedColumn(np.cumsum(counts, dtype=np.int64), rows)
    return column, measure_label(_add_rule_to_spec(spec, rule), column)


def build_point_label(label: LabelPlace, rule: BoxRule, found: Objects[np.bool_]) -> tuple[RaggedColumn, LabelSpec]:
    """Builds a label of the points `found`, and checks them. Raises ConfigError."""
    counts, numbers, visible = found.counts, found.numbers, found.values
    _check_count(label, counts, rule.most, "point")
    _check_numbers(label, numbers[visible], np.repeat(np.arange(counts.size), counts)[visible])
    rows = np.where(visible[:, None], numbers, np.nan).astype(np.float32)
    spec = LabelSpec(label.name, "points", width=POINT_WIDTH, rows=rule.most)
    return RaggedColumn(np.cumsum(counts, dtype=np.int64), rows), _add_rule_to_spec(spec, rule)


def _add_rule_to_spec(spec: LabelSpec, rule: BoxRule) -> LabelSpec:
    return replace(spec, image=rule.image, unit=rule.unit, min_visible=rule.min_visible)


# --- classes


def _number_box_classes(lists: CellLists, classes: tuple[ClassValue, ...] | None, column: Column) -> Int64s:
    """Returns the number of each box's class: the name's place among `classes`, or the number in the cell.

    Where all classes are whole numbers, a number in a cell is such a class, and not its place.
    """
    written = lists.extras
    if classes and all(isinstance(each, int) for each in classes):
        places = {float(each): place for place, each in enumerate(classes)}
        distinct, inverse = np.unique(written, return_inverse=True)
        found = np.array([places.get(float(each), -1) for each in distinct], np.float64)
        lists = replace(lists, extras=found[inverse.reshape(-1)])
    with np.errstate(invalid="ignore"):
        codes = lists.extras.astype(np.int64)
    named = [] if lists.names is None else [place for place, name in enumerate(lists.names) if name is not None]
    known = {} if classes is None else build_class_numbers(classes)
    for place in named:
        name = str((lists.names or ())[place])
        code = known.get(name, int(name) if classes is None and _CLASS_NUMBER.fullmatch(name) else -1)
        if not 0 <= code <= MAX_BOX_CLASS:
            raise _build_unknown_class_error(repr(name), classes, column, int(lists.owners[place]), name)
        codes[place] = code
    is_number = np.ones(codes.size, np.bool_)
    is_number[named] = False
    most = MAX_BOX_CLASS if classes is None else len(classes) - 1
    with np.errstate(invalid="ignore"):
        whole = (lists.extras >= 0) & (lists.extras <= most) & (np.trunc(lists.extras) == lists.extras)
    if (bad := is_number & ~whole).any():
        place = int(np.argmax(bad))
        raise _build_unknown_class_error(f"{written[place]:g}", classes, column, int(lists.owners[place]), "")
    return codes


def _build_unknown_class_error(
    shown: str, classes: tuple[ClassValue, ...] | None, column: Column, row: int, name: str
) -> ConfigError:
    where = f"{column.describe_cell(row)} holds a box of class {shown}"
    if classes is None:
        return ConfigError(
            f"{where}; a class is a whole number from 0 to {MAX_BOX_CLASS:,}, or one of the names under classes: "
            "correct it, or list the names under classes"
        )
    near = suggest_name(name, map(str, classes)) if name else ""
    return ConfigError(
        f"{where}, which is neither one of the classes {format_classes(classes)} nor their number from 0 to "
        f"{len(classes) - 1}; add it to classes, or correct it in the data{near}"
    )


# --- numbers


def _check_count(label: LabelPlace, counts: Int64s, most: int, what: str) -> None:
    if counts.size and counts.max() > most:
        row, plural = int(np.argmax(counts)), "boxes" if what == "box" else "points"
        raise ConfigError(
            f"{label.key}.max: {label.format_location(row)} has {counts[row]:,} {plural}, the most of all samples, but "
            f"max is {most:,}; write max: {counts[row]}, or remove {plural} from the data"
        )


def _check_numbers(label: LabelPlace, numbers: Floats, owners: Int64s) -> None:
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(numbers.astype(np.float32)).all(axis=1)
    if bad.any():
        row = int(owners[np.argmax(bad)])
        raise ConfigError(
            f"{label.describe_row(row)} holds {_format_numbers(numbers[np.argmax(bad)])}, which are not all finite "
            "numbers; correct it"
        )


def _format_numbers(numbers: Sequence[float] | Floats) -> str:
    return f"[{', '.join(f'{number:g}' for number in numbers)}]"


# --- Reads cells that each hold a list of boxes or points: lists in Parquet and arrays, JSON text elsewhere.
#
# A box is a list of four numbers and perhaps a class, a point one of two numbers and perhaps whether it is visible. An
# empty or missing cell holds none.


Element = float | bool | str

_cell_decoder: Final = msgspec.json.Decoder(list[list[Element]])
_SHOWN_CHARS: Final = 80  # of a cell in a message
_ABSENT: Final = -1.0  # every number of a row of an array that holds no box


@dataclass(frozen=True, slots=True)
class CellForm:
    """The form of the lists in a cell: `least` numbers, then one element that may be left out and is then `extra`."""

    name: str
    least: int
    extra: float
    example: str
    takes_names: bool


# A list without the element behind the numbers is a box of class 0, or a visible point.
BOX_FORM: Final = CellForm("box", 4, 0.0, "[[x0, y0, x1, y1, class], ...]", takes_names=True)
POINT_FORM: Final = CellForm("point", 2, 1.0, "[[x, y], ...] or [[x, y, visible], ...]", takes_names=False)


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
        found: list[list[list[Element]]] = []
        for row, text in enumerate(cells.convert_to_texts(column).to_pylist()):
            try:
                found.append(decode_json(text.encode(), _cell_decoder) if text else [])
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                raise _build_form_error(column, form, row, repr(text[:_SHOWN_CHARS])) from error
        return _collect_lists(column, form, found)
    if not cells.has_lists(column):
        if pa.types.is_null(column.cells.type):
            return _collect_lists(column, form, [[] for _ in range(len(column.cells))])
        raise _build_form_error(column, form, 0, f"{column.cells.type}")
    if cells.has_nested_lists(column):
        kind = column.cells.type.value_type.value_type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            # Numbers are collected without making a Python object of each. Rows of -1 in an array are none.
            outer = column.cells.combine_chunks() if isinstance(column.cells, pa.ChunkedArray) else column.cells
            is_array = pa.types.is_fixed_size_list(outer.type.value_type)
            counts = cells.compute_list_lengths(outer)
            lists = pc.list_flatten(outer)
            lengths = cells.compute_list_lengths(lists)
            odd = np.flatnonzero((lengths != form.least) & (lengths != form.least + 1))
            if odd.size:
                owner = int(np.repeat(np.arange(counts.size), counts)[odd[0]])
                raise _build_form_error(column, form, owner, _shorten_value(lists[int(odd[0])].as_py()))
            flat = np.asarray(pc.list_flatten(lists).to_numpy(zero_copy_only=False), np.float64)
            starts = np.cumsum(lengths) - lengths
            numbers = flat[starts[:, None] + np.arange(form.least)]
            has_extra = lengths > form.least
            extras = np.full(lengths.size, form.extra)
            extras[has_extra] = flat[starts[has_extra] + form.least]
            if not (is_array and form.takes_names):
                return CellLists(counts, numbers, extras)
            there = (numbers != _ABSENT).any(axis=1)
            kept = np.bincount(np.repeat(np.arange(counts.size), counts)[there], minlength=counts.size).astype(np.int64)
            return CellLists(kept, numbers[there], extras[there])
    return _collect_lists(column, form, [each or [] for each in column.cells.to_pylist()])


def _collect_lists(column: Column, form: CellForm, rows: Sequence[Sequence[Any]]) -> CellLists:
    """Collects cells that are Python lists. Texts may be numbers or, behind those of a box, the name of a class."""
    numbers: list[list[float]] = []
    extras: list[float] = []
    names: list[str | None] = []
    for row, lists in enumerate(rows):
        for each in lists:
            try:
                if not isinstance(each, list) or len(each) < form.least:
                    raise TypeError  # noqa: TRY301 - one message for all that is no such list
                numbers.append([_convert_element(number) for number in each[: form.least]])
                # One element may stand behind the numbers: another number, or the name of a box's class.
                extra, *further = each[form.least :] or [form.extra]
                is_name = isinstance(extra, str) and form.takes_names
                extras.append(0.0 if is_name else _convert_element(extra))
                names.append(extra if is_name else None)
                if further:
                    raise ValueError  # noqa: TRY301 - as above
            except (TypeError, ValueError) as error:
                raise _build_form_error(column, form, row, _shorten_value(each)) from error
    return CellLists(
        np.array([len(lists) for lists in rows], np.int64),
        np.array(numbers, np.float64).reshape(-1, form.least),
        np.array(extras, np.float64),
        names if any(name is not None for name in names) else None,
    )


def _convert_element(given: Element) -> float:
    return parse_number(given) if isinstance(given, str) else float(given)


def _shorten_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _build_form_error(column: Column, form: CellForm, row: int, found: str) -> ConfigError:
    return ConfigError(
        f"{column.describe_cell(row)} holds {found}, but a cell needs a list of "
        f"{form.name}{'es' if form.name == 'box' else 's'}, each a list itself: {form.example}; correct it"
    )
