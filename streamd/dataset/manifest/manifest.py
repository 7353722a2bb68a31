"""The manifest: the frozen, columnar list of a stream's samples, in one file that every process maps.

    magic 8 | version u32 | header bytes u32 | BLAKE2b of the header 32 | header, JSON | columns, each 64-aligned

All numbers are little-endian; whole numbers have the narrowest type that holds their column. The columns are those of
`columns`, `sizes` and `mtimes_ns` (n), and `label.NAME` as in `ScannedSamples`. Where samples are rows of arrays, these
are the files' columns, except for the labels, and `rows` has the row of each sample unless all rows are samples.
`weights` is float32 (n), if samples have their own. `display.NAME` are the columns of display names, if those differ
from the file names. Of boxes and points, `label.NAME` has where the rows of each sample end in `boxes.NAME`, float32
(total, k): see `RaggedColumn`. `extra.NAME` are what a store needs, or what locates samples in shards; the mtimes of
shards are in the header.

Offsets of columns count from the end of the header, rounded up to 64. Only the header is read when a manifest is
opened, so that takes as long for a billion samples as for ten.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from streamd.core.host import open_regular_file
from streamd.core.spec import IdentityDigest, LabelSpec
from streamd.dataset.manifest.columns import (
    ROWS_PREFIX,
    ColumnArray,
    FileNames,
    RaggedColumn,
    TextColumn,
    build_label_columns,
    build_name_columns,
    narrow_integers,
)
from streamd.dataset.manifest.types import (
    DRAWN_SIZE_COLUMNS,
    ArrayFiles,
    ImageArrays,
    ImageFiles,
    Int64s,
    LabelValues,
    ScannedSamples,
    ShardFiles,
    build_row_name,
)
from streamd.errors import ConfigError
from streamd.limits import TENSOR_ALIGN_BYTES

_NAMES_PER_BLOCK: Final = 1 << 16  # digested at a time; ten million names at once would take a gigabyte


def compute_content_id(scanned: ScannedSamples) -> str:
    """Returns a digest over names, sizes, labels and weights: equal wherever and whenever the data were copied."""
    digest = IdentityDigest()
    digest.add_part("streamd content 1")
    ends = np.zeros(len(scanned.files) + 1, dtype="<u8")
    np.cumsum(np.fromiter(map(len, scanned.files), dtype="<u8", count=len(scanned.files)), out=ends[1:])
    names = iter(scanned.files)
    digest.add_part_in_pieces(int(ends[-1]), iter(lambda: b"".join(islice(names, _NAMES_PER_BLOCK)), b""))
    # The ends tell `ab`, `c` from `a`, `bc`. Numbers are digested in their own types here, never in the narrow ones of
    # the file, so that the digest does not depend on the form of the manifest.
    _digest_columns(digest, ends, scanned.sizes)
    for name in sorted(scanned.labels):
        spec, values = scanned.specs[name], scanned.labels[name]
        kind = f"{spec.type} {spec.width}" if spec.width else spec.type
        for part in (name, kind, msgspec.json.encode(spec.classes), *((spec.unit,) if spec.is_ragged else ())):
            digest.add_part(part)
        several = (values.ends.astype(np.int64), values.numbers) if isinstance(values, RaggedColumn) else (values,)
        _digest_columns(digest, *several)
    if scanned.arrays is not None:
        digest.add_part(msgspec.json.encode(scanned.arrays))
        if scanned.rows is not None:
            _digest_columns(digest, scanned.rows.astype("<i8"))
    if scanned.weights is not None:
        digest.add_part("weights")
        _digest_columns(digest, scanned.weights)
    # Further images, and the frames of clips. Without any, nothing is added.
    for name, image in sorted(scanned.images.items()):
        digest.add_part("image")
        digest.add_part(name)
        ends = np.cumsum([0, *map(len, image.files)], dtype="<u8")
        digest.add_part_in_pieces(int(ends[-1]), image.files)
        _digest_columns(digest, ends, image.sizes.astype("<i8"))
        if image.frames is not None:
            digest.add_part(f"frames {image.frames.shape[1]}")
            _digest_columns(digest, image.frames.astype("<i8"))
    for name, of_arrays in sorted(scanned.image_arrays.items()):
        for part in ("array", name, msgspec.json.encode(of_arrays.arrays), b"\0".join(of_arrays.files)):
            digest.add_part(part)
        digest.add_part(of_arrays.sizes.astype("<i8").tobytes())
    for name, rows in sorted(scanned.row_frames.items()):
        for part in (f"row frames {rows.shape[1]}", name, rows.astype("<i8").tobytes()):
            digest.add_part(part)
    return digest.hex_text()


def _digest_columns(digest: IdentityDigest, *columns: WritableColumn) -> None:
    for column in columns:
        digest.add_part_in_pieces(column.nbytes, _iterate_column_bytes(column))


def _iterate_column_bytes(column: WritableColumn) -> Iterator[memoryview]:
    """Yields the bytes of a column, little-endian, some rows at a time."""
    for block in column.iterate_blocks() if isinstance(column, TextColumn) else [column]:
        ordered = block.astype(block.dtype.newbyteorder("<"), copy=False)
        yield np.ascontiguousarray(ordered).reshape(-1).view(np.uint8).data


def write_manifest(path: Path, scanned: ScannedSamples, *, config_id: str) -> None:
    """Writes the manifest of `scanned`, whole or not at all, readable by this user only.

    `config_id` is kept unchanged; the caller recognises manifests of other configurations by it. Raises ConfigError
    when the disk refuses.
    """
    columns: dict[str, WritableColumn] = dict(build_name_columns(scanned.files))
    columns |= {"sizes": narrow_integers(scanned.sizes), "mtimes_ns": narrow_integers(scanned.mtimes_ns)}
    columns |= {} if scanned.rows is None else {"rows": narrow_integers(scanned.rows.astype(np.int64))}
    for name, values in scanned.labels.items():
        columns |= build_label_columns(name, values)
    columns |= {f"extra.{name}": narrow_integers(values) for name, values in scanned.extra.items()}
    if scanned.display_names is not None:
        names = build_name_columns(scanned.display_names)
        columns |= {f"{DISPLAY_PREFIX}{name}": column for name, column in names.items()}
    for name, image in scanned.images.items():
        more = {"offset": image.offsets, _FRAMES: image.frames}
        given = {column: values for column, values in more.items() if values is not None}
        columns |= _build_file_columns(f"{IMAGE_PREFIX}{name}.", image, given)
    for name, of_arrays in scanned.image_arrays.items():
        extra = {f"{_EXTRA_PREFIX}{column}": values for column, values in of_arrays.extra.items()}
        columns |= _build_file_columns(f"{ARRAY_PREFIX}{name}.", of_arrays, extra)
    columns |= {f"{ROW_FRAMES_PREFIX}{name}": narrow_integers(rows) for name, rows in scanned.row_frames.items()}
    columns |= {} if scanned.weights is None else {"weights": narrow_integers(scanned.weights)}
    header = ManifestHeader(
        root=os.fsencode(scanned.root),
        samples=scanned.samples,
        content_id=compute_content_id(scanned),
        config_id=config_id,
        labels=scanned.specs,
        columns=compute_extents(columns),
        arrays=scanned.arrays,
        shards=scanned.shards,
        images={name: _encode_root(image.root) for name, image in scanned.images.items()},
        image_arrays={
            name: ImageArrayHeader(image.arrays, _encode_root(image.root))
            for name, image in scanned.image_arrays.items()
        },
    )
    _write_file(path, header, columns.values())


def _build_file_columns(
    prefix: str, image: ImageFiles | ImageArrays, more: Mapping[str, Int64s]
) -> dict[str, ColumnArray]:
    """Returns the columns of the files of one further image, and `more` of them, by their names in the manifest."""
    numbers = {"sizes": image.sizes, "mtimes_ns": image.mtimes_ns, **more}
    own = build_name_columns(image.files) | {name: narrow_integers(values) for name, values in numbers.items()}
    return {prefix + column: values for column, values in own.items()}


def _encode_root(root: Path | None) -> bytes | None:
    """Returns the root of a further image, as a header holds it; None is the root of the samples."""
    return None if root is None else os.fsencode(root)


@dataclass(frozen=True, slots=True, eq=False)
class CopiedFiles:
    """Where the files of one further image are copied to: `root` None is that of the samples; `mtimes_ns` in ns."""

    root: Path | None
    mtimes_ns: Int64s


def write_manifest_copy(
    path: Path,
    listed: Manifest,
    *,
    root: Path,
    mtimes_ns: Int64s,
    config_id: str,
    images: Mapping[str, CopiedFiles],
) -> None:
    """Writes a list again for the same files below another `root`, as `write_manifest` does.

    `mtimes_ns` are those of the files there, in ns: one for each sample, array file or shard of the list. `images` has
    the files of each further image; the mtimes of those that lie in shards are empty.
    """
    columns, shards = dict(listed.columns_by_name), listed.shards
    if shards is None:
        columns["mtimes_ns"] = narrow_integers(mtimes_ns)
    else:
        shards = replace(shards, mtimes_ns=tuple(mtimes_ns.tolist()))
    for name, files in images.items():
        prefix = IMAGE_PREFIX if name in listed.images else ARRAY_PREFIX
        columns[f"{prefix}{name}.mtimes_ns"] = narrow_integers(files.mtimes_ns)
    roots = {name: _encode_root(each.root) for name, each in images.items()}
    header = replace(
        listed.header,
        root=os.fsencode(root),
        config_id=config_id,
        columns=compute_extents(columns),
        shards=shards,
        images={name: roots[name] for name in listed.images},
        image_arrays={name: ImageArrayHeader(image.arrays, roots[name]) for name, image in listed.image_arrays.items()},
    )
    _write_file(path, header, columns.values())


def _write_file(path: Path, header: ManifestHeader, columns: Iterable[WritableColumn]) -> None:
    try:
        number, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
        try:
            with os.fdopen(number, "wb") as file:
                encoded = msgspec.json.encode(header)
                file.write(_PREFIX.pack(_MAGIC, VERSION, len(encoded), _compute_header_checksum(encoded)) + encoded)
                # Each column begins at a multiple of 64 in the file. So does the first one, from which
                # `compute_extents` counts.
                for column in columns:
                    file.write(bytes(align_offset(file.tell()) - file.tell()))
                    file.writelines(_iterate_column_bytes(column))
                file.flush()
                # The data are on the disk before the name refers to them: after a power cut the name has the old file
                # or the whole new one. Processes that have mapped the old file keep it.
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise ConfigError(
            f"cannot write the manifest {str(path)!r}: {error.strerror or error}; make room or give streamd another "
            "state directory that it may write"
        ) from error


def sync_folder(folder: Path) -> None:
    """Syncs a folder, so that a power cut cannot undo that a file was created or renamed in it. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Manifest:
    """A mapped manifest, made by `Manifest.open`. Arrays are read-only views of the mapping, and outlive `close`.

    `samples` is their number. `root` is the folder that names are relative to. `labels` has a LabelSpec for each name.
    `content_id` is that of `compute_content_id`, and `config_id` the one that was written. `sizes` (n,) are in bytes,
    and `mtimes_ns` (n,) in ns, whole numbers of any type. `arrays` describes the files that samples are rows of, or is
    None; with it, sizes and mtimes are those of the files. `shards` describes the files that samples lie in, or is
    None. `images` has the files of further images by name, and `image_arrays` their arrays. `row_frames` has the rows
    of the frames of each sample by image, where that is a clip of arrays. `columns_by_name` has all columns as they are
    stored.
    """

    def __init__(self, path: Path, header: ManifestHeader, data: ColumnArray) -> None:
        self.path = path
        self.header = header
        self.samples = header.samples
        self.root = Path(os.fsdecode(header.root))
        self.labels: Mapping[str, LabelSpec] = header.labels
        self.content_id = header.content_id
        self.config_id = header.config_id
        self.arrays = header.arrays
        self.shards = header.shards
        self._shard_mtimes_ns = np.array(() if header.shards is None else header.shards.mtimes_ns, np.int64)
        self.columns_by_name = {
            name: np.asarray(data[place.offset : place.end_offset]).view(place.dtype).reshape(place.shape)
            for name, place in header.columns.items()
        }
        self._names: FileNames | None = FileNames(self.columns_by_name)
        shown = _select_columns(self.columns_by_name, DISPLAY_PREFIX)
        self._display_names = FileNames(shown) if shown else None
        self.images = {
            name: ListedImage(name, root, _select_columns(self.columns_by_name, f"{IMAGE_PREFIX}{name}."))
            for name, root in header.images.items()
        }
        self.image_arrays = {
            name: ListedArrays(
                image, self.root, _select_columns(self.columns_by_name, f"{ARRAY_PREFIX}{name}."), self.lookup_rows
            )
            for name, image in header.image_arrays.items()
        }
        self.row_frames = _select_columns(self.columns_by_name, ROW_FRAMES_PREFIX)
        self._list_id = ""
        self._pictures = 0

    @staticmethod
    def open(path: Path) -> Manifest:
        """Maps the manifest at `path`. Raises ConfigError when there is none, or it is damaged or something else."""
        try:
            with open_regular_file(path) as opened:
                file: ColumnArray = np.memmap(opened, dtype=np.uint8, mode="r")
        except FileNotFoundError as error:
            raise ConfigError(f"there is no manifest at {str(path)!r}; streamd serve writes it") from error
        except OSError as error:
            raise ConfigError(f"cannot read the manifest {str(path)!r}: {error.strerror or error}") from error
        except ValueError as error:  # an empty file, which cannot be mapped
            raise build_unusable_error(path, "it is empty") from error
        header, start = read_manifest_header(path, file)
        return Manifest(path, header, file[start:])

    @property
    def list_id(self) -> str:
        """A digest of what a sample's number means, equal where content and mtimes are.

        It is computed at the first access.
        """
        if not self._list_id:
            digest = IdentityDigest()
            digest.add_part("streamd list 1")
            digest.add_part(self.content_id)
            mtimes_ns = self._shard_mtimes_ns if self.shards is not None else self._mapped_column("mtimes_ns")
            _digest_columns(digest, mtimes_ns.astype(np.int64, copy=False))
            for name in DRAWN_SIZE_COLUMNS:  # they decide where boxes lie, and whether a sample is bad
                if (sizes := self.columns_by_name.get(f"extra.{name}")) is not None:
                    _digest_columns(digest, sizes.astype(np.int64, copy=False))
            of_images = [each.mtimes_ns for each in self.images.values()]
            of_images += [each.mtimes_ns for each in self.image_arrays.values()]
            for mtimes_ns in of_images:
                _digest_columns(digest, mtimes_ns.astype(np.int64, copy=False))
            self._list_id = digest.hex_text()
        return self._list_id

    @property
    def sizes(self) -> ColumnArray:
        return self._mapped_column("sizes")

    @property
    def mtimes_ns(self) -> ColumnArray:
        return (
            self._mapped_column("mtimes_ns") if self.shards is None else self.lookup_mtimes_ns(np.arange(self.samples))
        )

    def lookup_mtimes_ns(self, ids: npt.NDArray[np.int64]) -> ColumnArray:
        """Returns the mtime of the file of each sample, or of its shard, in ns, (len(ids),)."""
        if self.shards is None:
            return self._mapped_column("mtimes_ns")[ids]
        return self._shard_mtimes_ns[self.find_extra_column("shard")[ids]]

    def lookup_sample_bytes(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the bytes of each sample, of its files or its row, (len(ids),)."""
        if self.arrays is not None:
            several = (self.arrays, *(image.arrays for image in self.image_arrays.values()))
            return np.full(ids.size, sum(each.row_bytes for each in several), np.int64)
        # The images are added one by one, since most samples have one.
        own = self.sizes[ids].astype(np.int64)
        return sum((image.lookup_bytes(ids) for image in self.images.values()), own)

    def label_column(self, name: str) -> LabelValues:
        """Returns the column of a label, as in `ScannedSamples`: (n,) or (n, k). Raises KeyError for an unknown one."""
        return self._widen_label_values(name, self._mapped_column(f"{LABEL_PREFIX}{name}"))

    def ragged_column(self, name: str) -> RaggedColumn:
        """Returns the boxes or points of a label, as the data have them. Raises KeyError for another label."""
        return RaggedColumn(self._mapped_column(f"{LABEL_PREFIX}{name}"), self._mapped_column(f"{ROWS_PREFIX}{name}"))

    def gather_label(self, name: str, ids: npt.NDArray[np.int64]) -> ColumnArray:
        """Returns the values of a label that a batch of samples `ids` carries, (B,) or (B, k).

        Tags are 0 and 1, uint8.
        """
        values, spec = self._mapped_column(f"{LABEL_PREFIX}{name}")[ids], self.labels[name]
        return (
            np.unpackbits(values, axis=1, count=spec.width)
            if spec.type == "tags"
            else self._widen_label_values(name, values)
        )

    def find_extra_column(self, name: str) -> ColumnArray:
        """Returns a column that the stream's store needs, whole numbers of any type.

        Raises KeyError for an unknown one.
        """
        return self._mapped_column(f"extra.{name}")

    def lookup_drawn_size(self, sample_id: int) -> tuple[int, int] | None:
        """Returns the (height, width) that the labels of a sample were drawn on; None where the data do not say it."""
        height, width = (self.columns_by_name.get(f"extra.{name}") for name in DRAWN_SIZE_COLUMNS)
        if height is None or width is None or not width[sample_id]:
            return None
        return int(height[sample_id]), int(width[sample_id])

    @property
    def has_weights(self) -> bool:
        """Whether samples have weights of their own."""
        return "weights" in self.columns_by_name

    def gather_weights(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Returns the weights of the samples `ids`, (B,): 1 unless the list has weights."""
        return self._mapped_column("weights")[ids] if self.has_weights else np.ones(ids.shape, np.float32)

    def _widen_label_values(self, name: str, values: ColumnArray) -> ColumnArray:
        """Returns values of a label in the type they have outside this file: classes and whole numbers in int64."""
        return values.astype(np.int64, copy=False) if self.labels[name].type in {"category", "int"} else values

    def lookup_rows(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the row of `arrays` of each sample. An id of -1, which is no sample, stays -1."""
        # Indexing with -1 reads the last row, which `where` then discards.
        return np.where(ids < 0, ids, self._mapped_column("rows")[ids]) if "rows" in self.columns_by_name else ids

    def file_name(self, sample_id: int) -> bytes:
        """Returns the file name of a sample, relative to `root`, or its row in a file.

        Raises IndexError outside [0, samples).
        """
        if not 0 <= sample_id < self.samples:
            raise IndexError(f"sample id {sample_id} asked of {self.samples} samples")
        if self.arrays is None:
            return self._lookup_name(sample_id)
        file, row = self.arrays.locate_row(int(self.lookup_rows(np.array(sample_id))))
        return build_row_name(self._lookup_name(file), row)

    def display_name(self, sample_id: int) -> bytes:
        """Returns the name that people know a sample by: the name in the data of a pack, else the file name."""
        name = b"" if self._display_names is None else self._display_names.file_name(sample_id)
        return name or self.file_name(sample_id)

    def format_row(self, image: str, row: int) -> str:
        """Returns the file and the number of a row of an image's arrays, such as frames.npy[17]."""
        listed = self.image_arrays.get(image)
        arrays, names = (
            (self.arrays, self.array_file_names()) if listed is None else (listed.arrays, listed.array_file_names())
        )
        assert arrays is not None  # noqa: S101 - the caller asks for samples that are rows
        file, place = arrays.locate_row(row)
        return build_row_name(names[file], place).decode(errors="backslashreplace")

    def array_file_names(self) -> list[bytes]:
        """Returns the names of the files of `arrays`, relative to `root`."""
        return [self._lookup_name(file) for file in range(len(self.arrays.offsets))] if self.arrays is not None else []

    def _lookup_name(self, number: int) -> bytes:
        if self._names is None:
            raise self._closed_error()
        return self._names.file_name(number)

    def count_pictures(self) -> int:
        """Returns the number of pictures: of the files of samples, or of an image of which there are more, as of clips.

        A file counts once, however many samples show it. The first call reads all names: a second for ten million.
        """
        if self._names is None:
            raise self._closed_error()
        if not self._pictures:
            has_files = self.arrays is None and self.shards is None
            own = self._names.count_distinct() if has_files else self.samples
            self._pictures = max([own, *(image.count_pictures() for image in self.images.values())])
        return self._pictures

    def file_names(self, ids: Iterable[int]) -> list[bytes]:
        """Returns the file names of samples, in the order of `ids`."""
        return [self.file_name(int(sample_id)) for sample_id in ids]

    def display_names(self, ids: Iterable[int]) -> list[bytes]:
        """Returns the display names of samples, in the order of `ids`."""
        return [self.display_name(int(sample_id)) for sample_id in ids]

    def close(self) -> None:
        """Drops the mapping; it ends with the last array taken from it."""
        self.columns_by_name.clear()
        self.images.clear()
        self.image_arrays.clear()
        self.row_frames.clear()
        self._names = self._display_names = None

    def _mapped_column(self, name: str) -> ColumnArray:
        if not self.columns_by_name:
            raise self._closed_error()
        return self.columns_by_name[name]

    def _closed_error(self) -> ValueError:
        return ValueError(f"the manifest {str(self.path)!r} is closed")


def _select_columns(columns: Mapping[str, ColumnArray], prefix: str) -> dict[str, ColumnArray]:
    """Returns the columns whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}


# --- The files of further images of every sample, as columns of a manifest: `image.NAME.` and what they hold.

IMAGE_PREFIX: Final = "image."
ROW_FRAMES_PREFIX: Final = "frames."
_FRAMES: Final = "frames"


class ListedImage:
    """The files of one further image in a mapped manifest. `root` is None where it is that of the samples.

    `frames` (n, frames) has the files of each sample's clip, and is None where each sample has one file.
    """

    def __init__(self, name: str, root: bytes | None, columns: Mapping[str, ColumnArray]) -> None:
        self.name = name
        self.root = None if root is None else Path(os.fsdecode(root))
        self.has_own_root = root is not None
        self.sizes = columns["sizes"]
        self.mtimes_ns = columns["mtimes_ns"]
        self.offsets = columns.get("offset")
        self.frames = columns.get(_FRAMES)
        self._names = FileNames(columns)

    def file_name(self, file: int) -> bytes:
        """Returns the name of a file, relative to the root. Unless there are frames, its number is the sample's."""
        return self._names.file_name(file)

    def describe_file(self, file: int) -> str:
        """Returns the names of the image and of a file, as the reason of a verdict begins if that file is at fault."""
        return f"{self.name} {self.file_name(file).decode(errors='backslashreplace')}"

    def count_pictures(self) -> int:
        """Returns the number of files; one that is listed for several samples or frames counts once."""
        return self._names.count_distinct() if self.offsets is None else self.sizes.size

    def file_names(self) -> list[bytes]:
        """Returns the names of all files, relative to the root."""
        return [self._names.file_name(file) for file in range(self.sizes.size)]

    def list_frame_files(self, sample_id: int) -> list[int]:
        """Returns the numbers of the files of a sample: those of its frames, or its only one."""
        return [sample_id] if self.frames is None else self.frames[sample_id].tolist()

    def lookup_bytes(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the bytes of the files of each sample, (len(ids),)."""
        if self.frames is None:
            return self.sizes[ids].astype(np.int64)
        total: npt.NDArray[np.int64] = self.sizes[self.frames[ids]].astype(np.int64).sum(axis=1)
        return total


# --- Further images of samples that are rows of arrays, as columns of a manifest: `array.NAME.` and what they hold.


ARRAY_PREFIX: Final = "array."
_EXTRA_PREFIX: Final = "extra."


@dataclass(frozen=True, slots=True)
class ImageArrayHeader:
    """What the header of a manifest says of the arrays of one image; `root` None is that of the samples."""

    arrays: ArrayFiles
    root: bytes | None = None


class ListedArrays:
    """The arrays of one further image in a mapped manifest; a `ListedRows`. The rows are those of the samples."""

    def __init__(
        self,
        header: ImageArrayHeader,
        root: Path,
        columns: Mapping[str, ColumnArray],
        lookup_rows: Callable[[Int64s], Int64s],
    ) -> None:
        self.arrays = header.arrays
        self.has_own_root = header.root is not None
        self.root = root if header.root is None else Path(os.fsdecode(header.root))
        self.sizes = columns["sizes"]
        self.mtimes_ns = columns["mtimes_ns"]
        self._columns = columns
        self._names = FileNames(columns)
        self._lookup_rows = lookup_rows

    def array_file_names(self) -> list[bytes]:
        """Returns the names of the files, relative to the root."""
        return [self._names.file_name(file) for file in range(len(self.arrays.offsets))]

    def lookup_rows(self, ids: Int64s) -> Int64s:
        """Returns the row of each sample. An id of -1, which is no sample, stays -1."""
        return self._lookup_rows(ids)

    def find_extra_column(self, name: str) -> ColumnArray:
        """Returns a column that the store needs, whole numbers of any type. Raises KeyError for an unknown one."""
        return self._columns[f"{_EXTRA_PREFIX}{name}"]

    def file_name(self, sample_id: int) -> bytes:
        """Returns the file and the row of a sample, such as masks.npy[17]."""
        file, row = self.arrays.locate_row(int(self._lookup_rows(np.array(sample_id))))
        return build_row_name(self._names.file_name(file), row)


# --- The header of a manifest: what the file holds, and where. Whoever wrote it, it has to agree with itself.
#
# `manifest` says how the file is built.


WritableColumn = ColumnArray | TextColumn

DISPLAY_PREFIX: Final = "display."
LABEL_PREFIX: Final = "label."
_MAGIC: Final = b"streamdM"
VERSION: Final = 2
READABLE_VERSIONS: Final = (1, 2)
_PREFIX: Final = struct.Struct("<8sII32s")
_INTEGER_DTYPES: Final = re.compile(r"[<|][iu][1248]")
_DTYPES: Final = {  # of the columns of labels, by NumPy's names, little-endian
    "category": _INTEGER_DTYPES,
    "int": _INTEGER_DTYPES,
    "float": re.compile(r"<f[48]"),
    "string": re.compile(r"\|S[1-9]\d{0,8}"),
    "tags": re.compile(r"\|u1"),
}


@dataclass(frozen=True, slots=True)
class ColumnExtent:
    """Where a column lies. `offset` is in bytes from the first column."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def end_offset(self) -> int:
        return self.offset + prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class ManifestHeader:
    root: bytes
    samples: int
    content_id: str
    config_id: str
    labels: dict[str, LabelSpec]
    columns: dict[str, ColumnExtent]
    arrays: ArrayFiles | None = None
    shards: ShardFiles | None = None
    images: dict[str, bytes | None] = field(default_factory=dict)
    image_arrays: dict[str, ImageArrayHeader] = field(default_factory=dict)


_header_decoder: Final = msgspec.json.Decoder(ManifestHeader)


def compute_extents(columns: Mapping[str, WritableColumn]) -> dict[str, ColumnExtent]:
    places: dict[str, ColumnExtent] = {}
    offset = 0
    for name, column in columns.items():
        places[name] = ColumnExtent(column.dtype.str, column.shape, offset)
        offset = align_offset(places[name].end_offset)
    return places


def align_offset(offset: int) -> int:
    return -(-offset // TENSOR_ALIGN_BYTES) * TENSOR_ALIGN_BYTES


def _compute_header_checksum(header: bytes) -> bytes:
    return hashlib.blake2b(header, digest_size=32).digest()


def read_manifest_header(path: Path, file: ColumnArray) -> tuple[ManifestHeader, int]:
    """Returns the header, and where the columns begin. Raises ConfigError for a file that cannot be used."""
    if file.size < _PREFIX.size:
        raise build_unusable_error(path, "it is too short")
    magic, version, length, checksum = _PREFIX.unpack(file[: _PREFIX.size].tobytes())
    if magic != _MAGIC:
        raise build_unusable_error(path, "it is not a manifest")
    if version not in READABLE_VERSIONS:
        raise build_unusable_error(
            path, f"it has version {version}, but this streamd reads {' and '.join(map(str, READABLE_VERSIONS))}"
        )
    encoded = file[_PREFIX.size : _PREFIX.size + length].tobytes()
    # Only the header has a checksum. To check the columns, too, every process that maps the file would have to read all
    # of it.
    if _compute_header_checksum(encoded) != checksum:
        raise build_unusable_error(path, "its header is damaged")
    try:
        header = _header_decoder.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise build_unusable_error(path, f"its header is of another kind: {error}") from error
    contradiction = _find_contradiction(header)
    if contradiction:
        raise build_unusable_error(path, f"its header contradicts itself: {contradiction}")
    start = align_offset(_PREFIX.size + length)
    # The mapping is as long as the file, and a slice beyond its end is silently cut. Without this check, a truncated
    # file would fail later, with NumPy's error about shapes.
    if start + max(place.end_offset for place in header.columns.values()) > file.size:
        raise build_unusable_error(path, f"it is truncated at {file.size} bytes")
    return header, start


def _find_contradiction(header: ManifestHeader) -> str:
    """Returns what in a header cannot be true; empty if all can. The values in the columns are not read.

    A checksum proves that a header is as it was written, and not that the program that wrote it was right.
    """
    for name, extent in header.columns.items():
        dtypes, width = _find_column_form(header, name)
        has_other_width = extent.shape[1:] != ((width,) if width else ())
        is_sized = bool(extent.shape) and min(extent.shape) >= 0 and extent.offset >= 0
        if not dtypes.fullmatch(extent.dtype) or has_other_width or not is_sized:
            return f"column {name!r} is {extent.dtype} {extent.shape} at {extent.offset}"
    for name, rows in _list_needed_columns(header).items():
        column = header.columns.get(name)
        if column is None or rows not in {None, column.shape[0]}:
            return f"column {name!r} has {'no' if column is None else column.shape[0]} rows"
    shards, arrays = header.shards, header.arrays
    if shards is not None and not len(shards.names) == len(shards.sizes) == len(shards.mtimes_ns):
        return f"{len(shards.names)} shards have {len(shards.sizes)} sizes and {len(shards.mtimes_ns)} mtimes"
    if arrays is None:
        return f"{len(header.image_arrays)} images are rows, and samples are not" if header.image_arrays else ""
    has_right_count = "rows" in header.columns or arrays.starts[-1:] == (header.samples,)
    if len(arrays.starts) != len(arrays.offsets) + 1 or not has_right_count:
        return f"{len(arrays.offsets)} files begin at rows {arrays.starts[:8]}, of {header.samples}"
    for name, image in header.image_arrays.items():
        starts, files = image.arrays.starts, len(image.arrays.offsets)
        if len(starts) != files + 1 or starts[-1] != arrays.starts[-1]:
            return f"{files} files of {name!r} begin at rows {starts[:8]}, of {arrays.starts[-1]}"
    return ""


def _find_column_form(header: ManifestHeader, name: str) -> tuple[re.Pattern[str], int]:
    """Returns the dtypes that a column may have, and its width: 0 for shape (n,)."""
    if name == "weights":
        return _DTYPES["float"], 0
    if name.startswith(ROW_FRAMES_PREFIX) or (name.startswith(IMAGE_PREFIX) and name.endswith(f".{_FRAMES}")):
        return _INTEGER_DTYPES, header.columns[name].shape[-1]
    spec = header.labels.get(name.removeprefix(LABEL_PREFIX)) if name.startswith(LABEL_PREFIX) else None
    rows = header.labels.get(name.removeprefix(ROWS_PREFIX)) if name.startswith(ROWS_PREFIX) else None
    if rows is not None:
        return _DTYPES["float"], rows.width
    if spec is None or spec.is_ragged:
        return _DTYPES["int"], 0
    return _DTYPES[spec.type], max(1, -(-spec.width // 8)) if spec.type == "tags" else spec.width


def _list_needed_columns(header: ManifestHeader) -> dict[str, int | None]:
    """Returns the columns that a manifest must have, with their numbers of rows; None where any number is right."""
    samples, columns = header.samples, header.columns
    files = samples if header.arrays is None else len(header.arrays.offsets)
    needed: dict[str, int | None] = {"names": None, "offsets": files + 1, "sizes": files}
    needed |= {"mtimes_ns": files} if header.shards is None else {"extra.shard": samples, "extra.offset": samples}
    needed |= {f"{LABEL_PREFIX}{name}": samples for name in header.labels}
    needed |= {f"{ROWS_PREFIX}{name}": None for name, spec in header.labels.items() if spec.is_ragged}
    needed |= {name: samples for name in columns if name in {"weights", "rows"} or name.startswith(ROW_FRAMES_PREFIX)}
    # Of further images: the names, sizes and mtimes of their files. Those in shards have offsets instead of mtimes.
    counts: dict[str, int] = {}
    for name in header.images:
        prefix = f"{IMAGE_PREFIX}{name}."
        counts[prefix] = samples
        if f"{prefix}{_FRAMES}" in columns:
            needed[f"{prefix}{_FRAMES}"] = samples
            counts[prefix] = columns[f"{prefix}sizes"].shape[0] if f"{prefix}sizes" in columns else samples
    counts |= {f"{ARRAY_PREFIX}{name}.": len(image.arrays.offsets) for name, image in header.image_arrays.items()}
    for prefix, of_image in counts.items():
        is_in_shards = prefix.startswith(IMAGE_PREFIX) and f"{prefix}offset" in columns
        rows = {"names": None, "offsets": of_image + 1, "sizes": of_image, "folder": of_image, "folders": None}
        rows |= {"folder_ends": None, "offset" if is_in_shards else "mtimes_ns": of_image}
        needed |= {prefix + column: count for column, count in rows.items()}
    if any(name.startswith(DISPLAY_PREFIX) for name in columns):
        needed |= {f"{DISPLAY_PREFIX}names": None, f"{DISPLAY_PREFIX}offsets": samples + 1}
    for prefix, names in (("", files), (DISPLAY_PREFIX, samples)):
        if f"{prefix}folder" in columns:
            needed |= {f"{prefix}folder": names, f"{prefix}folders": None, f"{prefix}folder_ends": None}
    return needed


def build_unusable_error(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the manifest {str(path)!r} cannot be used: {why}; remove it, and it will be built again from the data"
    )
