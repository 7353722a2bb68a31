"""`lmdb`: a folder in the layout of ml-pyxis, one value a sample: its image as X, its labels by their names.

Several images a sample lie under their own names. Boxes are (max, 5) and points (max, 3), in pixels of the delivered
image, as in `box_values`. Other labels are as `label_cells` has them, numbers as (1,) or (k,), since that is what
ml-pyxis' own scripts write; texts have the width of the longest, so that all values of a pack are laid out alike. Names
are bytes, in UTF-8.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamd.cli.pack.batches import (
    PackedRows,
    PackJob,
    PackWriter,
    WholeShards,
    build_read_mismatch_error,
    compute_blob_checksums,
    compute_box_bytes,
    drop_from_page_cache,
)
from streamd.cli.pack.label_cells import (
    CellValues,
    build_decoded_pack_settings,
    build_fixed_boxes,
    choose_weight_key,
    collect_sample_cells,
    compute_text_width,
    decode_names,
    is_only_image,
)
from streamd.core.sampler import Ids, Words
from streamd.core.spec import ONLY_IMAGE
from streamd.dataset.lmdb.pyxis_layout import COUNT_KEY, DATA_DB, META_DB, build_sample_key, encode_sample
from streamd.dataset.manifest.columns import choose_name_key
from streamd.errors import ConfigError, MissingExtraError
from streamd.limits import GIB, MIB, PACK_IMAGE

try:
    import lmdb
except ModuleNotFoundError as error:
    raise MissingExtraError("lmdb", "lmdb", "streamd pack --format lmdb") from error

_PAGE_BYTES: Final = 4096  # a large value takes whole pages, with a header
_EXTRA_SAMPLE_BYTES: Final = 256  # of a value: keys, types and shapes of its arrays
_EXTRA_ARRAY_BYTES: Final = 64  # of a value: name, type and shape of one image
_PAGE_HEADER_BYTES: Final = 64  # and what the tree above has of it
_NAMES_AT_ONCE: Final = 1 << 14
_VALUES_PER_READ: Final = 256  # values, when they are read back
_SPARE_BYTES: Final = 4 * MIB  # pages of the tree, and of those that a transaction sets free


class LmdbWriter(PackWriter):
    """Writes `lmdb`: a transaction for each batch, without a sync of its own, since a killed pack begins again."""

    def __init__(self, job: PackJob) -> None:
        super().__init__(job)
        spec = self._spec
        self._image_keys = {ONLY_IMAGE: PACK_IMAGE} if is_only_image(spec) else {name: name for name in spec.images}
        if is_only_image(spec) and PACK_IMAGE in spec.labels:
            raise ConfigError(
                f"streams.{spec.name}.labels.{PACK_IMAGE}: an LMDB uses this name for its images; rename the label"
            )
        taken = {*spec.labels, *self._image_keys.values()}
        weights = {choose_weight_key(taken): 0} if spec.weighted else {}
        labels = {name: compute_text_width(label) for name, label in spec.labels.items() if not label.is_ragged}
        self._text_widths = {**labels, **weights}
        # All names take the width of the longest, at least 1.
        self._name_key, self._name_bytes = choose_name_key(taken), 1
        for first in range(0, self._manifest.samples, _NAMES_AT_ONCE):
            names = self._manifest.display_names(range(first, min(first + _NAMES_AT_ONCE, self._manifest.samples)))
            encoded = np.char.encode(decode_names(names), "utf-8")
            self._name_bytes = max(self._name_bytes, encoded.dtype.itemsize)
        self._environment: Any = None

    @property
    def _data_file_path(self) -> Path:
        return self._job.product_path / "data.mdb"

    def _open_product(self) -> None:
        if self.whole_shards.files:
            return
        self._job.product_path.mkdir()
        # The map costs only address space. Twice of what is expected is never full.
        map_bytes = 2 * self.estimate_bytes() + GIB
        self._environment = lmdb.open(
            str(self._job.product_path), map_size=map_bytes, max_dbs=2, readahead=False, sync=False
        )
        self._data_db, self._meta_db = (self._environment.open_db(name) for name in (DATA_DB, META_DB))
        # The space is reserved, so that a full disk raises its own error: the library would report an input/output one.
        with self._data_file_path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, self.estimate_bytes())

    def append_rows(self, rows: PackedRows) -> Words:
        values = collect_sample_cells(self._manifest, rows.ids, self._image_keys.values())
        arrays: dict[str, CellValues] = {self._image_keys[name]: images for name, images in rows.images.items()}
        for name, width in self._text_widths.items():
            # A label's entry in each sample is (n, 1) or (n, k); texts have one width.
            entries = values[name].astype(f"<U{width}") if values[name].dtype.kind == "U" else values[name]
            arrays[name] = entries[:, None] if entries.ndim == 1 else entries
        arrays |= {name: build_fixed_boxes(self._manifest.labels[name], boxes) for name, boxes in rows.boxes.items()}
        arrays[self._name_key] = np.char.encode(values[self._name_key], "utf-8").astype(f"S{self._name_bytes}")[:, None]
        blobs = [
            encode_sample({name: entries[row] for name, entries in arrays.items()}) for row in range(rows.ids.size)
        ]
        with _translate_lmdb_errors(), self._environment.begin(self._data_db, write=True) as transaction:
            for row, blob in enumerate(blobs, self._row_count):
                transaction.put(build_sample_key(row), blob, append=True)
        self._row_count += len(blobs)
        return compute_blob_checksums(blobs)

    def sync_to_disk(self) -> None:
        with _translate_lmdb_errors():
            self._environment.sync(True)

    def finish_pack(self, bad_ids: Ids) -> None:
        del bad_ids
        with _translate_lmdb_errors(), self._environment.begin(self._meta_db, write=True) as transaction:
            transaction.put(COUNT_KEY, b"%d" % self._row_count)
        self.sync_to_disk()
        used_bytes = (self._environment.info()["last_pgno"] + 1) * _PAGE_BYTES
        self.close()
        os.truncate(self._data_file_path, used_bytes)
        self._data_file_path.with_name("lock.mdb").unlink(missing_ok=True)
        self.whole_shards = WholeShards(self._row_count, 1)

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        del bad_ids
        drop_from_page_cache(self._data_file_path)
        with lmdb.open(str(self._job.product_path), readonly=True, lock=False, max_dbs=2) as environment:
            data = environment.open_db(DATA_DB, create=False)
            with environment.begin(data, buffers=True) as transaction, transaction.cursor() as cursor:
                pairs, row = iter(cursor), 0
                while some := list(islice(pairs, _VALUES_PER_READ)):
                    if any(key != build_sample_key(number) for number, (key, _) in enumerate(some, row)):
                        raise build_read_mismatch_error(self._data_file_path)
                    row += len(some)
                    yield compute_blob_checksums(blob for _, blob in some)

    def estimate_bytes(self) -> int:
        spec = self._spec
        labels = 4 * sum(self._text_widths.values()) + 8 * sum(max(label.width, 1) for label in spec.labels.values())
        arrays = spec.sample_bytes + sum(compute_box_bytes(spec).values()) + len(self._image_keys) * _EXTRA_ARRAY_BYTES
        # A value takes pages of its own, and has its share of the tree above.
        value = arrays + _EXTRA_SAMPLE_BYTES + labels + self._name_bytes + _PAGE_HEADER_BYTES
        return spec.samples * -(-value // _PAGE_BYTES) * _PAGE_BYTES + _SPARE_BYTES

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        spec, source = self._spec, {"kind": "lmdb", "path": str(pack_path)}
        if is_only_image(spec):
            return build_decoded_pack_settings({**source, "images": PACK_IMAGE}, spec)
        return build_decoded_pack_settings(source, spec, places=self._image_keys, taken=self._image_keys.values())

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()
            self._environment = None


@contextmanager
def _translate_lmdb_errors() -> Iterator[None]:
    """Turns the library's errors into OSErrors."""
    try:
        yield
    except lmdb.DiskError as error:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
    except lmdb.Error as error:
        raise OSError(errno.EIO, str(error)) from error
