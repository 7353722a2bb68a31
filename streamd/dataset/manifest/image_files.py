"""The files of further images of every sample, as columns of a manifest: `image.NAME.` and what they hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from streamd.core.spec import IdentityDigest
from streamd.dataset.manifest.columns import ColumnArray, FileNames, build_name_columns, narrow_integers
from streamd.dataset.manifest.types import ArrayFiles, ImageArrays, ImageFiles, Int64s, build_row_name

IMAGE_PREFIX: Final = "image."
ROW_FRAMES_PREFIX: Final = "frames."
_FRAMES: Final = "frames"


def build_image_columns(images: Mapping[str, ImageFiles]) -> dict[str, ColumnArray]:
    """Returns the columns of further images, by their names in the manifest."""
    columns: dict[str, ColumnArray] = {}
    for name, image in images.items():
        own = build_name_columns(image.files)
        own |= {"sizes": narrow_integers(image.sizes), "mtimes_ns": narrow_integers(image.mtimes_ns)}
        own |= {} if image.offsets is None else {"offset": narrow_integers(image.offsets)}
        own |= {} if image.frames is None else {_FRAMES: narrow_integers(image.frames)}
        columns |= {f"{IMAGE_PREFIX}{name}.{column}": values for column, values in own.items()}
    return columns


def encode_image_roots(images: Mapping[str, ImageFiles]) -> dict[str, bytes | None]:
    """Returns the root of each further image, as a manifest's header holds it; None is the root of the samples."""
    return {name: None if image.root is None else os.fsencode(image.root) for name, image in images.items()}


def digest_image_files(digest: IdentityDigest, images: Mapping[str, ImageFiles]) -> None:
    """Adds the names and sizes of further images to the digest of a list; without any, nothing."""
    for name in sorted(images):
        image = images[name]
        digest.add_part("image")
        digest.add_part(name)
        ends = np.cumsum([0, *map(len, image.files)], dtype="<u8")
        digest.add_part_in_pieces(int(ends[-1]), image.files)
        for values in (ends, image.sizes.astype("<i8")):
            digest.add_part(values.tobytes())
        if image.frames is not None:
            digest.add_part(f"frames {image.frames.shape[1]}")
            digest.add_part(image.frames.astype("<i8").tobytes())


def list_image_columns(images: Iterable[str], samples: int, columns: Mapping[str, int]) -> dict[str, int | None]:
    """Returns the columns that further images must have, with their numbers of rows; None where any is right.

    `columns` has the rows of those that there are.
    """
    needed: dict[str, int | None] = {}
    for name in images:
        prefix = f"{IMAGE_PREFIX}{name}."
        is_in_shards = f"{prefix}offset" in columns
        is_clip = f"{prefix}{_FRAMES}" in columns
        files = columns.get(f"{prefix}sizes", samples) if is_clip else samples
        rows = {"names": None, "offsets": files + 1, "sizes": files, "folder": files, "folders": None}
        rows |= {"folder_ends": None, **({"offset": files} if is_in_shards else {"mtimes_ns": files})}
        rows |= {_FRAMES: samples} if is_clip else {}
        needed |= {prefix + column: count for column, count in rows.items()}
    return needed


def is_frame_column(name: str) -> bool:
    """Whether a column of the manifest has the frames of clips, of any number each."""
    return name.startswith(ROW_FRAMES_PREFIX) or (name.startswith(IMAGE_PREFIX) and name.endswith(f".{_FRAMES}"))


def build_row_frame_columns(row_frames: Mapping[str, Int64s]) -> dict[str, ColumnArray]:
    """Returns the columns of clips whose frames are rows of arrays, by their names in the manifest."""
    return {f"{ROW_FRAMES_PREFIX}{name}": narrow_integers(rows) for name, rows in row_frames.items()}


