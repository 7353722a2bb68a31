"""An LMDB file in the layout of ml-pyxis, read once, in the order of its samples.

LMDB maps its file and follows the numbers in it without looking where they lead, so a damaged one may end this process:
the one that lists the samples, and ends anyway. Nothing is locked and nothing written: whether somebody else wrote
meanwhile is seen by the number of the last write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import lmdb
import numpy as np

from streamd.dataset.lmdb.file_head import HEAD_BYTES, Head, is_whole, read_head
from streamd.dataset.lmdb.pyxis_layout import COUNT_KEY, DATA_DB, META_DB, address_of, key_of_sample
from streamd.dataset.paths.confined import reading, shown
from streamd.errors import ConfigError

_LAYOUT: Final = (
    "ml-pyxis has its samples in the databases data_db and meta_db, under the keys 0000000000, 0000000001 and so on: "
    "write the file with pyxis.Writer, or with streamd pack --format lmdb"
)
_KEYS_SHOWN: Final = 3
_KEY_CHARS: Final = 40  # of a key that is shown
_MAPS: Final = Path("/proc/self/maps")


@dataclass(frozen=True, slots=True)
class PyxisFile:
    """An open file of `count` samples, at least one; `commit` is the number of the last write to it.

    `key` is that of the configuration that names it. Values are views of mapped memory: none may outlive `opened`.
    """

    path: Path
    key: str
    count: int
    commit: int
    _cursor: lmdb.Cursor[memoryview]

    def values(self) -> Iterator[memoryview]:
        """The value of each sample, in order. Raises ConfigError when one is missing."""
        self._cursor.first()
        items = self._cursor.iternext()
        for number in range(self.count):
            found, value = next(items, (b"", memoryview(b"")))
            if found != key_of_sample(number):
                raise ConfigError(
                    f"{self.key}: {shown(self.path)} claims {self.count:,} samples, and has none under the key "
                    f"{key_of_sample(number).decode()}; {_LAYOUT}"
                )
            yield value


@contextmanager
def opened(path: Path, key: str) -> Iterator[PyxisFile]:
    """The samples of the data file at `path`. Raises ConfigError unless it is whole and laid out so.

    Also, at the end, when somebody wrote to it meanwhile.
    """
    head = _read_head(path, key)
    try:
        with (
            lmdb.open(str(path), subdir=False, readonly=True, lock=False, create=False, max_dbs=2) as environment,
            environment.begin(buffers=True) as transaction,
        ):
            count, cursor = _open(environment, transaction, f"{key}: {shown(path)}")
            with cursor:
                yield PyxisFile(path, key, count, head.commit, cursor)
    except lmdb.Error as error:
        raise ConfigError(f"{key}: {shown(path)} cannot be read by LMDB: {error}; write it anew") from error
    if _read_head(path, key).commit != head.commit:
        raise ConfigError(
            f"{key}: {shown(path)} was written to while its samples were listed; start again when its writer has ended"
        )


def _read_head(path: Path, key: str) -> Head:
    with reading(path, key), path.open("rb") as file:
        head = read_head(file.read(HEAD_BYTES))
        size = path.stat().st_size
        whole = head is not None and (size >= head.end or is_whole(np.memmap(file, mode="r").data, head))
    if head is None:
        raise ConfigError(f"{key}: {shown(path)} is no LMDB file, or one of another version; {_LAYOUT}")
    if not whole:
        raise ConfigError(f"{key}: {shown(path)} is cut off: {size} bytes of {head.end}; copy or write it anew")
    return head


def _open(
    environment: lmdb.Environment, transaction: lmdb.Transaction[memoryview], what: str
) -> tuple[int, lmdb.Cursor[memoryview]]:
    """The number of samples, and a cursor over them."""
    try:
        data, meta = (environment.open_db(name, transaction, create=False) for name in (DATA_DB, META_DB))
    except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
        raise ConfigError(f"{what} holds {_first_keys(transaction)}, and no samples of ml-pyxis; {_LAYOUT}") from error
    count = transaction.get(COUNT_KEY, db=meta)
    if count is None or not bytes(count).isdigit():
        raise ConfigError(
            f"{what} does not say how many samples it has; close its pyxis.Writer, which writes that last"
        )
    if not int(bytes(count)):
        raise ConfigError(f"{what} has no samples; put some in, or name another")
    return int(bytes(count)), transaction.cursor(data)


def _first_keys(transaction: lmdb.Transaction[memoryview]) -> str:
    with transaction.cursor() as cursor:
        keys = [bytes(found[:_KEY_CHARS]) for found in islice(cursor.iternext(values=False), _KEYS_SHOWN)]
    texts = [found.decode("utf-8", "backslashreplace") for found in keys]
    return f"the keys {', '.join(map(repr, texts))}" if keys else "nothing"


def mapped_at(value: memoryview, file: PyxisFile) -> int:
    """The address at which the file begins in this process: LMDB maps it in one piece. `value` is any of its values.

    Raises ConfigError when the system does not tell the truth about it.
    """
    address = address_of(value)
    origin = _beginning(address)
    with reading(file.path, file.key), file.path.open("rb") as opened_file:
        opened_file.seek(address - origin)
        if opened_file.read(len(value)) != value:
            raise ConfigError(
                f"{file.key}: {shown(file.path)} is not mapped where {_MAPS} says, so nobody else can read it; "
                "pack its stream into another format where that works"
            )
    return origin


def _beginning(address: int) -> int:
    for line in _MAPS.read_text(errors="replace").splitlines():
        span, _, offset, *_ = line.split(maxsplit=3)
        start, stop = (int(end, 16) for end in span.split("-"))
        if start <= address < stop:
            return start - int(offset, 16)
    return address
