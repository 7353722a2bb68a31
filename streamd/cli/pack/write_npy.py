"""`npy`: a folder of images-00000.npy, images-00001.npy and so on, and labels.parquet with a row for each sample.

Several images a sample have files of their own: photo-00000.npy, mask-00000.npy. Boxes and points are lists in the
table, in pixels of the delivered image.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streamd.cli.pack.batches import (
    BoxRows,
    NumberedFiles,
    PackedRows,
    PackJob,
    PackWriter,
    WholeShards,
    build_read_mismatch_error,
    combine_checksums,
    compute_box_bytes,
    compute_row_checksums,
    drop_from_page_cache,
)
from streamd.cli.pack.label_cells import (
    CellValues,
    build_decoded_pack_settings,
    collect_delivered_boxes,
    collect_sample_cells,
    is_only_image,
)
from streamd.core.sampler import Ids, Words
from streamd.core.spec import ONLY_IMAGE, LabelSpec
from streamd.dataset.arrays.store import Pixels
from streamd.dataset.manifest.columns import PACKED_TABLE
from streamd.errors import PackError

_HEADER_BYTES: Final = 128
_ONLY_STEM: Final = "images"  # what the files of the only image begin with; those of several have their names
_EXTRA_SAMPLE_BYTES: Final = 64  # for a sample's row in the table, mostly for its name
_UNBOUNDED_ROWS: Final = 1 << 62  # rows in a temporary file
RowBytes = npt.NDArray[np.uint8]


class RowFiles(NumberedFiles):
    """The files of rows `build_path(0)`, `build_path(1)`, ..., each with `rows_per_file` rows after `header_bytes`.

    Every row is written at its own offset, so a run that continues after row n overwrites rows that an interrupted run
    may have written in part.
    """

    def __init__(
        self, build_path: Callable[[int], Path], header_bytes: int, row_bytes: int, rows_per_file: int
    ) -> None:
        super().__init__(build_path)
        self.header_bytes, self.row_bytes, self.rows_per_file = header_bytes, row_bytes, rows_per_file
        self.row_count = 0

    def truncate_after_rows(self, rows: int) -> None:
        """Continues after this many rows, and removes everything after them."""
        self.row_count = rows
        number, within = divmod(rows, self.rows_per_file)
        if within and self.build_path(number).exists():
            os.truncate(self.build_path(number), self.header_bytes + within * self.row_bytes)
        self.remove_from(number + bool(within))

    def append_rows(self, images: Pixels) -> None:
        """Writes more rows."""
        while len(images):
            number, within = divmod(self.row_count, self.rows_per_file)
            part, images = images[: self.rows_per_file - within], images[self.rows_per_file - within :]
            offset = self.header_bytes + within * self.row_bytes
            descriptor = self.write_at(number, np.ascontiguousarray(part), offset)
            # The rows go to the disk at once. Otherwise it would be idle until the next sync, which would take longer.
            os.posix_fadvise(descriptor, offset, part.nbytes, os.POSIX_FADV_DONTNEED)
            self.row_count += len(part)

    def list_row_counts(self) -> list[int]:
        """Returns the number of rows of each file."""
        whole, rest = divmod(self.row_count, self.rows_per_file)
        return [self.rows_per_file] * whole + [rest] * bool(rest)

    def read_rows(self, start: int, stop: int) -> RowBytes:
        """Returns the rows from `start` to `stop`, (n, bytes of a row)."""
        rows = np.zeros((stop - start, self.row_bytes), np.uint8)
        while start < stop:
            number, within = divmod(start, self.rows_per_file)
            count = min(stop - start, self.rows_per_file - within)
            memory = memoryview(rows[len(rows) - (stop - start) :][:count].reshape(-1).data)
            offset = self.header_bytes + within * self.row_bytes
            with self.build_path(number).open("rb", buffering=0) as file:
                # Rows that the file lacks stay zero, which their checksums will show.
                while memory and (there := os.preadv(file.fileno(), [memory], offset)):
                    memory, offset = memory[there:], offset + there
            start += count
        return rows


class NpyWriter(PackWriter):
    """Writes `npy`. One file of each image takes at most `shard_bytes`, unless a single row takes more.

    Boxes and points as they are delivered are known only while rows are written, so they wait for the end as rows of
    temporary files.
    """

    def __init__(self, job: PackJob, shard_bytes: int) -> None:
        super().__init__(job)
        images = self._spec.images
        self._rows_per_file = max(1, shard_bytes // max(image.row_bytes for image in images.values()))
        self._stems = {ONLY_IMAGE: _ONLY_STEM} if is_only_image(self._spec) else {name: name for name in images}
        self._image_files = {
            name: RowFiles(partial(self._build_rows_path, name), _HEADER_BYTES, image.row_bytes, self._rows_per_file)
            for name, image in images.items()
        }
        self._box_files = {
            name: RowFiles(partial(self._build_box_path, number), 0, row_bytes, _UNBOUNDED_ROWS)
            for number, (name, row_bytes) in enumerate(compute_box_bytes(self._spec).items())
        }
        self._all_files = [*self._image_files.values(), *self._box_files.values()]
        self._files = self._all_files

    def _build_rows_path(self, image: str, number: int) -> Path:
        return self._job.product_path / f"{self._stems[image]}-{number:05}.npy"

    def _build_box_path(self, label: int, number: int) -> Path:
        """Returns the path of the only temporary file of a label; for other numbers, one at which no file is."""
        name = f"{self._job.scratch_path.name}-boxes-{label}" + (f"-{number}" if number else "")
        return self._job.scratch_path.with_name(name)

    def _open_product(self) -> None:
        self._job.product_path.mkdir(exist_ok=True)
        for files in self._all_files:
            files.truncate_after_rows(self._row_count)

    def append_rows(self, rows: PackedRows) -> Words:
        for files, array in zip(self._all_files, rows.iterate_arrays(), strict=True):
            files.append_rows(array)
        self._row_count += rows.ids.size
        whole = self._row_count // self._rows_per_file
        self.whole_shards = WholeShards(whole * self._rows_per_file, whole)
        return rows.compute_checksums()

    def finish_pack(self, bad_ids: Ids) -> None:
        self.close()
        for name, files in self._image_files.items():
            image = self._spec.images[name]
            for number, count in enumerate(files.list_row_counts()):
                with self._build_rows_path(name, number).open("r+b") as file:
                    file.write(_encode_npy_header((count, *image.shape), image.dtype))
        # An empty table has the types of all columns.
        no_boxes = {name: np.empty((0, *self._spec.labels[name].shape), np.float32) for name in self._box_files}
        schema = self._build_label_table(np.empty(0, np.int64), no_boxes).schema
        with pq.ParquetWriter(self._job.product_path / PACKED_TABLE, schema) as writer:
            for table in self._iterate_label_tables(bad_ids):
                writer.write_table(table, row_group_size=len(table))
        # The last file of each image is whole, however few rows it has.
        self.whole_shards = WholeShards(self._row_count, len(self._all_files[0].list_row_counts()))

    def _iterate_label_tables(self, bad_ids: Ids) -> Iterator[pa.Table]:
        """Yields the labels, and the boxes and points as delivered, of the pack's samples, a block at a time."""
        for rows, ids in self._job.iterate_kept_rows(bad_ids):
            boxes = {
                name: files.read_rows(rows.start, rows.stop)
                .view(np.float32)
                .reshape(-1, *self._spec.labels[name].shape)
                for name, files in self._box_files.items()
            }
            if ids.size:
                yield self._build_label_table(ids, boxes)

    def _build_label_table(self, ids: Ids, delivered: Mapping[str, BoxRows]) -> pa.Table:
        values = collect_sample_cells(self._manifest, ids)
        columns = {name: _build_label_column(each, self._manifest.labels.get(name)) for name, each in values.items()}
        for name, rows in delivered.items():
            # The cells are lists of boxes or points, each a list of numbers.
            boxes = collect_delivered_boxes(self._manifest, name, ids, rows)
            total, width = boxes.numbers.shape
            numbers: pa.Array[Any] = pa.array(boxes.numbers.reshape(-1))
            lists: pa.Array[Any] = pa.ListArray.from_arrays((np.arange(total + 1) * width).tolist(), numbers)
            columns[name] = pa.ListArray.from_arrays([0, *boxes.ends.tolist()], lists)
        return pa.table(columns)

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        path = self._job.product_path / PACKED_TABLE
        drop_from_page_cache(path)
        with pq.ParquetFile(path) as file:
            for number, table in enumerate(self._iterate_label_tables(bad_ids)):
                if not file.read_row_group(number).equals(table):
                    raise build_read_mismatch_error(path)
        for files in self._all_files:
            for number in range(len(files.list_row_counts())):
                drop_from_page_cache(files.build_path(number))
        for rows in self._iterate_row_blocks(sum(files.row_bytes for files in self._all_files)):
            yield combine_checksums(
                [compute_row_checksums(files.read_rows(rows.start, rows.stop)) for files in self._all_files]
            )

    def estimate_bytes(self) -> int:
        # Boxes and points are written twice: to temporary files, and to the table.
        boxes = 2 * sum(files.row_bytes for files in self._box_files.values())
        return self._spec.samples * (self._spec.sample_bytes + _EXTRA_SAMPLE_BYTES + boxes)

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        spec = self._spec
        source = {"kind": "npy", "path": str(pack_path), "table": str(pack_path / PACKED_TABLE)}
        if is_only_image(spec):
            return build_decoded_pack_settings(source, spec)
        # The file of each image, or the pattern of its files.
        number = "*" if len(self._all_files[0].list_row_counts()) > 1 else "00000"
        places = {name: str(pack_path / f"{self._stems[name]}-{number}.npy") for name in spec.images}
        first = next(iter(places))
        return build_decoded_pack_settings({**source, "path": places[first]}, spec, places={**places, first: None})


def _encode_npy_header(shape: tuple[int, ...], dtype: str) -> bytes:
    """Returns NumPy's header for `shape`, which has the same length for any number of rows."""
    memory = io.BytesIO()
    descr = np.dtype(dtype).newbyteorder("<").str
    np.lib.format.write_array_header_1_0(memory, {"descr": descr, "fortran_order": False, "shape": shape})
    header = memory.getvalue()
    if len(header) != _HEADER_BYTES:
        raise PackError(
            f"this NumPy writes headers of {len(header)} bytes; install another version, or use --format hdf5"
        )
    return header


def _build_label_column(values: CellValues, spec: LabelSpec | None) -> pa.Array[Any]:
    """Builds a column of numbers or texts; for a vector, of lists of numbers; for tags, of lists of classes."""
    if spec is not None and spec.type == "tags":
        rows, classes = np.nonzero(values)
        ends = np.searchsorted(rows, np.arange(len(values) + 1)).tolist()
        texts = pa.array([str(spec.classes[number]) for number in classes], pa.string())
        return pa.ListArray.from_arrays(ends, texts)
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
