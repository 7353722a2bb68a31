"""`lmdb`: a folder in the layout of ml-pyxis, one value a sample: its image as X, its labels by their names.

Labels are as `label_cells` has them,
numbers as (1,) or (k,), since that is what ml-pyxis' own scripts write; texts have the
width of the longest, so that all values of a pack are laid out alike.
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

from streamd.cli.pack.checksums import blob_sums
from streamd.cli.pack.config_snippet import stored
from streamd.cli.pack.label_cells import Values, read_as, text_width, values_of, weight_key
from streamd.cli.pack.row_files import drop_from_memory
from streamd.cli.pack.writer import Subject, read_otherwise
from streamd.core.permutation import Ids, Words
from streamd.dataset.arrays.store import Pixels
from streamd.dataset.lmdb.pyxis_layout import COUNT_KEY, DATA_DB, META_DB, build_sample_key, encode_sample
from streamd.errors import ConfigError, MissingExtraError
from streamd.limits import MIB, PACK_IMAGE

try:
    import lmdb
except ModuleNotFoundError as error:
    raise MissingExtraError("lmdb", "lmdb", "streamd pack --format lmdb") from error

_PAGE_BYTES: Final = 4096  # a large value takes whole pages, with a header
_BYTES_BESIDE: Final = 256  # of a value: keys, types and shapes of its arrays
_DIRTY_BYTES: Final = 32 * MIB  # of a transaction, which lies in memory until it ends; one is made meanwhile
_PAGE_HEADER_BYTES: Final = 64  # and what the tree above has of it
_TOGETHER: Final = 256  # values, when they are read back
_ROOM: Final = 1.25  # of the map above what is expected: it costs addresses alone
_ROOM_BYTES: Final = 4 * MIB  # ... and pages of the tree, and of those that a transaction sets free


class LmdbWriter:
    """See Writer. A transaction is safe when it ends, or was never there."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        spec = subject.stream.spec
        if PACK_IMAGE in spec.labels:
            raise ConfigError(f"streams.{spec.name}.labels.{PACK_IMAGE}: an LMDB calls its images so; rename the label")
        weights = {weight_key(spec.labels): 0} if spec.weighted else {}
        self._widths = {**{name: text_width(label) for name, label in spec.labels.items()}, **weights}
        self._rows = 0
        self._pending: list[bytes] = []
        self._thread = ThreadPoolExecutor(1, "commit")
        self._committed = self._thread.submit(lambda: None)
        self._environment: Any = None

    @property
    def _file(self) -> Path:
        return self._subject.product / "data.mdb"

    def resume(self, rows: int, place: Mapping[str, int]) -> None:
        del place
        self._subject.product.mkdir(exist_ok=True)
        map_bytes = int(self.expected_bytes() * _ROOM) + _ROOM_BYTES
        self._environment = lmdb.open(str(self._subject.product), map_size=map_bytes, max_dbs=2, readahead=False)
        self._data, self._meta = (self._environment.open_db(name) for name in (DATA_DB, META_DB))
        self._rows = rows
        with self._environment.begin(self._data, write=True) as transaction, transaction.cursor() as cursor:
            there = cursor.set_range(build_sample_key(rows))  # what was written behind the journal's last word
            while there:
                there = cursor.delete()

    def append(self, ids: Ids, images: Pixels) -> Words:
        values = values_of(self._subject.stream.manifest, ids)
        labels = {name: self._entries(name, values[name]) for name in self._widths}
        blobs = [
            encode_sample({PACK_IMAGE: image, **{name: entries[row] for name, entries in labels.items()}})
            for row, image in enumerate(images)
        ]
        self._pending += blobs
        if sum(map(len, self._pending)) >= _DIRTY_BYTES:
            self._begin_commit()
        return blob_sums(blobs)

    def _entries(self, name: str, values: Values) -> Values:
        """A label's entry in each sample."""
        fixed = values.astype(f"<U{self._widths[name]}") if values.dtype.kind == "U" else values
        return fixed[:, None] if fixed.ndim == 1 else fixed

    def sync(self) -> dict[str, int]:
        self._begin_commit()
        self._committed.result()
        return {}

    def _begin_commit(self) -> None:
        """Hands what is pending to the thread that waits for the disk, when it is done with what it had before."""
        self._committed.result()
        self._committed = self._thread.submit(self._commit, self._pending, self._rows)
        self._rows += len(self._pending)
        self._pending = []

    def _commit(self, blobs: Sequence[bytes], first: int) -> None:
        self._make_room(blobs)
        try:
            with _named_errors(), self._environment.begin(self._data, write=True) as transaction:
                for row, blob in enumerate(blobs, first):
                    transaction.put(build_sample_key(row), blob, append=True)
        except lmdb.MapFullError:
            self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            self._commit(blobs, first)

    def _make_room(self, blobs: Sequence[bytes]) -> None:
        """Has the disk refuse now what it has no room for: the library would call it an input/output error."""
        needed = sum(map(_pages, map(len, blobs))) * _PAGE_BYTES + _ROOM_BYTES
        with self._file.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, self._used_bytes + needed)

    @property
    def _used_bytes(self) -> int:
        last_page: int = self._environment.info()["last_pgno"]
        return (last_page + 1) * _PAGE_BYTES

    def finish(self, bad: Ids) -> None:
        del bad
        with _named_errors(), self._environment.begin(self._meta, write=True) as transaction:
            transaction.put(COUNT_KEY, b"%d" % self._rows)
        used_bytes = self._used_bytes
        self.close()
        os.truncate(self._file, used_bytes)
        self._file.with_name("lock.mdb").unlink(missing_ok=True)

    def sums(self, bad: Ids) -> Iterator[Words]:
        del bad
        drop_from_memory(self._file)
        with lmdb.open(str(self._subject.product), readonly=True, lock=False, max_dbs=2) as environment:
            data = environment.open_db(DATA_DB, create=False)
            with environment.begin(data, buffers=True) as transaction, transaction.cursor() as cursor:
                yield from self._sums_of(cursor)

    def _sums_of(self, cursor: Any) -> Iterator[Words]:
        pairs, row = iter(cursor), 0
        while some := list(islice(pairs, _TOGETHER)):
            if any(key != build_sample_key(number) for number, (key, _) in enumerate(some, row)):
                raise read_otherwise(self._file)
            row += len(some)
            yield blob_sums(blob for _, blob in some)

    def expected_bytes(self) -> int:
        spec = self._subject.stream.spec
        labels = sum(4 * self._widths[name] + 8 * max(label.width, 1) for name, label in spec.labels.items())
        return spec.samples * _pages(spec.image.row_bytes + _BYTES_BESIDE + labels) * _PAGE_BYTES + _ROOM_BYTES

    def serving(self, place: Path) -> dict[str, object]:
        spec = self._subject.stream.spec
        source = {"kind": "lmdb", "path": str(place), "images": PACK_IMAGE}
        return {"source": source, **read_as(spec), "image": stored(spec.image)}

    def close(self) -> None:
        self._thread.shutdown()
        if self._environment is not None:
            self._environment.close()
            self._environment = None


def _pages(value_bytes: int) -> int:
    """About how many a value takes: pages of its own and its part of the tree above."""
    return -(-(value_bytes + _PAGE_HEADER_BYTES) // _PAGE_BYTES)


@contextmanager
def _named_errors() -> Iterator[None]:
    """The library's refusals as the system's, whatever it calls them."""
    try:
        yield
    except lmdb.MapFullError:
        raise
    except lmdb.Error as error:
        raise OSError(errno.EIO, str(error)) from error