def digest_row_frames(digest: IdentityDigest, row_frames: Mapping[str, Int64s]) -> None:
    """Adds the frames of clips of arrays to the digest of a list; without any, nothing."""
    for name in sorted(row_frames):
        digest.add_part(f"row frames {row_frames[name].shape[1]}")
        digest.add_part(name)
        digest.add_part(row_frames[name].astype("<i8").tobytes())


class ListedImage:
    """The files of one further image in a mapped manifest. `root` is None where it is that of the samples.

    `frames` (n, frames) has the files of each sample's clip, and is None where each sample has one file.
    """

    def __init__(self, name: str, root: bytes | None, columns: Mapping[str, ColumnArray]) -> None:
        prefix = f"{IMAGE_PREFIX}{name}."
        own = {key.removeprefix(prefix): values for key, values in columns.items() if key.startswith(prefix)}
        self.name = name
        self.root = None if root is None else Path(os.fsdecode(root))
        self.sizes = own["sizes"]
        self.mtimes_ns = own["mtimes_ns"]
        self.offsets = own.get("offset")
        self.frames = own.get(_FRAMES)
        self._names = FileNames(own)

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


def build_array_headers(images: Mapping[str, ImageArrays]) -> dict[str, ImageArrayHeader]:
    """Returns what a manifest's header says of further images."""
    return {
        name: ImageArrayHeader(image.arrays, None if image.root is None else os.fsencode(image.root))
        for name, image in images.items()
    }


def build_array_columns(images: Mapping[str, ImageArrays]) -> dict[str, ColumnArray]:
    """Returns the columns of further images, by their names in the manifest."""
    columns: dict[str, ColumnArray] = {}
    for name, image in images.items():
        own = build_name_columns(image.files)
        own |= {"sizes": narrow_integers(image.sizes), "mtimes_ns": narrow_integers(image.mtimes_ns)}
        own |= {f"{_EXTRA_PREFIX}{column}": narrow_integers(values) for column, values in image.extra.items()}
        columns |= {f"{ARRAY_PREFIX}{name}.{column}": values for column, values in own.items()}
    return columns


def digest_image_arrays(digest: IdentityDigest, images: Mapping[str, ImageArrays]) -> None:
    """Adds the arrays of further images to the digest of a list; without any, nothing."""
    for name in sorted(images):
        image = images[name]
        for part in ("array", name, msgspec.json.encode(image.arrays), b"\0".join(image.files)):
            digest.add_part(part)
        digest.add_part(image.sizes.astype("<i8").tobytes())


def list_array_columns(images: Mapping[str, ImageArrayHeader]) -> dict[str, int | None]:
    """Returns the columns that further images must have, with their numbers of rows; None where any is right."""
    needed: dict[str, int | None] = {}
    for name, image in images.items():
        files = len(image.arrays.offsets)
        rows = {"names": None, "offsets": files + 1, "sizes": files, "mtimes_ns": files, "folder": files}
        rows |= {"folders": None, "folder_ends": None}
        needed |= {f"{ARRAY_PREFIX}{name}.{column}": count for column, count in rows.items()}
    return needed


def find_array_contradiction(images: Mapping[str, ImageArrayHeader], rows: int) -> str:
    """Returns what cannot be true of further images where the samples are rows of an array of `rows`; else empty."""
    for name, image in images.items():
        starts, files = image.arrays.starts, len(image.arrays.offsets)
        if len(starts) != files + 1 or starts[-1] != rows:
            return f"{files} files of {name!r} begin at rows {starts[:8]}, of {rows}"
    return ""


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

    @staticmethod
    def from_columns(
        name: str,
        header: ImageArrayHeader,
        root: Path,
        columns: Mapping[str, ColumnArray],
        lookup_rows: Callable[[Int64s], Int64s],
    ) -> ListedArrays:
        """Returns the arrays of the image `name` among all columns of a manifest, whose samples lie below `root`."""
        prefix = f"{ARRAY_PREFIX}{name}."
        own = {key.removeprefix(prefix): values for key, values in columns.items() if key.startswith(prefix)}
        return ListedArrays(header, root, own, lookup_rows)

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
