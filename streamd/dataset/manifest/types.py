"""The seams of a source: what it is asked for and what it gives back.

What is asked for comes as structural types, so that no source knows the library that reads the configuration.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from streamd.core.spec import LabelSpec
from streamd.dataset.manifest.text_column import TextColumn

Scalar = str | int | float | bool
Int64s = npt.NDArray[np.int64]
LabelValues = npt.NDArray[np.int64] | npt.NDArray[np.float32] | npt.NDArray[np.uint8] | npt.NDArray[np.bytes_]
ListedValues = LabelValues | TextColumn
Place = Callable[[int], str]  # a row's number -> where a person finds it, such as "labels.csv, line 7"

WEIGHTS: Final = "\0weights"  # the label as which sources read weights; no text of a configuration has a NUL


def key_of(stream: str, label: str) -> str:
    """The key of the configuration that wants a label, or the weights."""
    return f"streams.{stream}.weights" if label == WEIGHTS else f"streams.{stream}.labels.{label}"


class WantedLabel(Protocol):
    """One configured label."""

    @property
    def type(self) -> str:
        """`category`, `int`, `float`, `string` or `tags`; `weight` for the weights of samples."""

    @property
    def source(self) -> object:
        """The column or columns it is taken from; None means the label's own name."""

    @property
    def file(self) -> Path | None:
        """The .npy file it is taken from, if it is from one."""

    @property
    def classes(self) -> tuple[object, ...] | None:
        """The classes in their fixed order; None means that the data decide."""


@dataclass(frozen=True, slots=True)
class DefaultLabel:
    """What folders and lists that name classes have where no label is configured: `label`, a category."""

    type: str = "category"
    source: object = None
    file: Path | None = None
    classes: tuple[object, ...] | None = None


class WantedSource(Protocol):
    """Where the samples are; `kind` says which of the protocols below it also fits."""

    @property
    def kind(self) -> str: ...

    @property
    def part(self) -> str | None:
        """`train`, `validation` or `all`; None is all."""


class WantedFolder(WantedSource, Protocol):
    """`kind: folder`."""

    @property
    def path(self) -> Path: ...


class WantedTable(WantedSource, Protocol):
    """`kind: table`."""

    @property
    def path(self) -> Path: ...

    @property
    def image(self) -> str:
        """The column that holds file names."""

    @property
    def root(self) -> Path | None:
        """What file names are relative to; None means the table's own folder."""

    @property
    def where(self) -> Mapping[str, Scalar] | None:
        """The values that columns must have in the rows that are taken; None takes all rows."""


class WantedFilelist(WantedSource, Protocol):
    """`kind: filelist`."""

    @property
    def path(self) -> Path: ...

    @property
    def root(self) -> Path | None:
        """What file names are relative to; None means the list's own folder."""


class WantedNpy(WantedSource, Protocol):
    """`kind: npy`."""

    @property
    def path(self) -> str:
        """A file, a folder of files, or a pattern with the wildcards * ? and []."""

    @property
    def range(self) -> tuple[float, float] | None:
        """The numbers that become 0 and 255; None for uint8 as it is."""

    @property
    def table(self) -> Path | None:
        """The table of labels, a row an image; None where files hold them, or there are none."""

    @property
    def where(self) -> Mapping[str, Scalar] | None:
        """The values that columns of the table must have in the rows that are taken; None takes all rows."""


class WantedTar(WantedSource, Protocol):
    """`kind: tar`."""

    @property
    def path(self) -> str:
        """A file, a folder of files, or a pattern with the wildcards * ? and []."""


class WantedLmdb(WantedSource, Protocol):
    """`kind: lmdb`."""

    @property
    def path(self) -> Path:
        """The folder that holds data.mdb, or a data file of another name."""

    @property
    def images(self) -> str:
        """The name of the images among the arrays of a sample."""

    @property
    def range(self) -> tuple[float, float] | None:
        """The numbers that become 0 and 255, for images that are not uint8."""


class WantedHdf5(WantedSource, Protocol):
    """`kind: hdf5`."""

    @property
    def path(self) -> Path: ...

    @property
    def images(self) -> str:
        """The array of images, such as /training_samples."""

    @property
    def range(self) -> tuple[float, float] | None:
        """The numbers that become 0 and 255; None for uint8 as it is."""


class WantedSplit(Protocol):
    """How a source is split in two."""

    @property
    def validation(self) -> float:
        """The fraction held back, above 0."""

    @property
    def seed(self) -> int: ...

    @property
    def by(self) -> str | None:
        """The column whose equal values stay together; None splits by file name."""


