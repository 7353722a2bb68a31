"""LMDB files as ml-pyxis writes them, by LMDB and msgpack alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from msgspec.msgpack import encode

Sample = Mapping[str, Any]


def value_of(sample: Sample) -> bytes:
    """The value of one sample, its arrays by name."""
    arrays = {name: np.asarray(each) for name, each in sample.items()}
    return encode(
        {
            name: encode({b"type": 2, b"dtype": each.dtype.str, b"shape": each.shape, b"data": each.tobytes()})
            for name, each in arrays.items()
        }
    )


def write_lmdb(path: Path, samples: Sequence[Sample], *, subdir: bool = True, count: object = None) -> Path:
    """Writes samples into a folder with data.mdb, or into a file; `count` in place of how many there are."""
    put(path, {b"%010d" % number: value_of(sample) for number, sample in enumerate(samples)}, subdir=subdir)
    put(path, {b"nb_samples": str(len(samples) if count is None else count).encode()}, b"meta_db", subdir=subdir)
    return path


def put(path: Path, items: Mapping[bytes, bytes], database: bytes | None = b"data_db", *, subdir: bool = True) -> None:
    """Writes items into a database of an LMDB; None is the one without a name."""
    with lmdb.open(str(path), map_size=1 << 24, subdir=subdir, max_dbs=4) as environment:
        opened = environment.open_db(database)
        with environment.begin(db=opened, write=True) as transaction:
            for key, value in items.items():
                transaction.put(key, value)
