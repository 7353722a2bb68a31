"""Lists the samples of a source of any kind, selects those of a stream, and numbers classes alike for all streams.

Weights of samples are read as one more label, which no stream can name, and then taken out of the labels.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core.spec import LabelSpec
from streamd.core.text import format_count
from streamd.dataset.arrays import NpySource
from streamd.dataset.files import FolderSource, TableSource
from streamd.dataset.files.folder import add_pattern_images
from streamd.dataset.formats import FORMATS
from streamd.dataset.labels.encode import (
    ClassValue,
    build_class_numbers,
    format_classes,
    measure_label,
    order_classes,
    renumber_tags,
)
from streamd.dataset.layouts import FolderTree, find_layouts
from streamd.dataset.manifest.types import WEIGHTS_LABEL, ListedValues, ScannedSamples
from streamd.dataset.sources import LabelSource, ListingRequest, SplitRule
from streamd.errors import ConfigError, MissingExtraError, suggest_name

_log: Final = logging.getLogger("streamd.sources")


def scan_source(request: ListingRequest, progress: Callable[[int], None]) -> ScannedSamples:
    """Lists the samples of all parts of a source; `select_part_samples` keeps those of one stream.

    `progress` is called now and then with the number of files seen so far. Raises ConfigError for anything wrong with
    the data, with what to do about it.
    """
    # Sources with columns read labels and weights themselves. All others read only their own, and files of labels are
    # added afterwards, when the number of samples is known.
    wanted = dict(request.labels or {})
    if request.weights is not None:
        wanted[WEIGHTS_LABEL] = request.weights
    if request.source.has_columns:
        return _extract_weights(_scan_by_kind(request, wanted, progress))
    files = {name: each for name, each in wanted.items() if each.file}
    if request.weights is not None and WEIGHTS_LABEL not in files:
        key, kind = f"streams.{request.name}.weights", request.source.kind
        if not request.source.has_fields:
            raise ConfigError(
                f"{key}: a {kind} has no column {request.weights.source!r}; use np.save to save one number per sample, "
                "in the order of the images, and write weights: FILE.npy"
            )
        if request.labels is None:
            raise ConfigError(
                f"{key}: the weights of kind {kind} are read with its labels, but the stream has no key labels; add "
                "labels, or write labels: {}"
            )
    labels = None if request.labels is None else {name: each for name, each in wanted.items() if name not in files}
    scanned = _scan_by_kind(request, labels, progress)
    if not files:
        return _extract_weights(scanned)
    with _name_missing_extra(f"the arrays next to stream {request.name!r}"):
        from streamd.dataset.labels.columns import read_label_files  # noqa: PLC0415 - loads pyarrow, which takes a while
        from streamd.dataset.labels.convert import convert_labels  # noqa: PLC0415 - as above
    # Files hold a row a sample. All labels come in the order of the configuration.
    values, specs, fixed = convert_labels(files, read_label_files(request.name, files, scanned.samples))
    values, specs = scanned.labels | values, scanned.specs | specs
    order = sorted(values, key=[*(request.labels or values), WEIGHTS_LABEL].index)
    return _extract_weights(
        replace(
            scanned,
            labels={name: values[name] for name in order},
            specs={name: specs[name] for name in order},
            fixed=scanned.fixed | fixed,
        )
    )


def _extract_weights(scanned: ScannedSamples) -> ScannedSamples:
    """Returns the scanned samples with their weights moved from `labels` to `weights`."""
    if WEIGHTS_LABEL not in scanned.labels:
        return scanned
    return replace(
        scanned,
        labels={name: values for name, values in scanned.labels.items() if name != WEIGHTS_LABEL},
        specs={name: spec for name, spec in scanned.specs.items() if name != WEIGHTS_LABEL},
        weights=np.asarray(scanned.labels[WEIGHTS_LABEL], np.float32),
    )


def _scan_by_kind(
    request: ListingRequest, labels: Mapping[str, LabelSource] | None, progress: Callable[[int], None]
) -> ScannedSamples:
    name, kind = request.name, request.source.kind
    by = find_group_column(request)
    grouping = () if by is None else (by,)  # only the functions of sources with a table take this argument
    found = FORMATS.get(kind)
    if found is None:
        known = ", ".join(FORMATS)
        raise ConfigError(f"streams.{name}.source: kind {kind} is not served by this version; use one of {known}")
    with _name_missing_extra(f"{found.read_by_pyarrow} of stream {name!r}", f"the samples of stream {name!r}"):
        module, _, function = found.function.partition(":")
        scan_format = getattr(import_module(module), function)
    images = {"images": request.images} if request.images and request.source.has_own_images else {}
    numbers = {} if request.raw is None else {"raw": request.raw}  # only the functions of arrays take this argument
    scanned: ScannedSamples = scan_format(name, request.source, labels, progress, *grouping, **images, **numbers)
    if isinstance(request.source, FolderSource):
        _warn_of_other_layout(request, request.source)
    return add_pattern_images(request, scanned, progress) if request.images else scanned


def _warn_of_other_layout(request: ListingRequest, source: FolderSource) -> None:
    """Warns where a folder lies as another kind of data does, of which `kind: folder` would make classes or samples."""
    # With a pattern the user has said where masks are; without labels, that parts and classes do not matter.
    if any(image.is_pattern for image in (request.images or {}).values()):
        return
    try:
        found = find_layouts(FolderTree(Path(os.path.abspath(source.path))), structure=request.labels != {})  # noqa: PTH100 - resolve() follows links
    except (OSError, ConfigError):  # the listing has succeeded, and this is only advice
        return
    for each in found:
        _log.warning(
            "streams.%s.source.path: %s, which looks like %s, but kind folder takes %s; %s",
            request.name,
            each.seen,
            each.name,
            "each picture as a sample" if request.labels == {} else "each sub-folder as a class",
            each.remedy,
        )


@contextmanager
def _name_missing_extra(by_pyarrow: str, by_lmdb: str = "") -> Iterator[None]:
    """Turns a missing library into a MissingExtraError that names the extra to install, and the purpose."""
    try:
        yield
    except ModuleNotFoundError as error:
        match (error.name or "").partition(".")[0]:
            case "pyarrow":
                raise MissingExtraError("pyarrow", "serve", by_pyarrow) from error
            case "lmdb":
                raise MissingExtraError("lmdb", "lmdb", by_lmdb) from error
        raise


# --- Selects a stream's samples from those listed, and numbers classes in the same way for all streams.
#
# `split` and `part`: a keyed hash of its file name, or of its group's value, decides the side of each sample, and
# nothing else does. So new files do not move others, the root may move, and a larger fraction only adds to the
# validation samples.
#
# Labels of one name share one class list, so that 3 is the same class in every stream of a configuration.


_ROW_KINDS: Final = frozenset({"hdf5", "lmdb"})  # their samples are numbered rows without file names
_PERSON: Final = b"streamd split 1"


def find_group_column(stream: ListingRequest) -> str | None:
    """Returns the column by which the stream is split, if it is a part and its split names one. Raises ConfigError."""
    split = _find_active_split(stream)
    if split is None or split.by is None:
        return None
    source = stream.source
    if isinstance(source, TableSource) or (isinstance(source, NpySource) and source.table is not None):
        return split.by
    # Each kind has its own reason, and its own way out.
    if source.kind in _ROW_KINDS:
        why = (
            f"rows of {source.kind} are split one by one, not by an array such as {split.by!r}; leave `by` out, or "
            "write the rows of each part to a separate file, with one stream for each"
        )
    elif source.kind == "npy":
        why = f"no table has a column {split.by!r}; add table: FILE under source, or leave `by` out to split by rows"
    else:
        why = f"a {source.kind} has no column {split.by!r}; leave `by` out to split by file name, or use kind table"
    raise ConfigError(f"streams.{stream.name}.split.by: {why}")


def select_part_samples(stream: ListingRequest, scanned: ScannedSamples) -> ScannedSamples:
    """Returns the samples of the stream's part, in their order, with the classes of all.

    Raises ConfigError if there are none.
    """
    split = _find_active_split(stream)
    if split is None:
        if stream.split is not None and stream.source.part is None:
            _log.warning(
                "streams.%s: split does nothing, since the source has no `part`: all samples are served", stream.name
            )
        return _require_nonzero_weight(stream, scanned)
    held_out = find_validation_samples(scanned.sample_names() if scanned.groups is None else scanned.groups, split)
    rows = np.flatnonzero(held_out == (stream.source.part == "validation"))
    if not rows.size:
        samples, part = scanned.samples, stream.source.part
        groups = "" if scanned.groups is None else f" in {len(set(scanned.groups))} groups of column {split.by!r}"
        other = "larger" if part == "validation" else "smaller"
        raise ConfigError(
            f"streams.{stream.name}.source.part: none of {format_count(samples, 'sample')}{groups} falls into part "
            f"{part} of {{validation: {split.validation:g}, seed: {split.seed}}}; choose a {other} fraction or another "
            "seed, or give each stream data of its own"
        )
    labels: dict[str, ListedValues] = {name: values[rows] for name, values in scanned.labels.items()}
    names = scanned.display_names
    taken = replace(
        scanned,
        labels=labels,
        specs={name: measure_label(spec, labels[name]) for name, spec in scanned.specs.items()},
        groups=None,
        weights=None if scanned.weights is None else scanned.weights[rows],
        display_names=None if names is None else [names[row] for row in rows.tolist()],
        images={name: image.select_rows(rows) for name, image in scanned.images.items()},
        row_frames={name: places[rows] for name, places in scanned.row_frames.items()},
    )
    # With arrays, the remaining columns describe files or rows and not samples, so only `rows` changes.
    if scanned.arrays is not None:
        taken = replace(taken, rows=rows if scanned.rows is None else scanned.rows[rows])
    # The extra columns of files are by sample. The mtimes of shards are in `shards`, so `mtimes_ns` is empty.
    else:
        taken = replace(
            taken,
            files=[scanned.files[row] for row in rows.tolist()],
            sizes=scanned.sizes[rows],
            mtimes_ns=scanned.mtimes_ns if scanned.shards is not None else scanned.mtimes_ns[rows],
            extra={name: values[rows] for name, values in scanned.extra.items()},
        )
    return _require_nonzero_weight(stream, taken)


def _require_nonzero_weight(stream: ListingRequest, scanned: ScannedSamples) -> ScannedSamples:
    """Returns the scanned samples. Raises ConfigError if all of them weigh 0, since nothing would be learnt."""
    if scanned.weights is not None and scanned.weights.size and not scanned.weights.any():
        raise ConfigError(
            f"streams.{stream.name}.weights: all {scanned.samples:,} samples weigh 0, so nothing would be learnt; "
            "correct the weights, or remove the key weights"
        )
    return scanned


def _find_active_split(stream: ListingRequest) -> SplitRule | None:
    return stream.split if stream.source.part in {"train", "validation"} else None


def find_validation_samples(names: Iterable[bytes], split: SplitRule) -> npt.NDArray[np.bool_]:
    """Returns which of `names` fall into the validation part, (n,)."""
    key = split.seed.to_bytes(8, "little")
    digests = [hashlib.blake2b(name, digest_size=8, key=key, person=_PERSON).digest() for name in names]
    numbers = np.frombuffer(b"".join(digests), dtype="<u8")
    held_out: npt.NDArray[np.bool_] = (numbers >> 11) * 2.0**-53 < split.validation  # 53 bits, which float64 holds
    return held_out


def share_classes(scans: Mapping[str, ScannedSamples]) -> dict[str, ScannedSamples]:
    """Gives categories and tags of one name the same class list in all streams.

    `scans` is by stream name. A configured class list holds for all streams; without one the classes are merged, in the
    order of `order_classes`. Raises ConfigError when configured lists differ, or lack a class that another stream has.
    """
    # The numbers of the classes of boxes come with the data, so a number would mean one class here and another one
    # there.
    first: dict[str, tuple[str, LabelSpec]] = {}
    for stream, scanned in scans.items():
        for name, spec in scanned.specs.items():
            other, known = first.setdefault(name, (stream, spec))
            if spec.type == known.type == "boxes" and spec.classes != known.classes:
                raise ConfigError(
                    f"streams.{stream}.labels.{name}: the classes of its boxes, [{format_classes(spec.classes)}], "
                    f"differ from those of streams.{other}.labels.{name}, [{format_classes(known.classes)}], so one "
                    "number would mean two classes; make the lists equal, or give the labels different names"
                )
    names = sorted(
        {name for scanned in scans.values() for name, spec in scanned.specs.items() if _has_class_list(spec)}
    )
    shared = {name: _merge_classes(name, scans) for name in names}
    renumbered: dict[str, ScannedSamples] = {}
    for stream, scanned in scans.items():
        labels, specs = dict(scanned.labels), dict(scanned.specs)
        for name, spec in scanned.specs.items():
            if not _has_class_list(spec) or spec.classes == shared[name]:
                continue
            classes = shared[name]
            numbers = build_class_numbers(classes)
            moved = np.array([numbers[str(value)] for value in spec.classes], dtype=np.int64)
            if spec.type == "tags":
                labels[name] = renumber_tags(np.asarray(labels[name], np.uint8), moved, len(classes))
            else:
                labels[name] = moved[np.asarray(labels[name], np.int64)]
            width = len(classes) if spec.type == "tags" else spec.width
            specs[name] = measure_label(replace(spec, classes=classes, width=width), labels[name])
        renumbered[stream] = replace(scanned, labels=labels, specs=specs)
    return renumbered


def _has_class_list(spec: LabelSpec) -> bool:
    return spec.type in {"category", "tags"}


def _merge_classes(name: str, scans: Mapping[str, ScannedSamples]) -> tuple[ClassValue, ...]:
    having = {stream: scanned.specs[name] for stream, scanned in scans.items() if name in scanned.specs}
    lists = {stream: spec.classes for stream, spec in having.items() if _has_class_list(spec)}
    fixed = next((stream for stream in lists if name in scans[stream].fixed), None)
    if fixed is None:
        # Two streams that share a class list and no class are probably different data. A class is a number where all
        # of its list are, and else a text.
        texts = {stream: {*map(str, classes)} for stream, classes in lists.items() if classes}
        unrelated = (pair for pair in combinations(texts, 2) if texts[pair[0]].isdisjoint(texts[pair[1]]))
        for first, second in [*unrelated][:1]:
            _log.warning(
                "streams %s and %s have no class of label %r in common (%s; %s), but they share one list of classes, "
                "since labels with the same name do: if these are different data, rename the label of one stream, as "
                "in labels: {kind: category}",
                first,
                second,
                name,
                format_classes(lists[first]),
                format_classes(lists[second]),
            )
        return order_classes(str(value) for classes in lists.values() for value in classes)
    # Nothing is merged into a configured list: the numbers of its classes must not depend on the data.
    for stream, classes in lists.items():
        if name in scans[stream].fixed and classes != lists[fixed]:
            raise ConfigError(
                f"streams.{stream}.labels.{name}: the classes [{format_classes(classes)}] differ from the classes "
                f"[{format_classes(lists[fixed])}] of streams.{fixed}.labels.{name}; labels with the same name share "
                "one list of classes: make the lists equal, or rename one label"
            )
        known = build_class_numbers(lists[fixed])
        extra = next((str(value) for value in classes if str(value) not in known), None)
        if extra is not None:
            raise ConfigError(
                f"streams.{stream}.labels.{name}: the data hold {extra!r}, which is not among the classes of "
                f"streams.{fixed}.labels.{name}; add it there or rename one label{suggest_name(extra, known)}"
            )
    return lists[fixed]
