"""Says what a text means as a label, and converts label values of any source to those that a batch carries.

All sources ask here what is a number, a missing value, a list and a class, so that a cell means the same in each. Tags,
any number of classes a sample, are packed bits: uint8 (n, ceil(K / 8)), `numpy.packbits` of the 0 and 1 that a batch
carries for each of the K classes.

Faults of the data are collected, so that one message has as many as a person corrects in one go.
"""

from __future__ import annotations

import ast
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from streamd.core.spec import LabelSpec
from streamd.core.text import format_list
from streamd.dataset.manifest.columns import RaggedColumn
from streamd.dataset.manifest.types import Int64s, ListedValues, LocationFormatter
from streamd.errors import ConfigError, suggest_name
from streamd.limits import MAX_TEXT_BYTES

_log: Final = logging.getLogger("streamd.sources")
SHOWN_FAULTS: Final = 10  # of one kind in a message


def format_other_locations(
    rows: Sequence[int], format_location: LocationFormatter, format_value: Callable[[int], str] | None = None
) -> str:
    """Formats all `rows` but the first, which the message names: ` (also line 7 'x', line 9 'y' and 3 more)`.

    Returns an empty text for one row. `format_value` formats what is in a row.
    """
    if len(rows) <= 1:
        return ""
    shared = format_location(rows[0]).rpartition(", ")
    prefix = f"{shared[0]}{shared[1]}"
    shown = [
        f"{format_location(row).removeprefix(prefix)}{f' {format_value(row)}' if format_value else ''}"
        for row in rows[1:SHOWN_FAULTS]
    ]
    more = f" and {len(rows) - SHOWN_FAULTS:,} more" if len(rows) > SHOWN_FAULTS else ""
    return f" (also {', '.join(shown)}{more})"


class FaultCollector:
    """Collects errors of the data until all of them are known. Created by `raise_collected_faults`."""

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keeps a ConfigError of the code inside, so that the code after it still runs."""
        try:
            yield
        except ConfigError as error:
            self.errors.append(error)


@contextmanager
def raise_collected_faults() -> Iterator[FaultCollector]:
    """Raises one ConfigError at the end, with a line for each collected error.

    An error that ends the block early is one of them.
    """
    faults = FaultCollector()
    with faults.collect():
        yield faults
    if len(faults.errors) > 1:
        messages = "\n".join(map(str, faults.errors))
        faults.errors.clear()
        raise ConfigError(messages)
    # An error refers to the frames that it passed. If this frame referred to the error in turn, all of them, and the
    # files that they have open, would stay until the next garbage collection.
    while faults.errors:
        raise faults.errors.pop()


def warn_of_equal_classes(where: str, what: str, names: Sequence[int | str], numbers: Iterable[object]) -> None:
    """Warns of classes with the same name; `numbers` are what the data call each, and `what` these are."""
    same: dict[int | str, list[object]] = {}
    for name, number in zip(names, numbers, strict=True):
        same.setdefault(name, []).append(number)
    for name, several in same.items():
        if len(several) > 1:
            _log.warning(
                "%s: %s %s have the same name %r, and are learned as %d classes; give each a name of its own, or "
                "use one of them for all",
                where,
                what,
                " and ".join(map(repr, several)),
                name,
                len(several),
            )


# --- texts, classes and numbers

ClassValue = int | str
Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float32]

NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
# What programs write for a missing value, in lower case. Where the other cells are numbers, it is no class.
MISSING_WORDS: Final = frozenset(
    [
        *("nan", "-nan", "nat", "none", "null", "nil", "undefined", "missing", "(null)", "\\n"),
        *("n/a", "n.a.", "na", "<na>", "#n/a", "#na", "?", "-", "--", "."),
        *("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
        *("#value!", "#ref!", "#name?", "#num!", "#div/0!", "#null!"),
    ]
)
EXACT_BELOW: Final = 1 << 53  # from here on float64 cannot represent every whole number
INT64_END: Final = 1 << 63
# "007" is a code, not the number 7; "3.0" is how some tables write 3. No more digits than int() takes.
_WHOLE_NUMBER: Final = re.compile(r"(0|-?[1-9][0-9]{0,999})(\.0*)?")
_INT64_DIGITS: Final = 18  # which int64 always holds
_SHOWN_CLASSES: Final = 20  # in a message; more would make it unreadable
_number: Final = re.compile(NUMBER)
# Brackets are also parts of names: they make a list where what is in them is quoted, separated, or only numbers.
_LIST_NUMBERS: Final = r"[-+.0-9eE\s]+"
LIST_TEXT: Final = (
    rf"(?s)^(?:\[(?:\s*|\s*['\"\[].*|{_LIST_NUMBERS}|.*[,;|].*)\]|\{{(?:\s*|\s*['\"].*|.*,.*)\}}"
    rf"|\((?:\s*['\"].*['\"]\s*,?\s*|{_LIST_NUMBERS}(?:,{_LIST_NUMBERS})+,?)\)|(?:array|set|frozenset)\(.*\))$"
)
_list_text: Final = re.compile(LIST_TEXT)
_QUOTED_OR_BARE: Final = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,'"\[\](){}:]+)"""
_LIST_ITEM: Final = re.compile(_QUOTED_OR_BARE, re.DOTALL)
_LIST_ITEMS: Final = re.compile(rf"(?:{_QUOTED_OR_BARE}(?:\s*,\s*|\s+|$))+", re.DOTALL)
_BRACKETS: Final = re.compile(r"[\[\](){}]")


