"""What every store of rows promises: NpyStore, LmdbStore, ChunkStore and Hdf5Store."""

from __future__ import annotations

import itertools
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.lmdb_files import write_lmdb
from support.served_folder import change_times
from support.stores_on_disk import PIXELS, OpenedStore, write_hdf5

from streamd.core.sampler import PAD_ID
from streamd.dataset.arrays.store import RowStore
from streamd.dataset.hdf5.library_store import ChunkStore, Hdf5Store
from streamd.dataset.open_store import LmdbStore, NpyStore
from streamd.errors import ConfigError

IDS = [19, 0, 7, 6, 8, 7]
GZIP = {"compression": "gzip", "shuffle": True}
FRACTIONS = (PIXELS / 255).astype(">f4")
FRACTIONS[7, 1, 1, 1] = np.nan


def lay_out_npy(folder: Path, images: Any, sizes: tuple[int, ...]) -> dict[str, Any]:
    for number, (start, stop) in enumerate(itertools.pairwise([0, *itertools.accumulate(sizes)])):
        np.save(folder / f"x{number}.npy", images[start:stop])
    return {"kind": "npy", "path": str(folder)}


def lay_out_lmdb(folder: Path, images: Any, subdir: bool) -> dict[str, Any]:
    path = folder / "d.lmdb"
    write_lmdb(path, [{"X": image, "y": number} for number, image in enumerate(images)], subdir=subdir)
    return {"kind": "lmdb", "path": str(path), "images": "X"}


def lay_out_hdf5(folder: Path, images: Any, settings: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "hdf5", "path": str(write_hdf5(folder / "x.h5", images, **settings)), "images": "/x"}


Layout = tuple[Callable[[Path, Any, Any], dict[str, Any]], Any, type[RowStore]]
LAYOUTS: dict[str, Layout] = {
    "npy, one file": (lay_out_npy, (20,), NpyStore),
    "npy, three files": (lay_out_npy, (7, 1, 12), NpyStore),
    "lmdb, folder": (lay_out_lmdb, True, LmdbStore),
    "lmdb, file": (lay_out_lmdb, False, LmdbStore),
    "hdf5, one piece": (lay_out_hdf5, {"chunks": None}, NpyStore),
    "hdf5, rows in chunks": (lay_out_hdf5, {"chunks": (3, 6, 8, 3)}, ChunkStore),
    "hdf5, a row a chunk": (lay_out_hdf5, {"chunks": (1, 6, 8, 3)}, ChunkStore),
    "hdf5, parts of rows": (lay_out_hdf5, {"chunks": (1, 4, 8, 3)}, ChunkStore),
    "hdf5, parts of some rows": (lay_out_hdf5, {"chunks": (2, 4, 3, 2)}, ChunkStore),
    "hdf5, compressed": (lay_out_hdf5, {"chunks": (3, 6, 8, 3), **GZIP}, Hdf5Store),
    "hdf5, compressed parts": (lay_out_hdf5, {"chunks": (4, 4, 3, 2), **GZIP}, Hdf5Store),
}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]


@pytest.fixture
def opened(layout: Layout, tmp_path: Path) -> Iterator[OpenedStore]:
    lay_out, settings, kind = layout
    (tmp_path / "data").mkdir()
    opened = OpenedStore(lay_out(tmp_path / "data", PIXELS, settings), tmp_path / "state")
    assert isinstance(opened.store, kind)
    yield opened
    opened.close()


def data_file(folder: Path) -> Path:
    """The file of a store that holds its last row."""
    return max(path for path in folder.rglob("*") if path.is_file() and "lock" not in path.name)


def test_rows_are_gathered_in_the_order_asked_for(opened: OpenedStore) -> None:
    images, held = opened.gather(*IDS)
    assert np.array_equal(images, PIXELS[IDS])
    assert held == [True] * 6


def test_a_store_does_not_hold_padding(opened: OpenedStore) -> None:
    images, held = opened.gather(3, PAD_ID, 8)
    assert held == [True, False, True]
    assert np.array_equal(images[[0, 2]], PIXELS[[3, 8]])
    assert opened.store.find_gatherable(np.array([PAD_ID, 0], np.int64)).tolist() == [False, True]


def test_prefetching_changes_no_row(opened: OpenedStore) -> None:
    opened.store.prefetch_rows(np.array([19, PAD_ID, 0], np.int64))
    assert np.array_equal(opened.gather(19, 0)[0], PIXELS[[19, 0]])


def test_a_part_of_a_split_has_the_images_of_its_names(layout: Layout, tmp_path: Path) -> None:
    lay_out, settings, _ = layout
    source = {**lay_out(tmp_path, PIXELS, settings), "part": "validation"}
    opened = OpenedStore(source, tmp_path / "state", {"split": {"validation": 0.4}})
    whole = OpenedStore({**source, "part": "all"}, tmp_path / "state")
    rows = {whole.stream.format_file_name(row): row for row in range(20)}
    ids = range(opened.stream.manifest.samples)
    assert 0 < len(ids) < 20
    assert np.array_equal(opened.gather(*ids)[0], PIXELS[[rows[opened.stream.format_file_name(each)] for each in ids]])
    opened.close()
    whole.close()


