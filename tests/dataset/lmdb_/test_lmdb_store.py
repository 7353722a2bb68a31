"""Images of an LMDB file are read where they lie, until somebody writes to the file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from support.lmdb_files import put, value_of, write_lmdb
from support.served_folder import change_times
from support.stores_on_disk import OpenedStore

from streamd.dataset.open_store import LmdbStore
from streamd.errors import ConfigError

PIXELS = np.random.default_rng(1).integers(0, 256, (20, 30, 40, 3), dtype=np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The data file."""
    samples = [{"X": image, "y": number} for number, image in enumerate(PIXELS)]
    return write_lmdb(tmp_path / "d.lmdb", samples, subdir=False)


@pytest.fixture
def opened(path: Path, tmp_path: Path) -> Iterator[OpenedStore]:
    opened = OpenedStore({"kind": "lmdb", "path": str(path), "images": "X"}, tmp_path / "state")
    yield opened
    opened.close()


def test_a_write_is_noticed_by_the_commit_number_even_if_size_and_mtime_stay(opened: OpenedStore, path: Path) -> None:
    assert opened.gather(0)[1] == [True]
    before = path.stat()
    put(path, {b"nb_samples": b"20"}, b"meta_db", subdir=False)
    os.truncate(path, before.st_size)
    change_times(path, before.st_mtime_ns)
    assert opened.gather(0, 1)[1] == [False, False]
    with pytest.raises(ConfigError, match=r"are stale: their LMDB file was written to since .* --rescan"):
        opened.open_again()


def test_a_write_that_replaces_an_image_does_not_overwrite_the_listed_one(opened: OpenedStore, path: Path) -> None:
    offset = cast("LmdbStore", opened.store)._find_offsets(np.array([3], np.int64)).item()
    put(path, {b"0000000003": value_of({"X": 255 - PIXELS[3], "y": 3})}, subdir=False)
    assert path.read_bytes()[offset:].startswith(PIXELS[3].tobytes())  # so its number comes before any harm
    assert opened.gather(3)[1] == [False]


def test_a_worker_loads_no_lmdb() -> None:
    code = "import sys, streamd.worker; sys.exit('lmdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
