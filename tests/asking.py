"""What a configuration asks of a source, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamd.dataset.manifest.types import ListedValues, Scalar
from streamd.dataset.scan import Scanned, scan, take_part


@dataclass(frozen=True)
class Label:
    type: str = "category"
    source: object = None
    classes: tuple[object, ...] | None = None

    @property
    def file(self) -> Path | None:
        return self.source if isinstance(self.source, Path) else None


@dataclass(frozen=True)
class Folder:
    path: Path
    part: str | None = None
    kind: str = "folder"


@dataclass(frozen=True)
class Table:
    path: Path
    image: str = "file"
    root: Path | None = None
    where: Mapping[str, Scalar] | None = None
    part: str | None = None
    kind: str = "table"


@dataclass(frozen=True)
class Filelist:
    path: Path
    root: Path | None = None
    part: str | None = None
    kind: str = "filelist"


@dataclass(frozen=True)
class Npy:
    path: str
    table: Path | None = None
    where: Mapping[str, Scalar] | None = None
    part: str | None = None
    range: tuple[float, float] | None = None
    kind: str = "npy"


@dataclass(frozen=True)
class Lmdb:
    path: Path
    images: str = "X"
    range: tuple[float, float] | None = None
    part: str | None = None
    kind: str = "lmdb"


@dataclass(frozen=True)
class Hdf5:
    path: Path
    images: str = "/x"
    range: tuple[float, float] | None = None
    part: str | None = None
    kind: str = "hdf5"


@dataclass(frozen=True)
class Tar:
    path: str
    part: str | None = None
    kind: str = "tar"


@dataclass(frozen=True)
class Split:
    validation: float = 0.2
    seed: int = 0
    by: str | None = None


Source = Folder | Table | Filelist | Npy | Hdf5 | Lmdb | Tar


@dataclass(frozen=True)
class Stream:
    source: Source
    labels: Mapping[str, Label] | None = None
    name: str = "train"
    split: Split | None = None
    weights: Label | None = None


def put(root: Path, *names: str) -> None:
    """Makes files that hold their own names."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def scanned(source: Source, **labels: Label) -> Scanned:
    return scan(Stream(source, labels or None), lambda _: None)


def bits(packed: ListedValues, width: int) -> list[list[int]]:
    """A column of tags as 0 and 1."""
    unpacked: list[list[int]] = np.unpackbits(np.asarray(packed, np.uint8), axis=1, count=width).tolist()
    return unpacked


def part_of(source: Source, split: Split, **labels: Label) -> Scanned:
    stream = Stream(source, labels or None, split=split)
    return take_part(stream, scan(stream, lambda _: None))


def unlabelled(source: Source) -> Scanned:
    return scan(Stream(source, {}), lambda _: None)