def test_a_store_no_longer_holds_rows_of_a_changed_file(opened: OpenedStore, tmp_path: Path) -> None:
    file = data_file(tmp_path / "data")
    before = file.stat().st_mtime_ns
    if not isinstance(opened.store, LmdbStore | Hdf5Store):  # which look at what is written inside
        change_times(file, before + 1)
        assert opened.gather(0)[1] == [False]
        assert opened.store.find_permanent_fault(0) == ""
        change_times(file, before)
        assert opened.gather(0)[1] == [True]
    change_times(file, before + 1)
    with pytest.raises(ConfigError, match=rf"'[^']*{file.name}' is stale: changed since it was listed"):
        opened.open_again()
    file.unlink()
    if not isinstance(opened.store, LmdbStore | Hdf5Store):
        assert opened.gather(0)[1] == [False]
    with pytest.raises(
        ConfigError, match=rf"'{file.name}' is not in '.*' any more; bring it back, or set source\.path"
    ):
        opened.open_again()


def test_closing_a_store_closes_its_mappings_and_files(opened: OpenedStore, tmp_path: Path) -> None:
    def count_mappings() -> int:
        return Path("/proc/self/maps").read_text().count(str(tmp_path / "data"))

    if not isinstance(opened.store, Hdf5Store):  # whose library reads
        assert count_mappings() > 0
    opened.store.close()  # a descriptor that stays open fails the test afterwards
    assert count_mappings() == 0
    opened.store = opened.open_again()


def test_other_numbers_become_pixels_and_a_row_with_nan_has_a_permanent_fault(layout: Layout, tmp_path: Path) -> None:
    lay_out, settings, _ = layout
    source = {**lay_out(tmp_path, FRACTIONS, settings), "range": [0, 1]}
    opened = OpenedStore(source, tmp_path / "state")
    images, held = opened.gather(19, 7, PAD_ID, 0)
    assert held == [True, False, False, True]
    assert np.array_equal(images[[0, 3]], PIXELS[[19, 0]])
    faults = [opened.store.find_permanent_fault(row) for row in (7, 19)]
    assert faults == ["a pixel is not a number (NaN)", ""]
    opened.close()


@pytest.mark.parametrize(
    ("axes", "images", "served"),
    [((0, 3, 1, 2), PIXELS.transpose(0, 3, 1, 2), PIXELS), ((0, 1, 2), PIXELS[..., 0], PIXELS[..., :1])],
    ids=["channels first", "grey"],
)
def test_images_with_channels_first_or_without_channels_are_served_channels_last(
    layout: Layout, tmp_path: Path, axes: tuple[int, ...], images: Any, served: Any
) -> None:
    lay_out, settings, _ = layout
    if lay_out is lay_out_hdf5 and settings["chunks"]:
        settings = {**settings, "chunks": tuple(settings["chunks"][axis] for axis in axes)}
    source = lay_out(tmp_path, np.ascontiguousarray(images), settings)
    opened = OpenedStore(source, tmp_path / "state", {"image": {"mode": "RGB" if served.shape[-1] == 3 else "L"}})
    assert np.array_equal(opened.gather(*IDS)[0], served[IDS])
    opened.close()


def test_prefetching_advises_the_system_of_the_bytes_of_the_rows(
    opened: OpenedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, offset, size, _: asked.append(os.pread(file, size, offset)))
    opened.store.prefetch_rows(np.array([19, PAD_ID, 0, 7], np.int64))
    if isinstance(opened.store, Hdf5Store):  # reading ahead would take the library's lock
        assert asked == []
        return
    pieces = len(asked) // 3
    for place, row in enumerate((19, 0, 7)):
        found = b"".join(asked[place * pieces : (place + 1) * pieces])
        if pieces == 1:
            assert found == PIXELS[row].tobytes()
        else:
            assert sum(found) == PIXELS[row].sum()  # zeros lie beyond the edges of an array


def test_prefetching_stops_once_rows_come_from_memory(opened: OpenedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: asked.append(1))
    assert isinstance(opened.store, RowStore)
    monkeypatch.setattr(opened.store._prefetcher, "_quick_s", 60.0)
    for _ in range(100):
        opened.store.prefetch_rows(np.array([3, 4], np.int64))
    pieces = 0 if isinstance(opened.store, Hdf5Store) else max(2, len(asked) // 64)
    assert len(asked) == 64 * pieces
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_majflt=1 << 40))
    opened.gather(3)
    opened.store.prefetch_rows(np.array([3, 4], np.int64))
    assert len(asked) == 65 * pieces
