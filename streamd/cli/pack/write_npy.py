"""`npy`: a folder of images-00000.npy, images-00001.npy and so on, and labels.parquet with a row for each image."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamd.cli.pack.checksums import compute_row_checksums
from streamd.cli.pack.config_snippet import build_decoded_pack_settings
from streamd.cli.pack.label_cells import CellValues, collect_sample_cells
from streamd.cli.pack.row_files import RowFiles, RowFilesWriter, drop_from_page_cache
from streamd.cli.pack.writer import PackJob, build_read_mismatch_error
from streamd.core.permutation import Ids, Words
from streamd.core.spec import LabelSpec
from streamd.dataset.manifest.packed_names import PACKED_TABLE
from streamd.errors import PackError

_HEADER_BYTES: Final = 128
_EXTRA_SAMPLE_BYTES: Final = 64  # for a sample's row in the table, mostly for its name


class NpyWriter(RowFilesWriter):
    """Writes `npy`. The pixels of one file take at most `shard_bytes`, unless a single image takes more."""

    def __init__(self, job: PackJob, shard_bytes: int) -> None:
        most = max(1, shard_bytes // job.row_bytes)
        super().__init__(job, RowFiles(self._build_images_path, _HEADER_BYTES, job.row_bytes, most))

    def _build_images_path(self, number: int) -> Path:
        return self._job.product_path / f"images-{number:05}.npy"

    def resume_after_rows(self, rows: int, position: Mapping[str, int]) -> None:
        self._job.product_path.mkdir(exist_ok=True)
        super().resume_after_rows(rows, position)

    def finish_pack(self, bad_ids: Ids) -> None:
        self._row_files.close()
        for number, count in enumerate(self._row_files.list_row_counts()):
            with self._build_images_path(number).open("r+b") as file:
                file.write(_encode_npy_header((count, *self._job.stream.spec.image_shape)))
        schema = self._build_label_table(np.empty(0, np.int64)).schema
        with pq.ParquetWriter(self._job.product_path / PACKED_TABLE, schema) as writer:
            for table in self._iterate_label_tables(bad_ids):
                writer.write_table(table, row_group_size=len(table))

    def _iterate_label_tables(self, bad_ids: Ids) -> Iterator[pa.Table]:
        return (self._build_label_table(ids) for ids in self._job.iterate_kept_ids(bad_ids) if ids.size)

    def _build_label_table(self, ids: Ids) -> pa.Table:
        manifest = self._job.stream.manifest
        values = collect_sample_cells(manifest, ids)
        return pa.table({name: _build_label_column(each, manifest.labels.get(name)) for name, each in values.items()})

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        path = self._job.product_path / PACKED_TABLE
        drop_from_page_cache(path)
        with pq.ParquetFile(path) as file:
            for number, table in enumerate(self._iterate_label_tables(bad_ids)):
                if not file.read_row_group(number).equals(table):
                    raise build_read_mismatch_error(path)
        yield from map(compute_row_checksums, self._row_files.read_rows())

    def estimate_bytes(self) -> int:
        return self._job.stream.spec.samples * (self._job.row_bytes + _EXTRA_SAMPLE_BYTES)

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        source = {"kind": "npy", "path": str(pack_path), "table": str(pack_path / PACKED_TABLE)}
        return build_decoded_pack_settings(source, self._job.stream.spec)


def _encode_npy_header(shape: tuple[int, ...]) -> bytes:
    """Returns NumPy's header for `shape`, which has the same length for any number of rows."""
    memory = io.BytesIO()
    np.lib.format.write_array_header_1_0(memory, {"descr": "|u1", "fortran_order": False, "shape": shape})
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