class WantedStream(Protocol):
    """One configured stream, as far as sources care."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> WantedSource: ...

    @property
    def split(self) -> WantedSplit | None: ...

    @property
    def labels(self) -> Mapping[str, WantedLabel] | None:
        """None: those that the source has by itself; empty: none at all."""

    @property
    def weights(self) -> WantedLabel | None:
        """Where the weights of the samples are; None: they weigh 1."""


@dataclass(frozen=True, slots=True)
class Stored:
    """How images lie in a store that is no plain array of uint8.

    `store` is the store that reads them, a kind of source. `place` is what they are called in it. `dtype` is NumPy's
    name of their numbers, and `range` the two of them that become 0 and 255, None for uint8. `channels_first` says that
    a row is (channels, height, width). Columns of the manifest that the store needs are its own affair.
    """

    store: str
    place: str = ""
    dtype: str = "|u1"
    range: tuple[float, float] | None = None
    channels_first: bool = False


@dataclass(frozen=True, slots=True)
class Arrays:
    """Pixels that need no decoding: files that each hold an array of images.

    `shape` (height, width, channels) of a row as it is served. The rows count through all files: `starts` has the first
    row of each and the one behind the last. Where `stored` is None, a row lies in C order, in uint8, as it is served,
    and `offsets`, in bytes, say where in its file an array begins; else the store knows.
    """

    shape: tuple[int, int, int]
    starts: tuple[int, ...]
    offsets: tuple[int, ...]
    stored: Stored | None = None

    @property
    def row_bytes(self) -> int:
        return prod(self.shape)

    def place(self, row: int) -> tuple[int, int]:
        """The file that holds a row, and the row's number in it."""
        file = bisect_right(self.starts, row) - 1
        return file, row - self.starts[file]


@dataclass(frozen=True, slots=True)
class Shards:
    """Files that each hold many encoded images: their `names`, relative to the root, `sizes` in bytes, and mtimes."""

    names: tuple[bytes, ...]
    sizes: tuple[int, ...]
    mtimes_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scanned:
    """The samples of one stream, as the disk showed them; position i everywhere is sample id i.

    `files` are relative to `root`, as the file system spells them. `sizes` (n,) int64 in bytes, `mtimes_ns` (n,) int64.
    `labels` hold one array each: int64 for category and int, float32 for float, (n,) or (n, k); UTF-8 bytes of fixed
    width for string, (n,), perhaps in blocks; packed bits for tags, see `tags`. `fixed` names the labels whose classes
    the configuration lists; their order is not ours to change. `groups` (n) is what the split goes by where that is not
    the file name.

    Where samples are rows of `arrays`, `files`, `sizes` and `mtimes_ns` are those of the files that hold them. `rows`
    (n,) has the row of each sample; None: all rows are samples, in order. `weights` (n,) float32, finite and not below
    0, is what each sample weighs in a batch; None: 1. `extra` are columns, of any length, that the store needs to find
    them; they are kept in the manifest and are no part of what makes two lists equal.

    Where samples lie in `shards`, `files` are what they are called, a shard's name and the one in it. `mtimes_ns` is
    empty, since a sample is as old as its shard, and `extra` has the columns `shard`, a number, and `offset` in bytes.
    """

    root: Path
    files: Sequence[bytes]
    sizes: Int64s
    mtimes_ns: Int64s
    labels: dict[str, ListedValues]
    specs: dict[str, LabelSpec]
    fixed: frozenset[str] = frozenset()
    groups: list[bytes] | None = None
    arrays: Arrays | None = None
    rows: Int64s | None = None
    extra: Mapping[str, Int64s] = field(default_factory=dict)
    weights: npt.NDArray[np.float32] | None = None
    shards: Shards | None = None

    @property
    def samples(self) -> int:
        if self.rows is not None:
            return int(self.rows.size)
        return len(self.files) if self.arrays is None else self.arrays.starts[-1]

    def names(self) -> Iterable[bytes]:
        """What each sample is called: its file, or its place in one, such as images.npy[17]."""
        if self.arrays is None:
            return self.files
        rows = range(self.samples) if self.rows is None else self.rows.tolist()
        return (name_of_row(self.files[file], row) for file, row in map(self.arrays.place, rows))


def name_of_row(file: bytes, row: int) -> bytes:
    """What a sample in an array is called."""
    return b"%b[%d]" % (file, row)
