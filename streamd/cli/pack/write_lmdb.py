"""`lmdb`: a folder in the layout of ml-pyxis, one value a sample: its image as X, its labels by their names.

Several images a sample lie under their own names. Boxes are (max, 5) and points (max, 3), in pixels of the delivered
image, as in `box_values`. Other labels are as `label_cells` has them, numbers as (1,) or (k,), since that is what
ml-pyxis' own scripts write; texts have the width of the longest, so that all values of a pack are laid out alike. Names
are bytes, in UTF-8.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

from streamd.cli.pack.config_snippet import build_decoded_pack_settings, is_only_image
from streamd.cli.pack.label_cells import (
    CellValues,
    build_fixed_boxes,
    choose_weight_key,
    collect_sample_cells,
    compute_text_width,
    decode_names,
    encode_names,
)
from streamd.cli.pack.packed_rows import PackedRows, compute_blob_checksums, compute_box_bytes
from streamd.cli.pack.row_files import PackJob, build_read_mismatch_error, drop_from_page_cache
from streamd.core.permutation import Ids, Words
from streamd.core.spec import ONLY_IMAGE
from streamd.dataset.lmdb.pyxis_layout import COUNT_KEY, DATA_DB, META_DB, build_sample_key, encode_sample
from streamd.dataset.manifest.columns import choose_name_key
from streamd.errors import ConfigError, MissingExtraError
from streamd.limits import MIB, PACK_IMAGE

try:
    import lmdb
except ModuleNotFoundError as error:
    raise MissingExtraError("lmdb", "lmdb", "streamd pack --format lmdb") from error

_PAGE_BYTES: Final = 4096  # a large value takes whole pages, with a header
_EXTRA_SAMPLE_BYTES: Final = 256  # of a value: keys, types and shapes of its arrays
_EXTRA_ARRAY_BYTES: Final = 64  # of a value: name, type and shape of one image
_TRANSACTION_BYTES: Final = 32 * MIB  # of a transaction, which lies in memory until it ends; one is made meanwhile
_PAGE_HEADER_BYTES: Final = 64  # and what the tree above has of it
_NAMES_AT_ONCE: Final = 1 << 14
_VALUES_PER_READ: Final = 256  # values, when they are read back
_MAP_SIZE_FACTOR: Final = 1.25  # size of the map over the expected size: it costs only address space
_SPARE_BYTES: Final = 4 * MIB  # ... and pages of the tree, and of those that a transaction sets free


class LmdbWriter:
    """Writes `lmdb`. A transaction is safe when it ends, or was never there."""

    def __init__(self, job: PackJob) -> None:
        self._job = job
        spec = job.stream.spec
        self._image_keys = {ONLY_IMAGE: PACK_IMAGE} if is_only_image(spec) else {name: name for name in spec.images}
        if is_only_image(spec) and PACK_IMAGE in spec.labels:
            raise ConfigError(
                f"streams.{spec.name}.labels.{PACK_IMAGE}: an LMDB uses this name for its images; rename the label"
            )
        taken = {*spec.labels, *self._image_keys.values()}
        weights = {choose_weight_key(taken): 0} if spec.weighted else {}
        labels = {name: compute_text_width(label) for name, label in spec.labels.items() if not label.is_ragged}
        self._text_widths = {**labels, **weights}
        self._name_key, self._name_bytes = choose_name_key(taken), _find_longest_name_bytes(job)
        self._row_count = 0
        self._pending_blobs: list[bytes] = []
        self._commit_thread = ThreadPoolExecutor(1, "commit")
        self._last_commit = self._commit_thread.submit(lambda: None)
        self._environment: Any = None

    @property
    def _data_file_path(self) -> Path:
        return self._job.product_path / "data.mdb"

    def resume_after_rows(self, rows: int, position: Mapping[str, int]) -> None:
        del position
        self._job.product_path.mkdir(exist_ok=True)
        map_bytes = int(self.estimate_bytes() * _MAP_SIZE_FACTOR) + _SPARE_BYTES
        self._environment = lmdb.open(str(self._job.product_path), map_size=map_bytes, max_dbs=2, readahead=False)
        self._data_db, self._meta_db = (self._environment.open_db(name) for name in (DATA_DB, META_DB))
        self._row_count = rows
        with self._environment.begin(self._data_db, write=True) as transaction, transaction.cursor() as cursor:
            # An interrupted run may have committed rows after the journal's last entry; they are written again.
            there = cursor.set_range(build_sample_key(rows))
            while there:
                there = cursor.delete()

    def append_rows(self, rows: PackedRows) -> Words:
        manifest = self._job.stream.manifest
        values = collect_sample_cells(manifest, rows.ids, self._image_keys.values())
        arrays: dict[str, CellValues] = {self._image_keys[name]: images for name, images in rows.images.items()}
        arrays |= {name: self._build_label_entries(name, values[name]) for name in self._text_widths}
        arrays |= {name: build_fixed_boxes(manifest.labels[name], boxes) for name, boxes in rows.boxes.items()}
        arrays[self._name_key] = encode_names(values[self._name_key]).astype(f"S{self._name_bytes}")[:, None]
        blobs = [
            encode_sample({name: entries[row] for name, entries in arrays.items()}) for row in range(rows.ids.size)
        ]
        self._pending_blobs += blobs
        if sum(map(len, self._pending_blobs)) >= _TRANSACTION_BYTES:
            self._commit_in_background()
        return compute_blob_checksums(blobs)

    def _build_label_entries(self, name: str, values: CellValues) -> CellValues:
        """Returns a label's entry in each sample, (n, 1) or (n, k)."""
        fixed = values.astype(f"<U{self._text_widths[name]}") if values.dtype.kind == "U" else values
        return fixed[:, None] if fixed.ndim == 1 else fixed

    def sync_to_disk(self) -> dict[str, int]:
        self._commit_in_background()
        self._last_commit.result()
        return {}

    def _commit_in_background(self) -> None:
        """Hands the pending samples to the thread that commits, once the commit before has ended."""
        # Waiting here bounds the memory to two transactions, and raises the error of the last one.
        self._last_commit.result()
        self._last_commit = self._commit_thread.submit(self._commit_blobs, self._pending_blobs, self._row_count)
        self._row_count += len(self._pending_blobs)
        self._pending_blobs = []

    def _commit_blobs(self, blobs: Sequence[bytes], first_row: int) -> None:
        self._reserve_disk_space(blobs)
        try:
            with _translate_lmdb_errors(), self._environment.begin(self._data_db, write=True) as transaction:
                for row, blob in enumerate(blobs, first_row):
                    transaction.put(build_sample_key(row), blob, append=True)
        except lmdb.MapFullError:
            self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            self._commit_blobs(blobs, first_row)

    def _reserve_disk_space(self, blobs: Sequence[bytes]) -> None:
        """Reserves disk space for the samples, so that a full disk raises its own error.

        The library would report an input/output error.
        """
        needed = sum(map(_estimate_pages, map(len, blobs))) * _PAGE_BYTES + _SPARE_BYTES
        with self._data_file_path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, self._used_database_bytes + needed)

    @property
    def _used_database_bytes(self) -> int:
        last_page: int = self._environment.info()["last_pgno"]
        return (last_page + 1) * _PAGE_BYTES

    def finish_pack(self, bad_ids: Ids) -> None:
        del bad_ids
        with _translate_lmdb_errors(), self._environment.begin(self._meta_db, write=True) as transaction:
            transaction.put(COUNT_KEY, b"%d" % self._row_count)
        used_bytes = self._used_database_bytes
        self.close()
        os.truncate(self._data_file_path, used_bytes)
        self._data_file_path.with_name("lock.mdb").unlink(missing_ok=True)

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        del bad_ids
        drop_from_page_cache(self._data_file_path)
        with lmdb.open(str(self._job.product_path), readonly=True, lock=False, max_dbs=2) as environment:
            data = environment.open_db(DATA_DB, create=False)
            with environment.begin(data, buffers=True) as transaction, transaction.cursor() as cursor:
                yield from self._iterate_checksums(cursor)

    def _iterate_checksums(self, cursor: Any) -> Iterator[Words]:
        pairs, row = iter(cursor), 0
        while some := list(islice(pairs, _VALUES_PER_READ)):
            if any(key != build_sample_key(number) for number, (key, _) in enumerate(some, row)):
                raise build_read_mismatch_error(self._data_file_path)
            row += len(some)
            yield compute_blob_checksums(blob for _, blob in some)

    def estimate_bytes(self) -> int:
        spec = self._job.stream.spec
        labels = 4 * sum(self._text_widths.values()) + 8 * sum(max(label.width, 1) for label in spec.labels.values())
        arrays = spec.sample_bytes + sum(compute_box_bytes(spec).values()) + len(self._image_keys) * _EXTRA_ARRAY_BYTES
        pages = _estimate_pages(arrays + _EXTRA_SAMPLE_BYTES + labels + self._name_bytes)
        return spec.samples * pages * _PAGE_BYTES + _SPARE_BYTES

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        spec, source = self._job.stream.spec, {"kind": "lmdb", "path": str(pack_path)}
        if is_only_image(spec):
            return build_decoded_pack_settings({**source, "images": PACK_IMAGE}, spec)
        return build_decoded_pack_settings(source, spec, places=self._image_keys, taken=self._image_keys.values())

    def close(self) -> None:
        self._commit_thread.shutdown()
        if self._environment is not None:
            self._environment.close()
            self._environment = None


def _find_longest_name_bytes(job: PackJob) -> int:
    """Returns the length of the longest name in bytes, at least 1."""
    manifest = job.stream.manifest
    blocks = (
        range(first, min(first + _NAMES_AT_ONCE, manifest.samples))
        for first in range(0, manifest.samples, _NAMES_AT_ONCE)
    )
    return max(
        (encode_names(decode_names(manifest.display_names(block))).dtype.itemsize for block in blocks), default=1
    )


def _estimate_pages(value_bytes: int) -> int:
    """Estimates the pages of a value: its own pages, and its share of the tree above."""
    return -(-(value_bytes + _PAGE_HEADER_BYTES) // _PAGE_BYTES)


@contextmanager
def _translate_lmdb_errors() -> Iterator[None]:
    """Turns LMDB errors into OSErrors, except MapFullError, which the caller handles."""
    try:
        yield
    except lmdb.MapFullError:
        raise
    except lmdb.Error as error:
        raise OSError(errno.EIO, str(error)) from error
