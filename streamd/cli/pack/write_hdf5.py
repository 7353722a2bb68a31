"""`hdf5`: one file, which h5py, PyTables and other programs can read.

    /images          uint8 (n, height, width, channels), in one piece and unfiltered: it is mapped, or read by offset
    /labels/NAME     one entry for each row, as in `label_cells`; texts in UTF-8 of one width; weights: /labels/weight
    /numbers/NAME    int64: the numbers of a category's classes, if these are texts
    /classes/NAME    the classes of a category or of tags
    /names           the original name of each sample

The library does not write the images, because it leaves an unusable file when its process is killed. The rows are
written after a gap. At the end, the library creates a scratch file of the same shape without the images, and all other
bytes of it are copied into the gap and after the rows. If this is interrupted, it is done again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamd.cli.pack.checksums import compute_row_checksums
from streamd.cli.pack.config_snippet import build_decoded_pack_settings
from streamd.cli.pack.label_cells import CellValues, build_class_array, collect_sample_cells
from streamd.cli.pack.row_files import RowFiles, RowFilesWriter, drop_from_page_cache, write_all_at
from streamd.cli.pack.writer import PackJob, build_read_mismatch_error
from streamd.core.permutation import Ids, Words
from streamd.dataset.manifest.packed_names import PACKED_IMAGES_ARRAY, PACKED_NAMES_ARRAY, choose_name_key
from streamd.errors import MissingExtraError, PackError
from streamd.limits import MIB

try:
    import h5py
except ModuleNotFoundError as error:
    raise MissingExtraError("h5py", "hdf5", "streamd pack --format hdf5") from error

_GAP_BYTES: Final = MIB  # before the rows
_MIN_ALIGNED_BYTES: Final = 16384  # larger objects begin at a multiple of the gap; the library's metadata is smaller
_UNBOUNDED_ROWS: Final = 1 << 62  # rows in the one file
_EXTRA_SAMPLE_BYTES: Final = 128  # for each sample, mostly for its name


class Hdf5Writer(RowFilesWriter):
    """Writes `hdf5`."""

    def __init__(self, job: PackJob) -> None:
        super().__init__(job, RowFiles(self._build_hdf5_path, _GAP_BYTES, job.row_bytes, _UNBOUNDED_ROWS))

    def _build_hdf5_path(self, number: int) -> Path:
        """Returns the path of the only file, whose number is 0; for other numbers, a path at which no file can be."""
        return self._job.product_path if number == 0 else self._job.product_path / str(number)

    def finish_pack(self, bad_ids: Ids) -> None:
        self._row_files.close()
        self._job.scratch_path.unlink(missing_ok=True)
        self._write_scratch_file(bad_ids)
        rows_end = _GAP_BYTES + self._rows_per_chunk * self._job.row_bytes
        with self._job.scratch_path.open("rb") as scratch, self._job.product_path.open("r+b") as product:
            end = os.fstat(scratch.fileno()).st_size
            product.truncate(end)
            _copy_byte_range(scratch.fileno(), product.fileno(), range(_GAP_BYTES))
            _copy_byte_range(scratch.fileno(), product.fileno(), range(rows_end, end))
        self._job.scratch_path.unlink()

    @property
    def _rows_per_chunk(self) -> int:
        """The rows of the one chunk: more than there are if these are too few bytes to be aligned."""
        return max(self._row_files.row_count, -(-_MIN_ALIGNED_BYTES // self._job.row_bytes))

    def _write_scratch_file(self, bad_ids: Ids) -> None:
        """Writes a file of the pack's shape, without its images."""
        aligned = {"alignment_threshold": _MIN_ALIGNED_BYTES, "alignment_interval": _GAP_BYTES}
        with h5py.File(self._job.scratch_path, "w", **aligned) as file:
            self._create_images_dataset(file)
            for name, spec in self._job.stream.spec.labels.items():
                if spec.classes:
                    file[f"classes/{name}"] = _encode_text_values(build_class_array(spec))
            for name, shape, dtype in self._find_column_shapes(bad_ids):
                file.create_dataset(name, shape, dtype)
            for rows, name, values in self._iterate_column_blocks(bad_ids):
                file[name][rows] = values

    def _create_images_dataset(self, file: h5py.File) -> None:
        rows, shape = self._row_files.row_count, self._job.stream.spec.image_shape
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_obj_track_times(False)  # the same samples make the same file
        settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        most: tuple[int, ...] = (rows, *shape)
        if self._rows_per_chunk > rows:
            settings.set_chunk((self._rows_per_chunk, *shape))
            most = (h5py.h5s.UNLIMITED, *shape)
        space = h5py.h5s.create_simple((rows, *shape), most)
        images = h5py.h5d.create(file.id, PACKED_IMAGES_ARRAY.encode(), h5py.h5t.STD_U8LE, space, settings)
        offset = images.get_offset() if self._rows_per_chunk == rows else images.get_chunk_info(0).byte_offset
        if offset != _GAP_BYTES:
            raise PackError(f"this HDF5 library puts images at {offset}, not at {_GAP_BYTES}; use --format npy")

    def _find_column_shapes(self, bad_ids: Ids) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
        """Returns name, shape and dtype of each column beside the images; texts have the width of the longest."""
        found: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        for _, name, values in self._iterate_column_blocks(bad_ids):
            shape, dtype = (self._row_files.row_count, *values.shape[1:]), values.dtype
            found[name] = shape, max(dtype, found.get(name, (shape, dtype))[1], key=lambda each: each.itemsize)
        return [(name, *shape_and_dtype) for name, shape_and_dtype in found.items()]

    def _iterate_column_blocks(self, bad_ids: Ids) -> Iterator[tuple[slice, str, CellValues]]:
        """Yields the columns beside the images, some rows at a time: the rows, the column's name, and its values."""
        manifest, first = self._job.stream.manifest, 0
        names = choose_name_key(manifest.labels)
        for ids in self._job.iterate_kept_ids(bad_ids):
            rows = slice(first, first + ids.size)
            for name, values in collect_sample_cells(manifest, ids).items():
                yield rows, PACKED_NAMES_ARRAY if name == names else f"labels/{name}", _encode_text_values(values)
                spec = manifest.labels.get(name)
                if spec is not None and spec.type == "category" and values.dtype.kind == "U":
                    yield rows, f"numbers/{name}", manifest.gather_label(name, ids)
            first = rows.stop

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        drop_from_page_cache(self._job.product_path)
        with h5py.File(self._job.product_path) as file:
            for rows, name, values in self._iterate_column_blocks(bad_ids):
                if not np.array_equal(file[name][rows], values):
                    raise build_read_mismatch_error(self._job.product_path)
        yield from map(compute_row_checksums, self._row_files.read_rows())

    def estimate_bytes(self) -> int:
        return _GAP_BYTES + self._job.stream.spec.samples * (self._job.row_bytes + _EXTRA_SAMPLE_BYTES)

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        source = {"kind": "hdf5", "path": str(pack_path), "images": f"/{PACKED_IMAGES_ARRAY}"}
        return build_decoded_pack_settings(source, self._job.stream.spec, "/labels/{}")


def _encode_text_values(values: CellValues) -> CellValues:
    """Encodes texts in UTF-8, with a dtype that says so; returns numbers as they are."""
    if values.dtype.kind != "U":
        return values
    encoded = np.char.encode(values, "utf-8")
    return encoded.view(h5py.string_dtype("utf-8", max(encoded.dtype.itemsize, 1)))


def _copy_byte_range(source: int, target: int, offsets: range) -> None:
    """Copies the bytes at these offsets from one file to the other."""
    for offset in range(offsets.start, offsets.stop, MIB):
        write_all_at(target, os.pread(source, min(MIB, offsets.stop - offset), offset), offset)
