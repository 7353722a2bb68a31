"""The benchmarks' data: made once, each set as it is described."""

from __future__ import annotations

from pathlib import Path

import make_data
import numpy as np
import pytest


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_data.make_all(folder, small=20, large=10)
    return folder


@pytest.mark.parametrize(("name", "count", "size"), [("s", 20, (128, 128)), ("l", 10, (375, 500))])
def test_a_set_has_its_images_in_ten_classes(data: Path, name: str, count: int, size: tuple[int, int]) -> None:
    files = make_data.files(data / name)

    assert (len(files), len({file.parent for file in files})) == (count, 10)
    assert {make_data.decoded(file).shape[:2] for file in files} == {size}


def test_the_array_and_the_colours_are_those_of_the_files_in_the_order_of_ids(data: Path) -> None:
    array, colours = np.load(data / "s.npy", mmap_mode="r"), np.load(data / "s.colours.npy")
    files = make_data.files(data / "s")

    assert (array.shape, array.dtype) == ((20, 128, 128, 3), np.uint8)
    assert all(np.array_equal(array[number], make_data.decoded(file)) for number, file in enumerate(files))
    assert colours == pytest.approx(array.mean(axis=(1, 2)), abs=0.01)
    assert [file.name for file in files[:3]] == ["00000.jpg", "00001.jpg", "00000.jpg"]


def test_what_is_there_is_kept(data: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    make_data.make_all(data, small=20, large=10)

    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before