def is_number_text(text: str) -> bool:
    """Returns whether a text is a number, with a point or a comma before its fraction."""
    return _number.fullmatch(text.replace(",", ".", 1)) is not None


def parse_number(text: str) -> float:
    """Returns the number that a text is, as a cell of a table is read. Raises ValueError.

    float() would also take 1_000, digits of other scripts, inf and nan.
    """
    if _number.fullmatch(text.strip()) is None:
        raise ValueError(text)
    return float(text)


def is_list_text(text: str) -> bool:
    """Returns whether a text is a list as Python, NumPy, JSON or a database writes it, such as ['cat', 'dog']."""
    return _list_text.match(text) is not None


def parse_list_text(text: str) -> list[str] | None:
    """Returns the elements of a text in brackets, where one without a value is empty; None for any other text."""
    if not text:
        return []
    if text[0] + text[-1] not in {"[]", "()", "{}"}:
        return None
    inner = text[1:-1].strip()
    if "'" not in inner and '"' not in inner:
        if _BRACKETS.search(inner):
            return None
        items = re.split(r"\s*[|;,]\s*" if re.search(r"[|;,]", inner) else r"\s+", inner)
        return ["" if each in {"None", "nan", "NaN", "null"} else each for each in items]
    if _LIST_ITEMS.fullmatch(inner) is None:
        return None
    found: list[str] = []
    for item in _LIST_ITEM.findall(inner):
        if item[0] not in "'\"":
            found.append("" if item.casefold() in MISSING_WORDS else item)
        elif "\\" not in item:
            found.append(item[1:-1])
        else:
            try:
                read = json.loads(item) if item[0] == '"' else ast.literal_eval(item)
                found.append(str(read).encode().decode())  # a lone surrogate is no text
            except (ValueError, SyntaxError):
                return None
    return found


