"""What a format gives back when its samples are listed, and how images lie in files that hold many."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core.spec import LabelSpec
from streamd.dataset.manifest.columns import TextColumn

Int64s = npt.NDArray[np.int64]
LabelValues = npt.NDArray[np.int64] | npt.NDArray[np.float32] | npt.NDArray[np.uint8] | npt.NDArray[np.bytes_]
ListedValues = LabelValues | TextColumn
LocationFormatter = Callable[[int], str]  # a row's number -> where a person finds it, such as "labels.csv, line 7"

WEIGHTS_LABEL: Final = "\0weights"  # the label as which sources read weights; no text of a configuration has a NUL


def build_label_key(stream: str, label: str) -> str:
    """The key of the configuration that wants a label, or the weights."""
    return f"streams.{stream}.weights" if label == WEIGHTS_LABEL else f"streams.{stream}.labels.{label}"


@dataclass(frozen=True, slots=True)
class StorageFormat:
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
class ArrayFiles:
    """Pixels that need no decoding: files that each hold an array of images.

    `shape` (height, width, channels) of a row as it is served. The rows count through all files: `starts` has the first
    row of each and the one behind the last. Where `stored` is None, a row lies in C order, in uint8, as it is served,
    and `offsets`, in bytes, say where in its file an array begins; else the store knows.
    """

    shape: tuple[int, int, int]
    starts: tuple[int, ...]
    offsets: tuple[int, ...]
    stored: StorageFormat | None = None

    @property
    def row_bytes(self) -> int:
        return prod(self.shape)

    def locate_row(self, row: int) -> tuple[int, int]:
        """The file that holds a row, and the row's number in it."""
        file = bisect_right(self.starts, row) - 1
        return file, row - self.starts[file]


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """Files that each hold many encoded images: their `names`, relative to the root, `sizes` in bytes, and mtimes.

    `format` is the kind of source whose reader knows how images lie in them.
    """

    names: tuple[bytes, ...]
    sizes: tuple[int, ...]
    mtimes_ns: tuple[int, ...]
    format: str = "tar"


@dataclass(frozen=True, slots=True)
class ScannedSamples:
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

    `display_names` (n) are what people know the samples by where that is not a file of their own, as a pack keeps the
    names of the files that it was made of; None: as `sample_names`. Identity, split and reading go by `sample_names`.

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
    arrays: ArrayFiles | None = None
    rows: Int64s | None = None
    extra: Mapping[str, Int64s] = field(default_factory=dict)
    weights: npt.NDArray[np.float32] | None = None
    shards: ShardFiles | None = None
    display_names: Sequence[bytes] | None = None

    @property
    def samples(self) -> int:
        if self.rows is not None:
            return int(self.rows.size)
        return len(self.files) if self.arrays is None else self.arrays.starts[-1]

    def sample_names(self) -> Iterable[bytes]:
        """What each sample is called: its file, or its place in one, such as images.npy[17]."""
        if self.arrays is None:
            return self.files
        rows = range(self.samples) if self.rows is None else self.rows.tolist()
        return (build_row_name(self.files[file], row) for file, row in map(self.arrays.locate_row, rows))


def build_row_name(file: bytes, row: int) -> bytes:
    """What a sample in an array is called."""
    return b"%b[%d]" % (file, row)
