"""Rows of mapped arrays lie in the slot as they lie in their files, until a file is another than the one listed."""

from __future__ import annotations

import itertools
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support.stores_on_disk import OpenedStore

from streamd.core.sampler import PAD_ID
from streamd.dataset.arrays.npy_store import NpyStore

PIXELS = np.random.default_rng(1).integers(0, 256, (20, 3, 4, 3), dtype=np.uint8)


def open_arrays(folder: Path, **source: Any) -> OpenedStore:
    """A store over the arrays of a folder."""
    return OpenedStore({"kind": "npy", "path": str(folder), **source}, folder / "state")


@pytest.fixture(params=[[20], [7, 1, 12]], ids=["one file", "three files"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The twenty images, in one file or in three."""
    ends = [0, *itertools.accumulate(request.param)]
    for number, (start, stop) in enumerate(itertools.pairwise(ends)):
        np.save(tmp_path / f"x{number}.npy", PIXELS[start:stop])
    return tmp_path


@pytest.fixture
def opened(folder: Path) -> Iterator[OpenedStore]:
    opened = open_arrays(folder)
    yield opened
    opened.close()


def test_samples_that_are_only_some_of_the_rows_are_found_by_the_manifest(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join(["keep", *(str(row % 3) for row in range(20))]))
    opened = open_arrays(folder, table=str(tmp_path / "t.csv"), where={"keep": 1})
    images, held = opened.gather(0, 5, PAD_ID, 2)
    assert held == [True, True, False, True]
    assert np.array_equal(images[[0, 1, 3]], PIXELS[[1, 16, 7]])
    opened.close()


def test_what_is_expected_is_asked_for_where_it_lies(opened: OpenedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def advise(descriptor: int, offset: int, nbytes: int, _: int) -> None:
        asked.append(os.pread(descriptor, nbytes, offset))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    opened.store.prefetch_rows(np.array([19, PAD_ID, 0, 7], np.int64))
    assert asked == [PIXELS[row].tobytes() for row in (19, 0, 7)]


def test_rows_that_come_from_memory_are_not_asked_for_on_and_on(
    opened: OpenedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: asked.append(1))
    monkeypatch.setattr(cast("NpyStore", opened.store)._prefetcher, "_quick_s", 60.0)
    for _ in range(100):
        opened.store.prefetch_rows(np.array([3, 4], np.int64))
    assert len(asked) == 2 * 64
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_majflt=1 << 40))
    opened.gather(3)
    opened.store.prefetch_rows(np.array([3, 4], np.int64))
    assert len(asked) == 2 * 65
