"""The result of listing the samples of a source, and how images lie in files that hold many."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from streamd.core.spec import LabelSpec
from streamd.dataset.manifest.columns import RaggedColumn, TextColumn

Int64s = npt.NDArray[np.int64]
LabelValues = npt.NDArray[np.int64] | npt.NDArray[np.float32] | npt.NDArray[np.uint8] | npt.NDArray[np.bytes_]
ListedValues = LabelValues | TextColumn | RaggedColumn
_WholeNumber = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]  # what a column can hold
LocationFormatter = Callable[[int], str]  # a row's number -> where a person finds it, such as "labels.csv, line 7"

DRAWN_SIZE_COLUMNS: Final = ("drawn_height", "drawn_width")
WEIGHTS_LABEL: Final = "\0weights"  # the label under which sources read weights; no text of a configuration has a NUL


def build_drawn_size_columns(sizes: Int64s) -> dict[str, Int64s]:
    """Returns the columns of `ScannedSamples.extra` with the sizes that labels were drawn on, (n, 2), if any is known.

    Each is height and width in pixels, 0 where it is not known.
    """
    return dict(zip(DRAWN_SIZE_COLUMNS, sizes.T, strict=True)) if sizes.any() else {}


def build_label_key(stream: str, label: str) -> str:
    """Returns the configuration key of a label, or of the weights."""
    return f"streams.{stream}.weights" if label == WEIGHTS_LABEL else f"streams.{stream}.labels.{label}"


@dataclass(frozen=True, slots=True)
class StorageFormat:
    """How images lie in a store that is no plain array of uint8.

    `store` names the store that reads them, usually as the kind of the source. `place` is their name in the file.
    `dtype` is NumPy's name of their dtype. `range` has the two numbers that become 0 and 255; where it is None, numbers
    are served as they are stored.
    `channels_first` means that a row is (channels, height, width). The store may keep further columns in the manifest,
    which only it understands.
    """

    store: str
    place: str = ""
    dtype: str = "|u1"
    range: tuple[float, float] | None = None
    channels_first: bool = False


@dataclass(frozen=True, slots=True)
class ArrayFiles:
    """Pixels that need no decoding: files that each hold an array of images.

    `shape` is (height, width, channels) of a row as it is served. Rows are numbered through all files: `starts` has the
    first row of each file, and the number of all rows at the end. Where `stored` is None, rows are uint8 in C order, as
    they are served, and `offsets` says where the array begins in its file, in bytes. Otherwise the store knows where
    rows lie.
    """

    shape: tuple[int, int, int]
    starts: tuple[int, ...]
    offsets: tuple[int, ...]
    stored: StorageFormat | None = None

    @property
    def served_dtype(self) -> np.dtype[Any]:
        """The dtype in which rows are served: uint8, or that of numbers that are served as they are stored."""
        if self.stored is None or self.stored.range is not None:
            return np.dtype(np.uint8)
        return np.dtype(self.stored.dtype).newbyteorder("=")

    @property
    def row_bytes(self) -> int:
        """The bytes of a row as it is served."""
        return prod(self.shape) * self.served_dtype.itemsize

    def locate_row(self, row: int) -> tuple[int, int]:
        """Returns the file that holds a row, and the row's number in it."""
        file = bisect_right(self.starts, row) - 1
        return file, row - self.starts[file]


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """Files that each hold many encoded images: their `names`, relative to the root, `sizes` in bytes, and mtimes.

    `format` is the kind of source whose reader knows how images lie in them.
    """

    names: tuple[bytes, ...]
    sizes: tuple[_WholeNumber, ...]
    mtimes_ns: tuple[_WholeNumber, ...]
    format: str = "tar"


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """The files of one further image of every sample, (n,) each, as in `ScannedSamples`.

    `files` are relative to `root`; None means the root of the samples. Where samples lie in shards, this image lies in
    the same shard, from `offsets` on, and `mtimes_ns` is empty.

    Of clips, `frames` (n, frames) has the place in `files` of each frame of each sample, and `files` are any number:
    the clips of neighbouring samples share their pictures.
    """

    files: Sequence[bytes]
    sizes: Int64s
    mtimes_ns: Int64s
    root: Path | None = None
    offsets: Int64s | None = None
    frames: Int64s | None = None

    def select_rows(self, rows: Int64s) -> ImageFiles:
        """Returns the files of the samples `rows`."""
        if self.frames is not None:
            used, places = np.unique(self.frames[rows], return_inverse=True)
            frames = places.reshape(-1, self.frames.shape[1])
            files = [self.files[place] for place in used.tolist()]
            return ImageFiles(files, self.sizes[used], self.mtimes_ns[used], self.root, frames=frames)
        return ImageFiles(
            [self.files[row] for row in rows.tolist()],
            self.sizes[rows],
            self.mtimes_ns if self.offsets is not None else self.mtimes_ns[rows],
            self.root,
            None if self.offsets is None else self.offsets[rows],
        )


