"""From label values to the numbers that a batch carries: pure, whatever source they come from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from streamd.errors import ConfigError, near_name
from streamd.sources.wanted import Int64s, LabelValues, Scanned
from streamd.spec import LabelSpec

Class = int | str
Place = Callable[[int], str]  # a row's number -> where a person finds it, such as "labels.csv, line 7"

# At most 18 digits, which int64 always holds. "007" is a code, not the number 7; "3.0" is how some tables write 3.
_WHOLE: Final = re.compile(r"(0|-?[1-9][0-9]{0,17})(\.0*)?")
_SHOWN_CLASSES: Final = 20  # in a message; more would bury it


def in_order(texts: Iterable[str]) -> tuple[Class, ...]:
    """The distinct classes of `texts`: whole numbers sorted as numbers when all are, else by their UTF-8 bytes."""
    distinct = set(texts)
    matches = [_WHOLE.fullmatch(text) for text in distinct]
    if all(matches):
        return tuple(sorted({int(match[1]) for match in matches if match}))
    return tuple(sorted(distinct, key=str.encode))


def configured(classes: Sequence[object], where: str) -> tuple[Class, ...]:
    """The classes of the configuration in their own order. Raises ConfigError for repeated ones or none."""
    texts = [str(value) for value in classes]
    if not texts:
        raise ConfigError(f"{where}: classes is empty; list them, or leave classes out to take them from the data")
    repeated = next((text for text in texts if texts.count(text) > 1), None)
    if repeated is not None:
        raise ConfigError(f"{where}: class {repeated!r} is listed twice")
    whole = [_WHOLE.fullmatch(text) for text in texts]
    return tuple(int(match[1]) for match in whole if match) if all(whole) else tuple(texts)


def category(
    name: str, texts: Sequence[str], codes: Int64s, fixed: tuple[Class, ...] | None, place: Place, where: str
) -> tuple[Int64s, LabelSpec]:
    """Numbers the classes of a label.

    `texts` are its distinct values, `codes` (n,) the position of each sample's value among them, `fixed` the
    configured classes. Raises ConfigError for a value that is not among these.
    """
    classes = in_order(texts) if fixed is None else fixed
    numbers = _numbering(classes)
    renumbered = np.array([numbers.get(_canonical(text, classes), -1) for text in texts], dtype=np.int64)
    if (renumbered < 0).any():
        code = int(np.argmax(renumbered < 0))
        rows = np.flatnonzero(codes == code)
        found = f" ({place(int(rows[0]))})" if rows.size else ""
        raise ConfigError(
            f"{where}: {texts[code]!r}{found} is not among the configured classes {_shown(classes)}"
            f"{near_name(texts[code], numbers)}; add it to classes or correct it there"
        )
    values = renumbered[codes]
    return values, LabelSpec(name, "category", classes=classes, counts=_counts(values, classes))


def _canonical(text: str, classes: tuple[Class, ...]) -> str:
    match = _WHOLE.fullmatch(text) if isinstance(classes[0], int) else None
    return match[1] if match else text


def _numbering(classes: Iterable[Class]) -> dict[str, int]:
    return {str(value): number for number, value in enumerate(classes)}


def _counts(values: Int64s, classes: tuple[Class, ...]) -> tuple[int, ...]:
    return tuple(np.bincount(values, minlength=len(classes)).tolist())


def _shown(classes: tuple[Class, ...]) -> str:
    names = ", ".join(str(value) for value in classes[:_SHOWN_CLASSES])
    more = len(classes) - _SHOWN_CLASSES
    return f"{names} and {more} more" if more > 0 else names


def number_type(kind: str, where: str) -> Literal["int", "float"]:
    """`kind`, which is int or float. Raises ConfigError for a type that no source here makes."""
    if kind not in {"int", "float"}:
        raise ConfigError(f"{where}: type {kind} is not served by this version; use category, int or float")
    return "int" if kind == "int" else "float"


def number(
    name: str,
    kind: Literal["int", "float"],
    values: Int64s | npt.NDArray[np.float64],
    place: Place,
    where: str,
) -> tuple[LabelValues, LabelSpec]:
    """Checks a label of numbers, (n,). Raises ConfigError at the first one not whole (int) or not finite (float)."""
    wide = values.astype(np.float64)
    kept: LabelValues
    if kind == "float":
        with np.errstate(over="ignore"):
            kept = wide.astype(np.float32)
        _refuse(~np.isfinite(kept), wide, "a finite number that float32 holds", place, where)
    else:
        with np.errstate(invalid="ignore"):
            kept = values.astype(np.int64)
        whole = values == kept if values.dtype == np.int64 else (np.trunc(wide) == wide) & (np.abs(wide) < 2.0**63)
        _refuse(~whole, wide, "a whole number; use type float for fractions", place, where)
    return kept, LabelSpec(name, kind, mean=float(wide.mean()), std=float(wide.std()))


def _refuse(bad: npt.NDArray[np.bool_], values: npt.NDArray[np.float64], wanted: str, place: Place, where: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        others = int(bad.sum()) - 1
        more = f" (and {others} more like it)" if others else ""
        raise ConfigError(f"{where}: {place(row)} holds {values[row]:g}{more}, which is not {wanted}")


def share_classes(scans: Mapping[str, Scanned]) -> dict[str, Scanned]:
    """Gives category labels of one name one class list in all streams, so that 3 means the same to each.

    `scans` by stream name. A configured class list holds for all; without one the classes are united, in the order of
    `in_order`. Raises ConfigError when configured lists differ, or lack a class that another stream holds.
    """
    names = sorted({name for scanned in scans.values() for name, spec in scanned.specs.items() if _is_category(spec)})
    shared = {name: _shared(name, scans) for name in names}
    return {stream: _renumbered(scanned, shared) for stream, scanned in scans.items()}


def _is_category(spec: LabelSpec) -> bool:
    return spec.type == "category"


def _shared(name: str, scans: Mapping[str, Scanned]) -> tuple[Class, ...]:
    having = {stream: scanned for stream, scanned in scans.items() if name in scanned.specs}
    lists = {
        stream: having[stream].specs[name].classes for stream in having if _is_category(having[stream].specs[name])
    }
    fixed = next((stream for stream in lists if name in scans[stream].fixed), None)
    if fixed is None:
        return in_order(str(value) for classes in lists.values() for value in classes)
    for stream, classes in lists.items():
        if name in scans[stream].fixed and classes != lists[fixed]:
            raise ConfigError(
                f"streams.{stream}.labels.{name}: classes {_shown(classes)} differ from {_shown(lists[fixed])} of "
                f"streams.{fixed}.labels.{name}; labels of one name share one list: make them equal or rename one label"
            )
        _refuse_extra(f"streams.{stream}.labels.{name}", classes, f"streams.{fixed}.labels.{name}", lists[fixed])
    return lists[fixed]


def _refuse_extra(label: str, classes: tuple[Class, ...], fixed_label: str, fixed: tuple[Class, ...]) -> None:
    known = _numbering(fixed)
    extra = next((str(value) for value in classes if str(value) not in known), None)
    if extra is not None:
        raise ConfigError(
            f"{label}: the data hold {extra!r}, which is not among the classes of {fixed_label}"
            f"{near_name(extra, known)}; add it there or rename one label"
        )


def _renumbered(scanned: Scanned, shared: Mapping[str, tuple[Class, ...]]) -> Scanned:
    labels, specs = dict(scanned.labels), dict(scanned.specs)
    for name, spec in scanned.specs.items():
        if not _is_category(spec) or spec.classes == shared[name]:
            continue
        numbers = _numbering(shared[name])
        moved = np.array([numbers[str(value)] for value in spec.classes], dtype=np.int64)
        values = moved[scanned.labels[name]]
        labels[name] = values
        specs[name] = replace(spec, classes=shared[name], counts=_counts(values, shared[name]))
    return replace(scanned, labels=labels, specs=specs)
