"""Further images of samples that are rows of arrays, as columns of a manifest: `array.NAME.` and what they hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from streamd.core.spec import IdentityDigest
from streamd.dataset.manifest.columns import ColumnArray, FileNames, build_name_columns, narrow_integers
from streamd.dataset.manifest.types import ArrayFiles, ImageArrays, Int64s, build_row_name

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