def order_classes(texts: Iterable[str]) -> tuple[ClassValue, ...]:
    """Returns the distinct classes of `texts`: sorted as numbers if all are whole, else by their UTF-8 bytes.

    A text among numbered classes does not move these: where the bytes would put 10 before 2, or a word before one of
    the classes 0 to K - 1, the whole numbers come first, sorted as numbers.
    """
    plain = {_normalize_class_text(text) for text in texts}
    whole = sorted(filter(is_whole_number, plain), key=int)
    if len(whole) == len(plain):
        return tuple(_parse_classes(whole))
    by_bytes = sorted(plain, key=str.encode)
    others = [text for text in by_bytes if not is_whole_number(text)]
    in_front = by_bytes[: len(whole)]
    is_count = len(whole) > 1 and whole == [str(number) for number in range(len(whole))]
    has_word_before = any(not is_number_text(text) for text in in_front)
    is_reordered = [text for text in by_bytes if is_whole_number(text)] != whole
    return tuple([*whole, *others] if is_reordered or (is_count and has_word_before) else by_bytes)


def is_whole_number(text: str) -> bool:
    """Returns whether a class is a whole number."""
    return _WHOLE_NUMBER.fullmatch(text) is not None


def _parse_classes(plain: Iterable[str]) -> list[int] | list[str]:
    """Returns the classes as whole numbers if all are and int64 holds them, else as texts."""
    texts = list(plain)
    fit = all(is_whole_number(text) and len(text.removeprefix("-")) <= _INT64_DIGITS for text in texts)
    return [int(text) for text in texts] if fit else texts


def _normalize_class_text(text: str) -> str:
    """Returns a whole number in one spelling, even among other texts: another stream may add its classes to them."""
    match = _WHOLE_NUMBER.fullmatch(text)
    return match[1] if match else text


def parse_configured_classes(classes: Sequence[object], key: str) -> tuple[ClassValue, ...]:
    """Returns the classes of the configuration in their own order. Raises ConfigError for repeated ones or none."""
    if not classes:
        raise ConfigError(f"{key}: classes is empty; list them, or remove the key classes to take them from the data")
    listed = _parse_classes(_normalize_class_text(str(value)) for value in classes)
    (value, count), *_ = Counter[ClassValue](listed).most_common(1)
    if count > 1:
        raise ConfigError(f"{key}: class {value!r} is listed twice; list each class once")
    return tuple(listed)


@dataclass(frozen=True, slots=True)
class LabelPlace:
    """A label as messages name it: its `key` in the configuration, and `format_location`, where a row of it is."""

    name: str
    key: str
    format_location: LocationFormatter

    def describe_row(self, row: int) -> str:
        """Returns the beginning of a message about a row."""
        return f"{self.key}: {self.format_location(row)}"


def build_category_label(
    label: LabelPlace, texts: Sequence[str], codes: Int64s, fixed: tuple[ClassValue, ...] | None
) -> tuple[Int64s, LabelSpec]:
    """Numbers the classes of a label, and returns the number of each sample's class, with the spec.

    `texts` are the distinct values, `codes` (n,) the position of each sample's value among them, and `fixed` the
    configured classes. Raises ConfigError for a value that is not among these.
    """

    def format_code_location(code: int) -> str:
        rows = np.flatnonzero(codes == code)
        return f" ({label.format_location(int(rows[0]))})" if rows.size else ""

    classes = order_classes(texts) if fixed is None else fixed
    values = lookup_class_numbers(texts, classes, format_code_location, label.key)[codes]
    return values, measure_label(LabelSpec(label.name, "category", classes=classes), values)


def lookup_class_numbers(
    texts: Sequence[str], classes: tuple[ClassValue, ...], format_code_location: Callable[[int], str], key: str
) -> Int64s:
    """Returns the number of each text among `classes`.

    Raises ConfigError for a text that is not among them; `format_code_location` says where it is.
    """
    numbers = build_class_numbers(classes)
    positions = np.array([numbers.get(_normalize_class_text(text), -1) for text in texts], dtype=np.int64)
    if (positions < 0).any():
        unknown, *others = np.flatnonzero(positions < 0).tolist()
        them, nor = "them" if others else "it", ""
        if others:
            shown = ", ".join(f"{texts[code]!r}{format_code_location(code)}" for code in others[: SHOWN_FAULTS - 1])
            more = f" and {len(others) - SHOWN_FAULTS + 1:,} more" if len(others) >= SHOWN_FAULTS else ""
            nor = f"; nor {'is' if len(others) == 1 else 'are'} {shown}{more}"
        raise ConfigError(
            f"{key}: {texts[unknown]!r}{format_code_location(unknown)} is not one of the configured classes "
            f"{format_classes(classes)}{nor}; add {them} to classes, or correct {them} in the data"
            f"{suggest_name(texts[unknown], numbers)}"
        )
    return positions


