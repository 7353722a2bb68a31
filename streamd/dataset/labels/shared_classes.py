"""One class list for all labels of one name, so that 3 means the same to every stream of a configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from streamd.core.spec import LabelSpec
from streamd.dataset.labels.encode import (
    ClassValue,
    build_class_numbers,
    format_classes,
    order_classes,
    with_class_counts,
)
from streamd.dataset.labels.tags import renumber_tags, with_tag_counts
from streamd.dataset.manifest.types import LabelValues, ListedValues, ScannedSamples
from streamd.errors import ConfigError, suggest_name


def share_classes(scans: Mapping[str, ScannedSamples]) -> dict[str, ScannedSamples]:
    """Gives categories and tags of one name one class list in all streams.

    `scans` by stream name. A configured class list holds for all; without one the classes are united, in the order of
    `in_order`. Raises ConfigError when configured lists differ, or lack a class that another stream holds.
    """
    names = sorted({name for scanned in scans.values() for name, spec in scanned.specs.items() if _has_classes(spec)})
    shared = {name: _merge_classes(name, scans) for name in names}
    return {stream: _renumber_labels(scanned, shared) for stream, scanned in scans.items()}


def _has_classes(spec: LabelSpec) -> bool:
    return spec.type in {"category", "tags"}


def _merge_classes(name: str, scans: Mapping[str, ScannedSamples]) -> tuple[ClassValue, ...]:
    having = {stream: scanned.specs[name] for stream, scanned in scans.items() if name in scanned.specs}
    lists = {stream: spec.classes for stream, spec in having.items() if _has_classes(spec)}
    fixed = next((stream for stream in lists if name in scans[stream].fixed), None)
    if fixed is None:
        return order_classes(str(value) for classes in lists.values() for value in classes)
    for stream, classes in lists.items():
        if name in scans[stream].fixed and classes != lists[fixed]:
            raise ConfigError(
                f"streams.{stream}.labels.{name}: classes {format_classes(classes)} differ from "
                f"{format_classes(lists[fixed])} of streams.{fixed}.labels.{name}; labels of one name share one list: "
                "make them equal or rename one label"
            )
        _check_no_extra_class(
            f"streams.{stream}.labels.{name}", classes, f"streams.{fixed}.labels.{name}", lists[fixed]
        )
    return lists[fixed]


def _check_no_extra_class(
    label: str, classes: tuple[ClassValue, ...], fixed_label: str, fixed: tuple[ClassValue, ...]
) -> None:
    known = build_class_numbers(fixed)
    extra = next((str(value) for value in classes if str(value) not in known), None)
    if extra is not None:
        raise ConfigError(
            f"{label}: the data hold {extra!r}, which is not among the classes of {fixed_label}"
            f"{suggest_name(extra, known)}; add it there or rename one label"
        )


def _renumber_labels(scanned: ScannedSamples, shared: Mapping[str, tuple[ClassValue, ...]]) -> ScannedSamples:
    labels, specs = dict(scanned.labels), dict(scanned.specs)
    for name, spec in scanned.specs.items():
        if _has_classes(spec) and spec.classes != shared[name]:
            labels[name], specs[name] = _renumber_label(scanned.labels[name], spec, shared[name])
    return replace(scanned, labels=labels, specs=specs)


def _renumber_label(
    values: ListedValues, spec: LabelSpec, classes: tuple[ClassValue, ...]
) -> tuple[LabelValues, LabelSpec]:
    numbers = build_class_numbers(classes)
    moved = np.array([numbers[str(value)] for value in spec.classes], dtype=np.int64)
    if spec.type == "tags":
        packed = renumber_tags(np.asarray(values, np.uint8), moved, len(classes))
        return packed, with_tag_counts(replace(spec, classes=classes, width=len(classes)), packed)
    renumbered = moved[np.asarray(values, np.int64)]
    return renumbered, with_class_counts(replace(spec, classes=classes), renumbered)
