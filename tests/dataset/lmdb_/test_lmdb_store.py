"""Images in an LMDB file lie in the slot as they were written, until somebody writes to the file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lmdbs import put, value_of, write_lmdb
from served_folders import change_times

from streamd.config.load import load_config
from streamd.core.sampler import PAD_ID
from streamd.daemon.streams.catalog import open_streams, write_sample_manifests
from streamd.dataset.lmdb.store import LmdbStore
from streamd.dataset.open_store import open_store
from streamd.errors import ConfigError

PIXELS = np.random.default_rng(1).integers(0, 256, (20, 30, 40, 3), dtype=np.uint8)


class Opened:
    """A store over an LMDB, as a worker has it."""

    def __init__(self, path: Path, state: Path, shape: tuple[int, ...] = (30, 40, 3), **changes: Any) -> None:
        source = {"kind": "lmdb", "path": str(path), "images": "X", **changes.pop("source", {})}
        config = load_config({"streams": {"train": {"source": source, **changes}}})
        write_sample_manifests(config, state, lambda *_: None)
        (self.stream,) = open_streams(config, state)
        self.root = os.open(self.stream.manifest.root, os.O_RDONLY | os.O_DIRECTORY)
        self.shape = shape
        self.store = self.again()

    def again(self) -> LmdbStore:
        store = open_store(self.stream.manifest, self.root)
        assert isinstance(store, LmdbStore)
        return store

    def gathered(self, *ids: int) -> tuple[Any, list[bool]]:
        images = np.full((len(ids), *self.shape), 0xAA, np.uint8)
        return images, self.store.gather_rows(np.array(ids, np.int64), images).tolist()

    def close(self) -> None:
        self.store.close()
        self.stream.manifest.close()
        os.close(self.root)


@pytest.fixture(params=[True, False], ids=["folder", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    samples = [{"X": image, "y": number} for number, image in enumerate(PIXELS)]
    return write_lmdb(tmp_path / "d.lmdb", samples, subdir=request.param)


@pytest.fixture
def opened(path: Path, tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(path, tmp_path / "state")
    yield opened
    opened.close()


def data_file(path: Path) -> Path:
    return path / "data.mdb" if path.is_dir() else path


def test_images_are_gathered_in_the_order_asked_for(opened: Opened) -> None:
    ids = [19, 0, 7, 6, 8, 7]
    images, held = opened.gathered(*ids)
    assert np.array_equal(images, PIXELS[ids])
    assert held == [True] * 6


def test_a_row_without_a_sample_is_not_held(opened: Opened) -> None:
    images, held = opened.gathered(3, PAD_ID, 8)
    assert held == [True, False, True]
    assert np.array_equal(images[[0, 2]], PIXELS[[3, 8]])
    assert opened.store.find_gatherable(np.array([PAD_ID, 0], np.int64)).tolist() == [False, True]


def test_a_part_has_the_images_that_its_names_say(path: Path, tmp_path: Path) -> None:
    opened = Opened(path, tmp_path / "state", source={"part": "validation"}, split={"validation": 0.4})
    ids = list(range(opened.stream.manifest.samples))
    rows = [int(opened.stream.format_file_name(each).partition("[")[2].rstrip("]")) for each in ids]
    assert 0 < len(rows) < 20
    assert np.array_equal(opened.gathered(*ids)[0], PIXELS[rows])
    opened.close()


def test_a_write_to_the_file_is_seen_by_its_number_though_size_and_time_are_the_same(
    opened: Opened, path: Path
) -> None:
    assert opened.gathered(0)[1] == [True]
    before = data_file(path).stat()
    put(path, {b"nb_samples": b"20"}, b"meta_db", subdir=path.is_dir())
    os.truncate(data_file(path), before.st_size)
    change_times(data_file(path), before.st_mtime_ns)
    assert opened.gathered(0, 1)[1] == [False, False]
    with pytest.raises(ConfigError, match=r"are stale: their LMDB file was written to since .* --rescan"):
        opened.again()


def test_a_write_that_replaces_an_image_leaves_the_listed_one_where_it_lies(opened: Opened, path: Path) -> None:
    (offset,) = opened.store._find_offsets(np.array([3], np.int64))
    put(path, {b"0000000003": value_of({"X": 255 - PIXELS[3], "y": 3})}, subdir=path.is_dir())
    assert data_file(path).read_bytes()[offset:].startswith(PIXELS[3].tobytes())  # so its number comes before any harm
    assert opened.gathered(3)[1] == [False]


def test_a_file_that_is_another_by_size_or_time_is_not_opened(opened: Opened, path: Path) -> None:
    change_times(data_file(path), 1)
    with pytest.raises(ConfigError, match=r"is stale: changed since it was listed"):
        opened.again()
    data_file(path).unlink()
    with pytest.raises(ConfigError, match="any more; bring it back"):
        opened.again()


def test_what_is_expected_is_asked_for_where_it_lies(
    opened: Opened, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, offset, *__: asked.append(offset))
    opened.store.prefetch_rows(np.array([4, PAD_ID, 9], np.int64))
    data = data_file(path).read_bytes()
    assert [data[offset : offset + 3600] for offset in asked] == [PIXELS[4].tobytes(), PIXELS[9].tobytes()]


def test_the_mapping_and_the_file_end_with_the_store(path: Path, tmp_path: Path) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(data_file(path)))

    opened = Opened(path, tmp_path / "state")
    assert mapped() == 1
    opened.close()  # a descriptor that stays open fails the test afterwards
    assert mapped() == 0


def test_a_worker_loads_no_lmdb() -> None:
    code = "import sys, streamd.worker; sys.exit('lmdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


def test_images_of_other_numbers_and_order_become_pixels_and_one_that_is_none_has_a_fault(tmp_path: Path) -> None:
    fractions = (PIXELS / np.float32(255)).transpose(0, 3, 1, 2)
    fractions[4, 0, 0, 0] = np.nan
    path = write_lmdb(tmp_path / "d", [{"y": b"odd"[: number % 3], "X": each} for number, each in enumerate(fractions)])
    opened = Opened(path, tmp_path / "state", source={"range": [0, 1]})
    ids = [7, 4, 19]
    images, held = opened.gathered(*ids)
    assert held == [True, False, True]
    assert np.array_equal(images[[0, 2]], PIXELS[[7, 19]])
    assert "NaN" in opened.store.find_permanent_fault(4)
    assert opened.store.find_permanent_fault(7) == ""
    opened.close()
