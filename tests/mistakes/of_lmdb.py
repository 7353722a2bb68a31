"""Mistakes in what the configuration names: LMDB files."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from mistake import Mistake, in_train
from support.lmdb_files import put, write_lmdb

LMDB: Final = """\
streams:
  train:
    source: {kind: lmdb, path: data.lmdb, images: X}
    labels: {angle: {from: y, type: float}}
    batch_size: 4
"""
PIXELS: Final = np.arange(8 * 12, dtype=np.uint8).reshape(8, 2, 2, 3)
_LAYOUT: Final = (
    "ml-pyxis keeps samples in the databases data_db and meta_db, under the keys 0000000000, 0000000001 and so on: "
    "write the file with pyxis.Writer, or with streamd pack --format lmdb"
)


def written(**arrays: str) -> Callable[[Path], object]:
    """Writes eight samples; `arrays` gives X and y other names."""
    x, y = arrays.get("x", "X"), arrays.get("y", "y")
    return lambda place: write_lmdb(place / "data.lmdb", [{x: each, y: n / 8} for n, each in enumerate(PIXELS)])


def of_another_program(place: Path) -> None:
    put(place / "data.lmdb", {b"%08d" % number: b"a Datum" for number in range(2)}, None)


def truncate(place: Path) -> None:
    written()(place)
    os.truncate(place / "data.lmdb/data.mdb", 8192)


in_lmdb = partial(in_train, config=LMDB, prepare=written())
OF_LMDB: Final = (
    Mistake(
        "named an LMDB that another program wrote",
        config=LMDB,
        prepare=of_another_program,
        says=(
            "streamd: config.yaml:3: streams.train.source.path: '…/data.lmdb/data.mdb' holds the keys '00000000', "
            f"'00000001', but no samples in the format of ml-pyxis; {_LAYOUT}"
        ),
        do="Serve the images that the LMDB was made from, and write the LMDB again with `streamd pack`.",
    ),
    in_lmdb(
        "copied only part of an LMDB",
        prepare=truncate,
        says="3: source.path: '…/data.lmdb/data.mdb' is truncated: it has 8192 of … bytes; copy or write it again",
        do="Copy it again.",
    ),
    in_lmdb(
        "named an array of images that the samples do not have",
        prepare=written(x="x"),
        says=(
            "3: source.images: '…/data.lmdb/data.mdb[0]' has no array 'X'; its arrays are: 'x' (uint8 (2, 2, "
            "3)), 'y' (float64 ()); write the name of one of them; did you mean 'x'?"
        ),
        do="Use the name that the message suggests.",
    ),
    in_lmdb(
        "named a label that samples lack",
        prepare=written(y="angle"),
        says=(
            "4: labels.angle.from: '…/data.lmdb/data.mdb[0]' has no array 'y'; its arrays are: 'X' (uint8 (2, "
            "2, 3)), 'angle' (float64 ()); write the name of one of them"
        ),
        do="Remove `from` if the label has the same name as its array.",
    ),
)
