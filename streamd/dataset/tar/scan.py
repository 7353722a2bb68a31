"""`kind: tar`: WebDataset shards, and other tars of images. Their headers are read once, their images where they lie.

Samples are in byte order of the shards' names and of the images' names in them.
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
from streamd.dataset.labels.cells import Rows
from streamd.dataset.labels.convert import labels_of
from streamd.dataset.manifest.types import Int64s, Scanned, Shards
from streamd.dataset.paths import patterns
from streamd.dataset.paths.confined import IMAGE_SUFFIXES, reading, shown, some
from streamd.dataset.paths.patterns import Files
from streamd.dataset.sources import LabelSource
from streamd.dataset.tar import TarSource
from streamd.dataset.tar.labels import Ask, Asks, Value, asks_of, columns_of, default_labels, values_of
from streamd.dataset.tar.samples import Shard, read_shard, spelled, strays
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")
_THREADS: Final = 16  # a disk answers many questions at once
_QUICK_SAMPLE_S: Final = 200e-6  # memory answers in a tenth of this, where threads would only wait for each other
_IMAGES: Final = b" ".join(IMAGE_SUFFIXES).decode()


def scan_tar(
    stream: str, source: TarSource, labels: Mapping[str, LabelSource] | None, progress: Callable[[int], None]
) -> Scanned:
    """Lists the images in shards, and what stands beside them."""
    key = f"streams.{stream}.source.path"
    files = patterns.find(source.path, key, (), lambda _: None, patterns.TARS)
    listing = _Listing(stream, files, labels, progress)
    parts = list(listing.parts())
    if not listing.samples or listing.plan is None:
        raise _no_images(listing)
    listing.report()
    names = list(chain.from_iterable(part.names for part in parts))
    rows = Rows(files.root, lambda row: shown(names[row]))
    asked = {ask for several in listing.plan.asks.values() for ask in several}
    values = {ask: list(chain.from_iterable(part.values.get(ask, []) for part in parts)) for ask in asked}
    columns = columns_of(stream, listing.plan.asks, values, rows)
    return Scanned(
        files.root,
        names,
        np.concatenate([part.sizes for part in parts]),
        np.empty(0, np.int64),
        *labels_of(listing.plan.labels, columns),
        shards=Shards(tuple(files.names), tuple(files.sizes.tolist()), tuple(files.mtimes_ns.tolist())),
        extra={
            "shard": np.repeat(np.arange(len(parts)), [len(part.names) for part in parts]),
            "offset": np.concatenate([part.offsets for part in parts]),
        },
    )


def _no_images(listing: _Listing) -> ConfigError:
    return ConfigError(
        f"{listing.key}: no images in {format_count(len(listing.files.names), 'shard')} of "
        f"{shown(listing.files.root)}; "
        f"looked for {_IMAGES}, and there is {spelled(listing.passed_over)}; correct the path, or pack images"
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The labels that are wanted, and where they are in every shard."""

    labels: Mapping[str, LabelSource]
    asks: Asks


@dataclass(frozen=True, slots=True)
class _Part:
    """What one shard gives: its images, in order, the values of what is asked for, one an image, and what to say."""

    names: list[bytes]
    offsets: Int64s
    sizes: Int64s
    values: dict[Ask, list[Value]]
    strays: Counter[bytes]
    warnings: list[str]


@dataclass(slots=True)
class _Listing:
    """The shards of one stream, read one after the other, or together where a disk is slow."""

    stream: str
    files: Files
    labels: Mapping[str, LabelSource] | None
    progress: Callable[[int], None]
    plan: _Plan | None = None
    samples: int = 0
    passed_over: Counter[bytes] = field(default_factory=Counter)  # files beside no image, by suffix

    @property
    def key(self) -> str:
        return f"streams.{self.stream}.source.path"

    def parts(self) -> Iterator[_Part]:
        """What the shards give, in their order."""
        numbers, began_s = iter(range(len(self.files.names))), time.monotonic()
        for number in numbers:
            yield self._note(self._read(number))
            if self.plan is not None and time.monotonic() - began_s > self.samples * _QUICK_SAMPLE_S:
                break
        with ThreadPoolExecutor(_THREADS, "streamd-tar") as pool:  # for those that are left, if any are
            yield from map(self._note, pool.map(self._read, numbers))

    def _note(self, part: _Part) -> _Part:
        self.samples += len(part.names)
        self.passed_over += part.strays
        for warning in part.warnings:
            _log.warning("%s: %s", self.key, warning)
        self.progress(self.samples)
        return part

    def _read(self, number: int) -> _Part:
        """Lists one shard; which others are read meanwhile makes no difference."""
        name, path = self.files.names[number], self.files.path(number)
        with reading(path, self.key):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                before = self.samples
                size = int(self.files.sizes[number])
                shard = read_shard(name, descriptor, size, self.key, lambda seen: self.progress(before + seen))
                part = self._part(shard)
                found = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        if (found.st_size, found.st_mtime_ns) != (size, int(self.files.mtimes_ns[number])):
            raise ConfigError(f"{self.key}: {shown(name)} is being written; list it when it is whole")
        return part

    def _part(self, shard: Shard) -> _Part:
        images = shard.images.values()
        return _Part(
            [b"%b/%b" % (shard.name, image.name) for image in images],
            np.array([image.offset for image in images], np.int64),
            np.array([image.size for image in images], np.int64),
            self._values(shard) if images else {},
            strays(shard),
            list(_warnings(shard)),
        )

    def _values(self, shard: Shard) -> dict[Ask, list[Value]]:
        plan = self._planned(shard)
        self._refuse_strays(shard, plan)
        return values_of(shard, plan.asks, self.stream)

    def _planned(self, shard: Shard) -> _Plan:
        """What the first shard with images decides; without labels in the configuration, all must say the same."""
        if self.plan is not None and self.labels is not None:
            return self.plan
        labels = default_labels(shard) if self.labels is None else self.labels
        plan = _Plan(labels, asks_of(self.stream, labels, shard))
        if self.plan is not None and plan.asks != self.plan.asks:
            raise ConfigError(
                f"{self.key}: {shown(shard.name)}, which has {shard.suffixes}, says otherwise than the shards before "
                "it whether images have a class, and where; write labels, or name shards that belong together"
            )
        self.plan = self.plan or plan
        return self.plan

    def _refuse_strays(self, shard: Shard, plan: _Plan) -> None:
        """Labels without an image: it has been lost."""
        suffixes = {ask.suffix for several in plan.asks.values() for ask in several if ask.suffix}
        lone = [each for suffix in suffixes for each in shard.beside.get(suffix, {}) if each not in shard.images]
        if lone:
            raise ConfigError(
                f"{self.key}: {shown(shard.name)} has labels without an image, of the samples {some(sorted(lone))}; it "
                f"has {shard.suffixes}: an image is named as its label, with one of the suffixes {_IMAGES}"
            )

    def report(self) -> None:
        """Says what is not served."""
        if self.passed_over:
            _log.info("%s: passed over files that belong to no image: %s", self.key, spelled(self.passed_over))


def _warnings(shard: Shard) -> Iterator[str]:
    if not shard.tar.ended:
        yield f"{shown(shard.name)} has no mark of its end: if it is cut, samples are missing"
    if not shard.images:
        yield f"{shown(shard.name)} holds no image, but {shard.suffixes}"
