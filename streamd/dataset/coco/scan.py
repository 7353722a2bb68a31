"""`kind: coco`: the pictures of a COCO file in its order, also those without boxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from streamd.core.spec import LabelSpec
from streamd.dataset.coco import CocoSource
from streamd.dataset.coco.annotations import CocoFile
from streamd.dataset.files import lookup
from streamd.dataset.labels.boxes import (
    DEFAULT_BOX_LABELS,
    build_box_label,
    build_point_label,
    get_box_rule,
    get_own_box_rule,
)
from streamd.dataset.labels.cells import SourceRows
from streamd.dataset.labels.faults import raise_collected_faults
from streamd.dataset.manifest.ragged import RaggedColumn
from streamd.dataset.manifest.types import (
    ListedValues,
    ScannedSamples,
    build_drawn_size_columns,
    build_label_key,
)
from streamd.dataset.sources import LabelSource
from streamd.errors import ConfigError


def scan_coco(
    stream: str, source: CocoSource, labels: Mapping[str, LabelSource] | None, progress: Callable[[int], None]
) -> ScannedSamples:
    """Lists the pictures of a COCO file with their boxes and points. Raises ConfigError."""
    key = f"streams.{stream}.source"
    file = CocoFile.read(source.path, f"{key}.path", keep_crowds=source.crowd == "keep")
    if not file.file_names:
        raise ConfigError(f"{key}.path: {source.path.name} lists no images; name a file of pictures with boxes")
    rows, root = SourceRows(source.path, file.format_location), lookup.resolve_root(source.root, source.path)
    values: dict[str, ListedValues] = {}
    specs: dict[str, LabelSpec] = {}
    with raise_collected_faults() as faults:
        for name, label in (DEFAULT_BOX_LABELS if labels is None else labels).items():
            with faults.collect():
                values[name], specs[name] = _build_label(name, label, file, build_label_key(stream, name))
        files = lookup.normalize_file_names(rows, pa.array(file.file_names, pa.large_string()), root, f"{key}.root")
        sizes, mtimes_ns = lookup.stat_listed_files(rows, root, files, f"{key}.root", progress)
    drawn = build_drawn_size_columns(file.drawn_sizes) if values else {}
    return ScannedSamples(root, files, sizes, mtimes_ns, values, specs, frozenset(), extra=drawn)


def _build_label(name: str, label: LabelSource, file: CocoFile, key: str) -> tuple[RaggedColumn, LabelSpec]:
    if label.type not in {"boxes", "points"} or label.source not in {None, name, label.type}:
        raise ConfigError(
            f"{key}: a COCO file gives each picture boxes and points, not {label.source or name!r} of type "
            f"{label.type}; use type boxes or points and leave `from` out, or kind table"
        )
    if label.type == "points":
        points = file.collect_points()
        found = points.counts, points.numbers, points.values
        return build_point_label(name, get_box_rule(label), found, file.format_location, key)
    boxes = file.collect_boxes()
    return build_box_label(
        name,
        get_own_box_rule(label, "xywh", "pixel"),
        (boxes.counts, boxes.numbers, boxes.values),
        file.classes,
        file.format_location,
        key,
    )
