"""`split` and `part`: which samples of a source a stream has.

Each sample falls on its side by a keyed hash of its file name, or of its group's, and of nothing else: files that are
added move none that are there, the root may move, and a larger fraction only adds to the validation samples.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core.spec import LabelSpec
from streamd.dataset.arrays import NpySource
from streamd.dataset.files import TableSource
from streamd.dataset.labels import encode as labelling
from streamd.dataset.labels.tags import with_tag_counts
from streamd.dataset.labels.weights import require_some_weight
from streamd.dataset.manifest.types import Int64s, ListedValues, ScannedSamples
from streamd.dataset.sources import DataSource, ListingRequest, SplitRule
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")
_ROW_KINDS: Final = frozenset({"hdf5", "lmdb"})  # of which the rows have numbers, and no names of files
_PERSON: Final = b"streamd split 1"


def find_group_column(stream: ListingRequest) -> str | None:
    """The column that the split goes by, if the stream is a part and it goes by one. Raises ConfigError."""
    split = _find_split(stream)
    if split is None or split.by is None:
        return None
    if not _has_columns(stream.source):
        raise ConfigError(f"streams.{stream.name}.split.by: {_format_no_column(stream.source.kind, split.by)}")
    return split.by


def _format_no_column(kind: str, by: str) -> str:
    if kind in _ROW_KINDS:
        return (
            f"rows of {kind} are split one by one, and by no array of theirs, such as {by!r}; leave `by` out, or write "
            "the rows of each side into a file of their own, a stream each"
        )
    if kind == "npy":
        return f"there is no table that has {by!r}; add table: FILE to the source, or leave `by` out to split by rows"
    return f"a {kind} has no column {by!r}; leave `by` out to split by file name, or use kind table"


def _has_columns(source: DataSource) -> bool:
    return isinstance(source, TableSource) or (isinstance(source, NpySource) and source.table is not None)


def select_part(stream: ListingRequest, scanned: ScannedSamples) -> ScannedSamples:
    """The samples of the stream's part, in their order, with the classes of all. Raises ConfigError for none."""
    split = _find_split(stream)
    if split is None:
        if stream.split is not None and stream.source.part is None:
            _log.warning("streams.%s: split does nothing, since the source has no `part`: all samples", stream.name)
        return require_some_weight(stream, scanned)
    held_out = find_held_out(scanned.sample_names() if scanned.groups is None else scanned.groups, split)
    rows = np.flatnonzero(held_out == (stream.source.part == "validation"))
    if not rows.size:
        raise _empty_part_error(stream, split, scanned)
    return require_some_weight(stream, _select_samples(scanned, rows))


def _find_split(stream: ListingRequest) -> SplitRule | None:
    return stream.split if stream.source.part in {"train", "validation"} else None


def find_held_out(names: Iterable[bytes], split: SplitRule) -> npt.NDArray[np.bool_]:
    """Which of `names` fall into the validation part, (n,)."""
    key = split.seed.to_bytes(8, "little")
    digests = [hashlib.blake2b(name, digest_size=8, key=key, person=_PERSON).digest() for name in names]
    numbers = np.frombuffer(b"".join(digests), dtype="<u8")
    held_out: npt.NDArray[np.bool_] = (numbers >> 11) * 2.0**-53 < split.validation  # 53 bits, which float64 holds
    return held_out


def _empty_part_error(stream: ListingRequest, split: SplitRule, scanned: ScannedSamples) -> ConfigError:
    samples, part = scanned.samples, stream.source.part
    groups = "" if scanned.groups is None else f" in {len(set(scanned.groups))} groups of column {split.by!r}"
    other = "larger" if part == "validation" else "smaller"
    return ConfigError(
        f"streams.{stream.name}.source.part: none of {samples} samples{groups} falls into part {part} of "
        f"{{validation: {split.validation:g}, seed: {split.seed}}}; take a {other} fraction or another seed, or give "
        "each stream data of its own"
    )


def _select_samples(scanned: ScannedSamples, rows: Int64s) -> ScannedSamples:
    labels: dict[str, ListedValues] = {name: values[rows] for name, values in scanned.labels.items()}
    specs = {name: _recompute_spec(labels[name], spec) for name, spec in scanned.specs.items()}
    weights = None if scanned.weights is None else scanned.weights[rows]
    taken = replace(scanned, labels=labels, specs=specs, groups=None, weights=weights)
    if scanned.arrays is not None:
        return replace(taken, rows=rows if scanned.rows is None else scanned.rows[rows])
    files = [scanned.files[row] for row in rows.tolist()]
    taken = replace(taken, files=files, sizes=scanned.sizes[rows])
    if scanned.shards is not None:
        return replace(taken, extra={name: values[rows] for name, values in scanned.extra.items()})
    return replace(taken, mtimes_ns=scanned.mtimes_ns[rows])


def _recompute_spec(values: ListedValues, spec: LabelSpec) -> LabelSpec:
    match spec.type:
        case "category":
            return labelling.with_class_counts(spec, np.asarray(values, np.int64))
        case "tags":
            return with_tag_counts(spec, np.asarray(values, np.uint8))
        case "int" | "float":
            return labelling.with_moments(spec, values)
        case "string":
            return spec
