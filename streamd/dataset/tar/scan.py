"""`kind: tar`: WebDataset shards, and other tars of images. Headers are read once; images are read at their offsets.

Samples are in byte order of the shards' names, then of the images' names.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import numpy as np

from streamd.core.text import format_count
from streamd.dataset.labels.cells import SourceRows
from streamd.dataset.labels.convert import convert_labels
from streamd.dataset.manifest.types import ImageFiles, Int64s, ScannedSamples, ShardFiles
from streamd.dataset.paths import patterns
from streamd.dataset.paths.confined import IMAGE_SUFFIXES, format_first_names, format_path, translate_read_errors
from streamd.dataset.paths.patterns import LeftOutNames, MatchedFiles
from streamd.dataset.sources import ImageSource, LabelSource
from streamd.dataset.tar import TarSource
from streamd.dataset.tar.labels import (
    FieldValue,
    TarLabelSource,
    TarLabelSources,
    build_label_columns,
    find_default_labels,
    find_label_sources,
    find_packed_names,
    read_label_values,
)
from streamd.dataset.tar.samples import (
    Shard,
    format_suffixes,
    list_stray_files,
    read_shard,
    suggest_near_key,
)
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")
_THREADS: Final = 16  # a disk answers many requests at once
_QUICK_SAMPLE_S: Final = 200e-6  # in memory a sample takes a tenth of this, and threads would only wait for each other
_NAMES: Final = "\0names"  # the key under which names are read, beside the labels
_IMAGE_SUFFIX_TEXT: Final = b" ".join(IMAGE_SUFFIXES).decode()


def scan_tar(
    stream: str,
    source: TarSource,
    labels: Mapping[str, LabelSource] | None,
    progress: Callable[[int], None],
    images: Mapping[str, ImageSource] | None = None,
) -> ScannedSamples:
    """Lists the images in shards, with their labels; `images` names the suffixes of several. Raises ConfigError."""
    key = f"streams.{stream}.source.path"
    files = patterns.find_files(source.path, key, (), lambda _: None, patterns.TAR_FILES)
    suffixes = {name: str(image.place).lstrip(".").lower().encode() for name, image in (images or {}).items()}
    listing = _TarListing(stream, files, labels, progress, suffixes)
    parts = list(listing.list_shards())
    if not listing.samples or listing.plan is None:
        raise ConfigError(
            f"{key}: no images in {format_count(len(listing.files.names), 'shard')} of "
            f"{format_path(listing.files.root)}; looked for {_IMAGE_SUFFIX_TEXT}, but there is "
            f"{format_suffixes(listing.passed_over)}; correct the path, or pack images"
        )
    # Files that are not served.
    if listing.passed_over:
        counts, first = format_suffixes(listing.passed_over), format_first_names(listing.first_passed_over)
        _log.info("%s: skipped files that belong to no image: %s, the first %s", key, counts, first)
    listing.left_out.log_names(key)
    names = list(chain.from_iterable(part.names for part in parts))
    rows = SourceRows(files.root, lambda row: format_path(names[row]))
    asked = {ask for several in listing.plan.sources.values() for ask in several}
    values = {ask: list(chain.from_iterable(part.values.get(ask, []) for part in parts)) for ask in asked}
    columns = build_label_columns(stream, listing.plan.sources, values, rows)
    named = listing.plan.names
    shown = [str(each).encode() for part in parts for each in part.values[named]] if named else None
    return ScannedSamples(
        files.root,
        names,
        np.concatenate([part.sizes for part in parts]),
        np.empty(0, np.int64),
        *convert_labels(listing.plan.labels, columns),
        shards=ShardFiles(tuple(files.names), tuple(files.sizes.tolist()), tuple(files.mtimes_ns.tolist())),
        extra={
            "shard": np.repeat(np.arange(len(parts)), [len(part.names) for part in parts]),
            "offset": np.concatenate([part.offsets for part in parts]),
        },
        display_names=shown,
        images={
            name: ImageFiles(
                list(chain.from_iterable(part.more[suffix][0] for part in parts)),
                np.concatenate([part.more[suffix][1] for part in parts]),
                np.empty(0, np.int64),
                offsets=np.concatenate([part.more[suffix][2] for part in parts]),
            )
            for name, suffix in list(listing.suffixes.items())[1:]
        },
    )


@dataclass(frozen=True, slots=True)
class _LabelPlan:
    """The configured labels, and where they come from in every shard; `names` says where a pack keeps its names."""

    labels: Mapping[str, LabelSource]
    sources: TarLabelSources
    names: TarLabelSource | None = None


@dataclass(frozen=True, slots=True)
class _ShardContents:
    """The contents of one shard: its images in order, the values of each label source, one an image, and warnings."""

    names: list[bytes]
    offsets: Int64s
    sizes: Int64s
    values: dict[TarLabelSource, list[FieldValue]]
    strays: list[tuple[bytes, bytes]]  # suffix and sample of the files that belong to no image
    warnings: list[str]
    more: dict[bytes, tuple[list[bytes], Int64s, Int64s]]  # by suffix: names, sizes and offsets of further images
    left_out: LeftOutNames


@dataclass(slots=True)
class _TarListing:
    """Lists the shards of one stream: one after the other, or several at a time where the disk is slow."""

    stream: str
    files: MatchedFiles
    labels: Mapping[str, LabelSource] | None
    progress: Callable[[int], None]
    suffixes: Mapping[str, bytes] = field(default_factory=dict)
    plan: _LabelPlan | None = None
    samples: int = 0
    passed_over: Counter[bytes] = field(default_factory=Counter)  # files beside no image, by suffix
    left_out: LeftOutNames = field(default_factory=LeftOutNames)
    first_passed_over: list[bytes] = field(default_factory=list)  # their samples, of the first shard that has any

    @property
    def path_key(self) -> str:
        return f"streams.{self.stream}.source.path"

    def list_shards(self) -> Iterator[_ShardContents]:
        """Yields the contents of the shards, in their order."""
        numbers, began_s = iter(range(len(self.files.names))), time.monotonic()
        # Threads start only after a shard has made the plan. The plan does not change from then on, so they need no
        # lock for it.
        for number in numbers:
            yield self._record_shard(self._list_shard(number))
            if self.plan is not None and time.monotonic() - began_s > self.samples * _QUICK_SAMPLE_S:
                break
        # The remaining shards, if any, are listed by threads, which also report progress. The results come in order,
        # and only this thread counts them and logs their warnings.
        with ThreadPoolExecutor(_THREADS, "streamd-tar") as pool:
            yield from map(self._record_shard, pool.map(self._list_shard, numbers))

    def _record_shard(self, part: _ShardContents) -> _ShardContents:
        self.samples += len(part.names)
        self.passed_over += Counter(suffix for suffix, _ in part.strays)
        self.first_passed_over = self.first_passed_over or [sample for _, sample in part.strays]
        self.left_out.add_counts(part.left_out)
        for warning in part.warnings:
            _log.warning("%s: %s", self.path_key, warning)
        self.progress(self.samples)
        return part

    def _list_shard(self, number: int) -> _ShardContents:
        """Lists one shard. Runs in several threads; the result does not depend on the others."""
        name, path = self.files.names[number], self.files.file_path(number)
        before, size = self.samples, int(self.files.sizes[number])
        with translate_read_errors(path, self.path_key), path.open("rb", buffering=0) as file:
            shard = read_shard(
                name,
                file.fileno(),
                size,
                self.path_key,
                lambda seen: self.progress(before + seen),
                tuple(dict.fromkeys(self.suffixes.values())),
            )
            images, warnings = shard.images.values(), list[str]()
            if not shard.tar.has_end_mark:
                warnings.append(f"{format_path(name)} has no end marker: if it is truncated, samples are missing")
            if not images:
                warnings.append(f"{format_path(name)} holds no image, only {shard.suffix_summary}")
            more = {}  # the further images, in the order of the samples
            for suffix, members in shard.parts.items():
                several = [members[sample] for sample in shard.images]
                sizes, offsets = [each.size for each in several], [each.offset for each in several]
                inside = [b"%b/%b" % (shard.name, each.name) for each in several]
                more[suffix] = inside, np.array(sizes, np.int64), np.array(offsets, np.int64)
            part = _ShardContents(
                [b"%b/%b" % (shard.name, image.name) for image in images],
                np.array([image.offset for image in images], np.int64),
                np.array([image.size for image in images], np.int64),
                self._read_planned_labels(shard) if images else {},
                list_stray_files(shard),
                warnings,
                more,
                shard.left_out,
            )
            found = os.fstat(file.fileno())
        if (found.st_size, found.st_mtime_ns) != (size, int(self.files.mtimes_ns[number])):
            raise ConfigError(
                f"{self.path_key}: {format_path(name)} is still being written; list it once it is complete"
            )
        return part

    def _read_planned_labels(self, shard: Shard) -> dict[TarLabelSource, list[FieldValue]]:
        # The first shard with images makes the plan. Where no labels are configured, each shard must lead to the same.
        if self.plan is None or self.labels is None:
            labels = find_default_labels(shard) if self.labels is None else self.labels
            names = find_packed_names(shard) if self.plan is None else self.plan.names
            found = _LabelPlan(labels, find_label_sources(self.stream, labels, shard), names)
            if self.plan is not None and found.sources != self.plan.sources:
                raise ConfigError(
                    f"{self.path_key}: {format_path(shard.name)}, which has {shard.suffix_summary}, differs from the "
                    "shards before it in whether its images have a class, or in where the class is stored; write "
                    "labels, or name only shards that belong together"
                )
            self.plan = self.plan or found
        plan = self.plan
        # Labels without an image show that the image has been lost.
        suffixes = {ask.suffix for several in plan.sources.values() for ask in several if ask.suffix}
        lone = [each for suffix in suffixes for each in shard.other_files.get(suffix, {}) if each not in shard.images]
        if lone:
            raise ConfigError(
                f"{self.path_key}: {format_path(shard.name)} has labels without an image, of the samples "
                f"{format_first_names(sorted(lone))}; it has {shard.suffix_summary}: an image must have the same name "
                f"as its label file, with one of the suffixes {_IMAGE_SUFFIX_TEXT}"
                f"{suggest_near_key(lone, shard.images)}"
            )
        packed = {} if plan.names is None else {_NAMES: [plan.names]}
        return read_label_values(shard, {**plan.sources, **packed}, self.stream)