def build_class_numbers(classes: Iterable[ClassValue]) -> dict[str, int]:
    """Returns the number of each class, by its text."""
    return {str(value): number for number, value in enumerate(classes)}


def format_classes(classes: tuple[ClassValue, ...]) -> str:
    """Formats the classes for a message, only the first ones of many."""
    return format_list([str(value) for value in classes], _SHOWN_CLASSES)


def build_number_label(
    label: LabelPlace, kind: Literal["int", "float"], values: Int64s | npt.NDArray[np.float64]
) -> tuple[Numbers, LabelSpec]:
    """Checks a label of numbers, (n,), and returns it with its spec.

    Raises ConfigError where a number is not whole (int) or not finite in float32 (float).
    """
    wide = values.astype(np.float64)
    kept: Numbers
    if kind == "float":
        # Numbers that do not fit become infinite or arbitrary here, without a warning from NumPy. The checks below find
        # them.
        with np.errstate(over="ignore"):
            kept = wide.astype(np.float32)
        _check_no_bad_value(label, ~np.isfinite(kept), wide, "a finite number that float32 can hold")
    else:
        with np.errstate(invalid="ignore"):
            kept = values.astype(np.int64)
        if values.dtype != np.int64:
            is_beyond, fits = np.abs(wide) >= 2.0**63, "a number that int64 can hold; use type category or string"
            _check_no_bad_value(label, is_beyond, wide, fits)
            _check_no_bad_value(label, np.trunc(wide) != wide, wide, "a whole number; use type float for fractions")
    return kept, measure_label(LabelSpec(label.name, kind), kept)


def measure_label(spec: LabelSpec, values: ListedValues) -> LabelSpec:
    """Returns `spec` with the figures of all `values` of its label.

    They are the mean and std of numbers, (n,) or (n, k), the samples of each class or tag, or the boxes of each class.
    For texts, points, and boxes whose classes have no names, `spec` is returned unchanged.
    """
    match spec.type:
        case "int" | "float":
            wide = np.asarray(values, np.float64)
            return replace(spec, mean=float(wide.mean()), std=float(wide.std()))
        case "tags":
            having = (_find_samples_with_tag(np.asarray(values, np.uint8), tag) for tag in range(spec.width))
            return replace(spec, counts=tuple(int(each.sum()) for each in having))
        case "category" | "boxes" if spec.classes:
            codes = values.numbers[:, -1] if isinstance(values, RaggedColumn) else values
            counts = np.bincount(np.asarray(codes, np.int64), minlength=len(spec.classes))
            return replace(spec, counts=tuple(counts.tolist()))
        case _:
            return spec


def _check_no_bad_value(
    label: LabelPlace, bad: npt.NDArray[np.bool_], values: npt.NDArray[np.float64], wanted: str
) -> None:
    if bad.any():
        rows = np.flatnonzero(bad).tolist()
        others = format_other_locations(rows, label.format_location, lambda row: f"{values[row]:g}")
        raise ConfigError(f"{label.describe_row(rows[0])} holds {values[rows[0]]:g}{others}, which is not {wanted}")