@dataclass(frozen=True, slots=True)
class ImageArrays:
    """One further image of every sample, where samples are rows of arrays: the files that hold it.

    Row i of `arrays` belongs to row i of the samples' own. `files`, `sizes` and `mtimes_ns` have one entry a file, and
    `extra` what its store needs, as in `ScannedSamples`. `root` None means the root of the samples.
    """

    arrays: ArrayFiles
    files: Sequence[bytes]
    sizes: Int64s
    mtimes_ns: Int64s
    root: Path | None = None
    extra: Mapping[str, Int64s] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScannedSamples:
    """The samples of one stream, as they were on the disk. Position i in every column is sample id i.

    `files` are relative to `root`, as the file system spells them. `sizes` (n,) int64 are in bytes, and `mtimes_ns`
    (n,) int64. `labels` has one array for each label: int64 for category and int, float32 for float, (n,) or (n, k);
    UTF-8 bytes of fixed width for string, (n,), perhaps as a TextColumn; packed bits for tags, see `tags`; a
    RaggedColumn for boxes and points, in the picture's own pixels or as fractions of its sides. `fixed`
    names the labels whose classes the configuration lists, in an order that must not change. `groups` (n) are the
    values by which samples are split where those are not the file names.

    Where samples are rows of `arrays`, `files`, `sizes` and `mtimes_ns` are those of the files that hold them. `rows`
    (n,) has the row of each sample; None means that all rows are samples, in order. `weights` (n,) float32, finite and
    not below 0, are the samples' weights in a batch; None means 1. `extra` has columns of any length that the store
    needs to find the samples. They are kept in the manifest, and do not count when two lists are compared. Of loose
    files, `extra` has the columns of `build_drawn_size_columns`, if the data say what their labels were drawn on.

    `display_names` (n) are the names that people know the samples by, where those are not their files' names: a pack
    keeps the names of the files that it was made of. None means the names of `sample_names`. Identity, split and
    reading use `sample_names`.

    Where samples lie in `shards`, each of `files` is a shard's name and the name of the image in it. `mtimes_ns` is
    empty, since a sample is as old as its shard, and `extra` has the columns `shard`, a number, and `offset`, in bytes.

    `images` has the files of further images by name; `files` are those of the first. Where samples are rows of arrays,
    `image_arrays` has the arrays of further images. `row_frames` has the rows of the frames of each sample's clip, by
    image, (n, frames) each: a row has the same number in the arrays of all images.
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
    images: Mapping[str, ImageFiles] = field(default_factory=dict)
    image_arrays: Mapping[str, ImageArrays] = field(default_factory=dict)
    row_frames: Mapping[str, Int64s] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        if self.rows is not None:
            return int(self.rows.size)
        return len(self.files) if self.arrays is None else self.arrays.starts[-1]

    def sample_names(self) -> Iterable[bytes]:
        """Returns the name of each sample: its file, or its place in one, such as images.npy[17]."""
        if self.arrays is None:
            return self.files
        rows = range(self.samples) if self.rows is None else self.rows.tolist()
        return (build_row_name(self.files[file], row) for file, row in map(self.arrays.locate_row, rows))


def build_row_name(file: bytes, row: int) -> bytes:
    """Returns the name of a sample in an array."""
    return b"%b[%d]" % (file, row)
