"""Sources, labels and streams of a configuration, made directly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from streamd.dataset.arrays import NpySource
from streamd.dataset.files import FilelistSource, FolderSource, TableSource
from streamd.dataset.hdf5 import Hdf5Source
from streamd.dataset.lmdb import LmdbSource
from streamd.dataset.manifest.types import ListedValues, ScannedSamples
from streamd.dataset.scan import scan_source, select_part_samples
from streamd.dataset.sources import (
    DataSource,
    ImageSource,
    LabelSource,
    ListingRequest,
    Part,
    RawNumbers,
    Scalar,
    SplitRule,
)
from streamd.dataset.tar import TarSource
from streamd.errors import ConfigError

Folder = FolderSource
Filelist = FilelistSource
Tar = TarSource
Split = SplitRule


class Label(LabelSource):
    """A label, from a file where `source` is a path."""

    def __init__(
        self,
        type: str = "category",  # noqa: A002 - as in a configuration
        source: str | tuple[str, ...] | Path | None = None,
        classes: tuple[object, ...] | None = None,
    ) -> None:
        file = source if isinstance(source, Path) else None
        super().__init__(type, str(source) if isinstance(source, Path) else source, file, classes)


@dataclass(frozen=True)
class Table(TableSource):
    image: str = "file"


@dataclass(frozen=True)
class Lmdb(LmdbSource):
    images: str = "X"


@dataclass(frozen=True)
class Hdf5(Hdf5Source):
    images: str = "/x"


class Npy(NpySource):
    """Arrays, with what tests vary most in front."""

    def __init__(
        self,
        path: str,
        table: Path | None = None,
        where: Mapping[str, Scalar] | None = None,
        part: Part | None = None,
        range: tuple[float, float] | None = None,  # noqa: A002 - as above
        names: str | None = None,
    ) -> None:
        super().__init__(path, range, table, where, part, names)


class Stream(ListingRequest):
    """What the stream `train` asks for."""

    def __init__(
        self,
        source: DataSource,
        labels: Mapping[str, LabelSource] | None = None,
        split: SplitRule | None = None,
        weights: LabelSource | None = None,
        name: str = "train",
        images: Mapping[str, ImageSource] | None = None,
        raw: RawNumbers | None = None,
    ) -> None:
        super().__init__(name, source, split, labels, weights, images, raw)


def put(root: Path, *names: str) -> None:
    """Makes files that hold their own names."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def scanned(source: DataSource, **labels: Label) -> ScannedSamples:
    return scan_source(Stream(source, labels or None), lambda _: None)


def bits(packed: ListedValues, width: int) -> list[list[int]]:
    """A column of tags as 0 and 1."""
    unpacked: list[list[int]] = np.unpackbits(np.asarray(packed, np.uint8), axis=1, count=width).tolist()
    return unpacked


def part_of(source: DataSource, split: Split, **labels: Label) -> ScannedSamples:
    stream = Stream(source, labels or None, split=split)
    return select_part_samples(stream, scan_source(stream, lambda _: None))


def unlabelled(source: DataSource) -> ScannedSamples:
    return scan_source(Stream(source, {}), lambda _: None)


def refusal(source: DataSource, **labels: Label) -> str:
    """What is said of a source that cannot be listed."""
    with pytest.raises(ConfigError) as caught:
        scanned(source, **labels)
    return str(caught.value)


def assert_refused(source: DataSource, says: str, **labels: Label) -> None:
    """Lists a source in vain: what is said of it matches `says`."""
    with pytest.raises(ConfigError, match=says):
        scanned(source, **labels)
