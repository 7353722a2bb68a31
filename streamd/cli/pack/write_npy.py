"""`npy`: a folder of images-00000.npy, images-00001.npy and so on, with labels.parquet beside them, a row an image."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamd.cli.pack.checksums import row_sums
from streamd.cli.pack.config_snippet import stored
from streamd.cli.pack.label_cells import Values, read_as, values_of
from streamd.cli.pack.row_files import RowFiles, drop_from_memory
from streamd.cli.pack.writer import Subject, read_otherwise
from streamd.core.permutation import Ids, Words
from streamd.core.spec import LabelSpec
from streamd.dataset.arrays.store import Pixels
from streamd.errors import PackError

_LABELS: Final = "labels.parquet"
_HEADER_BYTES: Final = 128
_BYTES_BESIDE: Final = 64  # of a sample in the table: its name, mostly


class NpyWriter:
    """See Writer. `shard_bytes` is how large the pixels of one file may become."""

    def __init__(self, subject: Subject, shard_bytes: int) -> None:
        self._subject = subject
        self._shape = subject.stream.spec.image_shape
        most = max(1, shard_bytes // subject.row_bytes)
        self._rows = RowFiles(self._path, _HEADER_BYTES, subject.row_bytes, most)

    def _path(self, number: int) -> Path:
        return self._subject.product / f"images-{number:05}.npy"

    def resume(self, rows: int, place: Mapping[str, int]) -> None:
        del place
        self._subject.product.mkdir(exist_ok=True)
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
        for number, count in enumerate(self._rows.counts()):
            with self._path(number).open("r+b") as file:
                file.write(_header((count, *self._shape)))
        schema = self._table(np.empty(0, np.int64)).schema
        with pq.ParquetWriter(self._subject.product / _LABELS, schema) as writer:
            for table in self._tables(bad):
                writer.write_table(table, row_group_size=len(table))

    def _tables(self, bad: Ids) -> Iterator[pa.Table]:
        return (self._table(ids) for ids in self._subject.kept(bad) if ids.size)

    def _table(self, ids: Ids) -> pa.Table:
        manifest = self._subject.stream.manifest
        values = values_of(manifest, ids)
        return pa.table({name: _column(each, manifest.labels.get(name)) for name, each in values.items()})

    def sums(self, bad: Ids) -> Iterator[Words]:
        path = self._subject.product / _LABELS
        drop_from_memory(path)
        with pq.ParquetFile(path) as file:
            for number, table in enumerate(self._tables(bad)):
                if not file.read_row_group(number).equals(table):
                    raise read_otherwise(path)
        yield from map(row_sums, self._rows.read())

    def expected_bytes(self) -> int:
        return self._subject.stream.spec.samples * (self._subject.row_bytes + _BYTES_BESIDE)

    def serving(self, place: Path) -> dict[str, object]:
        source = {"kind": "npy", "path": str(place), "table": str(place / _LABELS)}
        spec = self._subject.stream.spec
        return {"source": source, **read_as(spec), "image": stored(spec.image)}

    def close(self) -> None:
        self._rows.close()


def _header(shape: tuple[int, ...]) -> bytes:
    """What NumPy puts before the rows: the same number of bytes for every count of them."""
    memory = io.BytesIO()
    np.lib.format.write_array_header_1_0(memory, {"descr": "|u1", "fortran_order": False, "shape": shape})
    header = memory.getvalue()
    if len(header) != _HEADER_BYTES:
        raise PackError(f"this NumPy writes headers of {len(header)} bytes; install another, or use --format hdf5")
    return header


def _column(values: Values, spec: LabelSpec | None) -> pa.Array[Any]:
    """A column of the table: numbers or texts; lists of numbers for a vector, of classes for tags."""
    if spec is not None and spec.type == "tags":
        rows, classes = np.nonzero(values)
        ends = np.searchsorted(rows, np.arange(len(values) + 1)).tolist()
        texts = pa.array([str(spec.classes[number]) for number in classes], pa.string())
        return pa.ListArray.from_arrays(ends, texts)
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