def build_string_label(label: LabelPlace, texts: Sequence[bytes]) -> tuple[npt.NDArray[np.bytes_], LabelSpec]:
    """Returns a label of texts in UTF-8, which may be empty. Raises ConfigError as `build_string_spec` does."""
    lengths = np.fromiter(map(len, texts), np.int64, count=len(texts))
    nul = np.array([row for row, text in enumerate(texts) if b"\0" in text], np.int64)
    spec = build_string_spec(label, lengths, nul)
    return np.array(texts, dtype=f"S{max(spec.text_bytes, 1)}"), spec


def build_string_spec(label: LabelPlace, lengths: Int64s, with_nul: Int64s) -> LabelSpec:
    """Returns the spec of texts with `lengths` in bytes, (n,). The rows `with_nul` hold a NUL.

    Raises ConfigError for a text that is too long or holds a NUL.
    """
    longest = int(lengths.max(initial=0))
    if longest > MAX_TEXT_BYTES:
        row = int(np.argmax(lengths > MAX_TEXT_BYTES))
        raise ConfigError(
            f"{label.describe_row(row)} holds a text of {lengths[row]} bytes; strings have at most "
            f"{MAX_TEXT_BYTES}, since every row of a batch has room for the longest: shorten it, or keep long texts "
            "in a file of their own"
        )
    if with_nul.size:  # NULs pad the fields of fixed width
        raise ConfigError(f"{label.describe_row(int(with_nul[0]))} holds a text with a NUL in it; remove it")
    return LabelSpec(label.name, "string", text_bytes=longest)


# --- tags

PackedTags = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SampleTags:
    """The tags of `samples` samples. `texts` are the distinct tags, and sample `rows[i]` has the tag `codes[i]`."""

    samples: int
    texts: Sequence[str]
    rows: Int64s
    codes: Int64s


def build_tags_label(
    label: LabelPlace, tagged: SampleTags, fixed: tuple[ClassValue, ...] | None
) -> tuple[PackedTags, LabelSpec]:
    """Numbers the tags of a label, and returns them packed, with the spec. `fixed` are the configured classes.

    Raises ConfigError for a tag that is not among these, and where no sample has any tag.
    """

    def format_code_location(code: int) -> str:
        return f" ({label.format_location(int(tagged.rows[np.argmax(tagged.codes == code)]))})"

    if not (tagged.texts or fixed):
        raise ConfigError(
            f"{label.key}: no sample has a tag, so there are no classes; add tags to the data, or list the classes "
            "under classes"
        )
    classes = order_classes(tagged.texts) if fixed is None else fixed
    numbers = lookup_class_numbers(tagged.texts, classes, format_code_location, label.key)[tagged.codes]
    packed = np.zeros((tagged.samples, -(-len(classes) // 8)), np.uint8)
    # A sample may have several tags in one byte. `at` sets every bit, where an indexed `|=` would keep only one of
    # them.
    np.bitwise_or.at(packed, (tagged.rows, numbers >> 3), _compute_bit_mask(numbers))
    return packed, measure_label(LabelSpec(label.name, "tags", width=len(classes), classes=classes), packed)


def renumber_tags(packed: PackedTags, numbers: Int64s, width: int) -> PackedTags:
    """Returns the same tags after class k has become class `numbers[k]` of `width`."""
    moved = np.zeros((len(packed), -(-width // 8)), np.uint8)
    for old, new in enumerate(numbers.tolist()):
        moved[_find_samples_with_tag(packed, old), new >> 3] |= _compute_bit_mask(np.int64(new))
    return moved


def _compute_bit_mask(numbers: npt.NDArray[np.int64] | np.int64) -> PackedTags:
    # The order of `numpy.packbits`: the first class of a byte is its highest bit.
    return np.asarray(128 >> (numbers & 7), dtype=np.uint8)


def _find_samples_with_tag(packed: PackedTags, tag: int) -> npt.NDArray[np.bool_]:
    """Returns which samples have the tag, (n,)."""
    having: npt.NDArray[np.bool_] = packed[:, tag >> 3] & _compute_bit_mask(np.int64(tag)) != 0
    return having
