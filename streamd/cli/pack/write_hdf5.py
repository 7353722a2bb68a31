"""`hdf5`: one file that h5py, PyTables and all others read.

    /images          uint8 (n, height, width, channels), in one piece and unfiltered: it is mapped, or read by offset
    /labels/NAME     one entry a row, as `label_cells` has it; texts in UTF-8 of one width; weights as /labels/weight
    /numbers/NAME    int64: the numbers of a category's classes where those are texts
    /classes/NAME    the classes of a category or of tags
    /names           what each sample was called where it comes from

The library writes none of the images: its files are lost when their writer is killed. Rows go to their places behind a
gap; when all are there, a file of the same shape is made by the library, without images, and all of it but them is
copied into the gap and behind the rows. Cut short, that is done again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamd.cli.pack.checksums import row_sums
from streamd.cli.pack.config_snippet import stored
from streamd.cli.pack.label_cells import Values, class_column, name_key, read_as, values_of
from streamd.cli.pack.row_files import RowFiles, drop_from_memory, write_at
from streamd.cli.pack.writer import Subject, read_otherwise
from streamd.core.permutation import Ids, Words
from streamd.dataset.arrays.store import Pixels
from streamd.errors import MissingExtraError, PackError
from streamd.limits import MIB

try:
    import h5py
except ModuleNotFoundError as error:
    raise MissingExtraError("h5py", "hdf5", "streamd pack --format hdf5") from error

_GAP_BYTES: Final = MIB  # before the rows
_LEAST_ALIGNED_BYTES: Final = 16384  # what is larger begins at a multiple of the gap: no metadata of the library's is
_IMAGES: Final = "images"
_UNBOUND: Final = 1 << 62  # rows in the one file
_BYTES_BESIDE: Final = 128  # of a sample: its name, mostly


class Hdf5Writer:
    """See Writer."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._rows = RowFiles(self._path, _GAP_BYTES, subject.row_bytes, _UNBOUND)

    def _path(self, number: int) -> Path:
        """There is one file; no other number has one."""
        return self._subject.product if number == 0 else self._subject.product / str(number)

    def resume(self, rows: int, place: Mapping[str, int]) -> None:
        del place
        self._rows.resume(rows)

    def append(self, ids: Ids, images: Pixels) -> Words:
        del ids
        self._rows.append(images)
        return row_sums(images)

    def sync(self) -> dict[str, int]:
        self._rows.sync()
        return {}

    def finish(self, bad: Ids) -> None:
        self._rows.close()
        self._subject.scratch.unlink(missing_ok=True)
        self._make_scratch(bad)
        rows_end = _GAP_BYTES + self._rows_together * self._subject.row_bytes
        with self._subject.scratch.open("rb") as scratch, self._subject.product.open("r+b") as product:
            end = os.fstat(scratch.fileno()).st_size
            product.truncate(end)
            _copy(scratch.fileno(), product.fileno(), range(_GAP_BYTES))
            _copy(scratch.fileno(), product.fileno(), range(rows_end, end))
        self._subject.scratch.unlink()

    @property
    def _rows_together(self) -> int:
        """Of the piece that they are stored in: more than there are, where these are too few to be aligned."""
        return max(self._rows.rows, -(-_LEAST_ALIGNED_BYTES // self._subject.row_bytes))

    def _make_scratch(self, bad: Ids) -> None:
        """The file without its images."""
        aligned = {"alignment_threshold": _LEAST_ALIGNED_BYTES, "alignment_interval": _GAP_BYTES}
        with h5py.File(self._subject.scratch, "w", **aligned) as file:
            self._make_images(file)
            for name, spec in self._subject.stream.spec.labels.items():
                if spec.classes:
                    file[f"classes/{name}"] = _bytes(class_column(spec))
            for name, shape, dtype in self._columns(bad):
                file.create_dataset(name, shape, dtype)
            for rows, name, values in self._blocks(bad):
                file[name][rows] = values

    def _make_images(self, file: h5py.File) -> None:
        rows, shape = self._rows.rows, self._subject.stream.spec.image_shape
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_obj_track_times(False)  # the same samples make the same file
        settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        most: tuple[int, ...] = (rows, *shape)
        if self._rows_together > rows:
            settings.set_chunk((self._rows_together, *shape))
            most = (h5py.h5s.UNLIMITED, *shape)
        space = h5py.h5s.create_simple((rows, *shape), most)
        images = h5py.h5d.create(file.id, _IMAGES.encode(), h5py.h5t.STD_U8LE, space, settings)
        offset = images.get_offset() if self._rows_together == rows else images.get_chunk_info(0).byte_offset
        if offset != _GAP_BYTES:
            raise PackError(f"this HDF5 library puts images at {offset}, not at {_GAP_BYTES}; use --format npy")

    def _columns(self, bad: Ids) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
        """Name, shape and dtype of what stands beside the images; a text has the width of the longest."""
        found: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        for _, name, values in self._blocks(bad):
            shape, dtype = (self._rows.rows, *values.shape[1:]), values.dtype
            found[name] = shape, max(dtype, found.get(name, (shape, dtype))[1], key=lambda each: each.itemsize)
        return [(name, *shape_and_dtype) for name, shape_and_dtype in found.items()]

    def _blocks(self, bad: Ids) -> Iterator[tuple[slice, str, Values]]:
        """What stands beside the images, some rows at a time: which, where it belongs, and its values."""
        manifest, first = self._subject.stream.manifest, 0
        names = name_key(manifest.labels)
        for ids in self._subject.kept(bad):
            rows = slice(first, first + ids.size)
            for name, values in values_of(manifest, ids).items():
                yield rows, "names" if name == names else f"labels/{name}", _bytes(values)
                spec = manifest.labels.get(name)
                if spec is not None and spec.type == "category" and values.dtype.kind == "U":
                    yield rows, f"numbers/{name}", manifest.gather_label(name, ids)
            first = rows.stop

    def sums(self, bad: Ids) -> Iterator[Words]:
        drop_from_memory(self._subject.product)
        with h5py.File(self._subject.product) as file:
            for rows, name, values in self._blocks(bad):
                if not np.array_equal(file[name][rows], values):
                    raise read_otherwise(self._subject.product)
        yield from map(row_sums, self._rows.read())

    def expected_bytes(self) -> int:
        return _GAP_BYTES + self._subject.stream.spec.samples * (self._subject.row_bytes + _BYTES_BESIDE)

    def serving(self, place: Path) -> dict[str, object]:
        spec = self._subject.stream.spec
        source = {"kind": "hdf5", "path": str(place), "images": f"/{_IMAGES}"}
        return {"source": source, **read_as(spec, "/labels/{}"), "image": stored(spec.image)}

    def close(self) -> None:
        self._rows.close()


def _bytes(values: Values) -> Values:
    """Texts in UTF-8, of a dtype that says so; numbers as they are."""
    if values.dtype.kind != "U":
        return values
    encoded = np.char.encode(values, "utf-8")
    return encoded.view(h5py.string_dtype("utf-8", max(encoded.dtype.itemsize, 1)))


def _copy(source: int, target: int, places: range) -> None:
    """Copies the bytes at these places."""
    for offset in range(places.start, places.stop, MIB):
        write_at(target, os.pread(source, min(MIB, places.stop - offset), offset), offset)
