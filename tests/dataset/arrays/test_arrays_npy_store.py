"""Rows of mapped arrays lie in the slot as they lie in their files, until a file is another than the one listed."""

from __future__ import annotations

import itertools
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from served_folders import change_times

from streamd.config.load import load_config
from streamd.core.sampler import PAD_ID
from streamd.daemon.streams.catalog import open_streams, write_sample_manifests
from streamd.dataset.arrays.npy_store import NpyStore
from streamd.errors import ConfigError

PIXELS = np.random.default_rng(1).integers(0, 256, (20, 3, 4, 3), dtype=np.uint8)


class Opened:
    """A store over the arrays of a folder, as a worker has it."""

    def __init__(self, folder: Path, **source: Any) -> None:
        config = load_config({"streams": {"train": {"source": {"kind": "npy", "path": str(folder), **source}}}})
        write_sample_manifests(config, folder / "state", lambda *_: None)
        (self.stream,) = open_streams(config, folder / "state")
        self.root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        assert self.stream.manifest.arrays is not None
        try:
            self.store = NpyStore(self.stream.manifest, self.stream.manifest.arrays, self.root)
        except BaseException:
            os.close(self.root)
            raise

    def gathered(self, *ids: int) -> tuple[Any, list[bool]]:
        images = np.full((len(ids), 3, 4, 3), 0xAA, np.uint8)
        return images, self.store.gather_rows(np.array(ids, np.int64), images).tolist()

    def close(self) -> None:
        self.store.close()
        self.stream.manifest.close()
        os.close(self.root)


@pytest.fixture(params=[[20], [7, 1, 12]], ids=["one file", "three files"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The twenty images, in one file or in three."""
    ends = [0, *itertools.accumulate(request.param)]
    for number, (start, stop) in enumerate(itertools.pairwise(ends)):
        np.save(tmp_path / f"x{number}.npy", PIXELS[start:stop])
    return tmp_path


@pytest.fixture
def opened(folder: Path) -> Iterator[Opened]:
    opened = Opened(folder)
    yield opened
    opened.close()


def test_rows_are_gathered_in_the_order_asked_for(opened: Opened) -> None:
    ids = [19, 0, 7, 6, 8, 7]
    images, held = opened.gathered(*ids)
    assert np.array_equal(images, PIXELS[ids])
    assert held == [True] * 6


def test_a_row_without_a_sample_is_not_held(opened: Opened) -> None:
    images, held = opened.gathered(3, PAD_ID, 8)
    assert held == [True, False, True]
    assert np.array_equal(images[[0, 2]], PIXELS[[3, 8]])
    assert opened.store.find_gatherable(np.array([PAD_ID, 0], np.int64)).tolist() == [False, True]


def test_samples_that_are_only_some_of_the_rows_are_found_by_the_manifest(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join(["keep", *(str(row % 3) for row in range(20))]))
    opened = Opened(folder, table=str(tmp_path / "t.csv"), where={"keep": 1})
    images, held = opened.gathered(0, 5, PAD_ID, 2)
    assert held == [True, True, False, True]
    assert np.array_equal(images[[0, 1, 3]], PIXELS[[1, 16, 7]])
    opened.close()


def test_a_file_written_since_is_held_no_more_and_its_samples_neither(opened: Opened, folder: Path) -> None:
    assert opened.gathered(0)[1] == [True]
    file = max(folder.glob("*.npy"))
    before = file.stat().st_mtime_ns
    change_times(file, before + 1)
    assert opened.gathered(0)[1] == [False]
    change_times(file, before)
    assert opened.gathered(0)[1] == [True]
    file.unlink()
    assert opened.gathered(0)[1] == [False]


def test_a_file_that_is_another_at_the_start_is_not_opened(folder: Path) -> None:
    opened = Opened(folder)
    file = max(folder.glob("*.npy"))
    file.write_bytes(file.read_bytes() + b"x")
    assert opened.stream.manifest.arrays is not None
    with pytest.raises(ConfigError, match=rf"'{file.name}' is stale: changed since it was listed"):
        NpyStore(opened.stream.manifest, opened.stream.manifest.arrays, opened.root)
    file.unlink()
    with pytest.raises(ConfigError, match="any more; bring it back"):
        NpyStore(opened.stream.manifest, opened.stream.manifest.arrays, opened.root)
    opened.close()


def test_mappings_and_files_end_with_the_store(folder: Path) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(f"{folder}/x")

    opened = Opened(folder)
    assert mapped() == len(list(folder.glob("*.npy")))
    opened.close()  # a descriptor that stays open fails the test afterwards
    assert mapped() == 0


def test_what_is_expected_is_asked_for_where_it_lies(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def advise(descriptor: int, offset: int, nbytes: int, _: int) -> None:
        asked.append(os.pread(descriptor, nbytes, offset))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    opened.store.prefetch_rows(np.array([19, PAD_ID, 0, 7], np.int64))
    assert asked == [PIXELS[row].tobytes() for row in (19, 0, 7)]


def test_rows_that_come_from_memory_are_not_asked_for_on_and_on(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: asked.append(1))
    monkeypatch.setattr(opened.store._prefetcher, "_quick_s", 60.0)
    for _ in range(100):
        opened.store.prefetch_rows(np.array([3, 4], np.int64))
    assert len(asked) == 2 * 64
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_majflt=1 << 40))
    opened.gathered(3)
    opened.store.prefetch_rows(np.array([3, 4], np.int64))
    assert len(asked) == 2 * 65


def test_rows_of_other_numbers_and_in_another_order_become_pixels(tmp_path: Path) -> None:
    numbers = (PIXELS.transpose(0, 3, 1, 2).repeat(2, 3) / 255).astype(">f4")
    numbers[5, 1, 1, 1] = np.nan
    np.save(tmp_path / "a.npy", numbers[:9])
    np.save(tmp_path / "b.npy", numbers[9:])
    opened = Opened(tmp_path, range=[0, 1])
    images = np.zeros((4, 3, 8, 3), np.uint8)
    assert opened.store.gather_rows(np.array([12, 5, PAD_ID, 3], np.int64), images).tolist() == [
        True,
        False,
        False,
        True,
    ]
    assert np.array_equal(images[[0, 3]], PIXELS[[12, 3]].repeat(2, 2))
    assert (opened.store.find_permanent_fault(5), opened.store.find_permanent_fault(12)) == (
        "a pixel is no number (NaN)",
        "",
    )
    opened.close()
