"""`npy`: a folder of images-00000.npy, images-00001.npy and so on, and labels.parquet with a row for each sample.

Several images a sample have files of their own: photo-00000.npy, mask-00000.npy. Boxes and points are lists in the
table, in pixels of the delivered image.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamd.cli.pack.config_snippet import build_decoded_pack_settings, is_only_image
from streamd.cli.pack.label_cells import CellValues, collect_delivered_boxes, collect_sample_cells
from streamd.cli.pack.row_files import (
    KeptRows,
    PackJob,
    RowFiles,
    RowFilesWriter,
    build_read_mismatch_error,
    drop_from_page_cache,
)
from streamd.core.permutation import Ids, Words
from streamd.core.spec import ONLY_IMAGE, ImageSpec, LabelSpec
from streamd.dataset.manifest.columns import PACKED_TABLE, RaggedColumn
from streamd.errors import PackError

_HEADER_BYTES: Final = 128
_ONLY_STEM: Final = "images"
_EXTRA_SAMPLE_BYTES: Final = 64  # for a sample's row in the table, mostly for its name


class NpyWriter(RowFilesWriter):
    """Writes `npy`. One file of each image takes at most `shard_bytes`, unless a single row takes more."""

    def __init__(self, job: PackJob, shard_bytes: int) -> None:
        images = job.stream.spec.images
        most = max(1, shard_bytes // max(image.row_bytes for image in images.values()))
        self._stems = choose_file_stems(images)
        super().__init__(
            job,
            {
                name: RowFiles(partial(self._build_rows_path, name), _HEADER_BYTES, image.row_bytes, most)
                for name, image in images.items()
            },
        )

    def _build_rows_path(self, image: str, number: int) -> Path:
        return self._job.product_path / f"{self._stems[image]}-{number:05}.npy"

    def resume_after_rows(self, rows: int, position: Mapping[str, int]) -> None:
        self._job.product_path.mkdir(exist_ok=True)
        super().resume_after_rows(rows, position)

    def finish_pack(self, bad_ids: Ids) -> None:
        self.close()
        for name, files in self._image_files.items():
            image = self._job.stream.spec.images[name]
            for number, count in enumerate(files.list_row_counts()):
                with self._build_rows_path(name, number).open("r+b") as file:
                    file.write(_encode_npy_header((count, *image.shape), image.dtype))
        with pq.ParquetWriter(self._job.product_path / PACKED_TABLE, self._build_empty_table().schema) as writer:
            for table in self._iterate_label_tables(bad_ids):
                writer.write_table(table, row_group_size=len(table))

    def _build_empty_table(self) -> pa.Table:
        spec, none = self._job.stream.spec, np.empty(0, np.int64)
        boxes = {name: np.empty((0, *spec.labels[name].shape), np.float32) for name in self._box_files}
        return self._build_label_table(KeptRows(slice(0, 0), none, boxes))

    def _iterate_label_tables(self, bad_ids: Ids) -> Iterator[pa.Table]:
        return (self._build_label_table(kept) for kept in self.iterate_kept_rows(bad_ids) if kept.ids.size)

    def _build_label_table(self, kept: KeptRows) -> pa.Table:
        manifest = self._job.stream.manifest
        values = collect_sample_cells(manifest, kept.ids)
        columns = {name: _build_label_column(each, manifest.labels.get(name)) for name, each in values.items()}
        boxes = {
            name: _build_box_column(collect_delivered_boxes(manifest, name, kept.ids, rows))
            for name, rows in kept.boxes.items()
        }
        return pa.table({**columns, **boxes})

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        path = self._job.product_path / PACKED_TABLE
        drop_from_page_cache(path)
        with pq.ParquetFile(path) as file:
            for number, table in enumerate(self._iterate_label_tables(bad_ids)):
                if not file.read_row_group(number).equals(table):
                    raise build_read_mismatch_error(path)
        yield from self.read_row_checksums()

    def estimate_bytes(self) -> int:
        samples = self._job.stream.spec.samples
        return samples * (self._job.row_bytes + _EXTRA_SAMPLE_BYTES) + self._estimate_box_bytes()

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        spec = self._job.stream.spec
        source = {"kind": "npy", "path": str(pack_path), "table": str(pack_path / PACKED_TABLE)}
        if is_only_image(spec):
            return build_decoded_pack_settings(source, spec)
        places = {name: self._build_served_path(pack_path, name) for name in spec.images}
        first = next(iter(places))
        return build_decoded_pack_settings({**source, "path": places[first]}, spec, places={**places, first: None})

    def _build_served_path(self, pack_path: Path, image: str) -> str:
        """Returns the file of an image, or the pattern of its files."""
        number = "*" if len(self._image_files[image].list_row_counts()) > 1 else "00000"
        return str(pack_path / f"{self._stems[image]}-{number}.npy")


def choose_file_stems(images: Mapping[str, ImageSpec]) -> dict[str, str]:
    """Returns what the files of each image begin with: images for the only one, else its name."""
    return {ONLY_IMAGE: _ONLY_STEM} if images.keys() == {ONLY_IMAGE} else {name: name for name in images}


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


def _build_box_column(boxes: RaggedColumn) -> pa.Array[Any]:
    """Builds a column whose cells are lists of boxes or points, each a list of numbers."""
    total, width = boxes.numbers.shape
    numbers: pa.Array[Any] = pa.array(boxes.numbers.reshape(-1))
    rows: pa.Array[Any] = pa.ListArray.from_arrays((np.arange(total + 1) * width).tolist(), numbers)
    cells: pa.Array[Any] = pa.ListArray.from_arrays([0, *boxes.ends.tolist()], rows)
    return cells


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
