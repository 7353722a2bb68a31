"""A root is recognized as the listed one by names and sizes of a few files alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon_process import write_images
from support.record_readers import open_records
from support.served_folder import change_times, serve
from support.tar_shards import pack

from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.paths.open_beneath import choose_expected_files, find_absence_reason, is_root_proven
from streamd.limits import PROOF_SAMPLES

Serve = Callable[..., ServedStream]
COUNT = 40


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serve]:
    streams: list[ServedStream] = []

    def make(**changes: Any) -> ServedStream:
        streams.append(serve(tmp_path / "data", tmp_path / "state", **changes))
        return streams[-1]

    yield make
    for stream in streams:
        stream.manifest.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", {"cat": COUNT // 2, "dog": COUNT // 2}, size=(8, 8))


def absence(stream: ServedStream) -> str:
    return find_absence_reason(choose_expected_files(stream.manifest))


def test_the_sixteen_drawn_samples_depend_only_on_the_list(served: Serve, folder: Path, tmp_path: Path) -> None:
    drawn = choose_expected_files(served().manifest).chosen_files
    assert len(set(drawn)) == PROOF_SAMPLES == 16
    copy = serve(Path(shutil.copytree(folder, tmp_path / "copy")), tmp_path / "other")
    assert choose_expected_files(copy.manifest).chosen_files == drawn
    (folder / "cat" / "0000.jpg").unlink()
    assert choose_expected_files(served(split={"validation": 0.1, "seed": 1}).manifest).chosen_files != drawn
    copy.manifest.close()


def test_all_samples_of_a_small_list_are_drawn(served: Serve, tmp_path: Path) -> None:
    write_images(tmp_path / "data", {"cat": 3}, size=(8, 8))
    assert min(choose_expected_files(served().manifest).chosen_files)[0] == b"cat/0000.jpg"
    assert len(choose_expected_files(served().manifest).chosen_files) == 3


@pytest.mark.parametrize(("missing", "proven"), [(0, True), (8, True), (9, False), (16, False)])
def test_a_root_is_proven_by_at_least_half_of_the_drawn_files(
    served: Serve, folder: Path, missing: int, *, proven: bool
) -> None:
    drawn = choose_expected_files(served().manifest).chosen_files
    for name, _ in drawn[:missing]:
        (folder / os.fsdecode(name)).unlink()
    root = os.open(folder, os.O_RDONLY)
    assert is_root_proven(root, drawn) is proven
    os.close(root)
    assert (absence(served()) == "") is proven


def test_files_of_other_sizes_and_folders_in_their_place_prove_nothing(served: Serve, folder: Path) -> None:
    stream = served()
    for number, path in enumerate(sorted(folder.glob("*/*"))):
        path.unlink()
        if number % 2:
            path.mkdir()
        else:
            path.write_bytes(b"another picture")
    assert absence(stream) == (
        f"'{folder}' is empty, or not the folder that was listed: of 16 files drawn from the list, fewer than half are "
        "there with their listed sizes"
    )


def test_mtimes_inodes_and_links_to_the_root_do_not_matter(served: Serve, folder: Path, tmp_path: Path) -> None:
    stream = served()
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    for path in copy.glob("*/*"):
        change_times(path, 1)
    shutil.rmtree(folder)
    folder.symlink_to(copy)
    assert absence(stream) == ""


def test_a_root_that_is_missing_or_not_a_folder_is_reported_with_the_error_of_the_system(
    served: Serve, folder: Path
) -> None:
    stream = served()
    shutil.rmtree(folder)
    assert absence(stream) == f"'{folder}' cannot be opened: No such file or directory"
    folder.write_text("a file")
    assert absence(stream) == f"'{folder}' cannot be opened: Not a directory"


def test_a_shard_that_is_missing_is_away_and_one_that_has_changed_is_not(served: Serve, tmp_path: Path) -> None:
    for name in "ab":
        pack(tmp_path / "data" / f"{name}.tar", {f"{name}{row}.jpg": b"x" * 300 for row in range(4)})
    stream = served(source={"kind": "tar", "path": str(tmp_path / "data")}, labels={})
    assert absence(stream) == ""
    (tmp_path / "data" / "b.tar").write_bytes(b"other")
    assert absence(stream) == ""
    (tmp_path / "data" / "b.tar").unlink()
    assert absence(stream) == f"'b.tar' is not in '{tmp_path / 'data'}'"


def test_a_file_of_arrays_that_is_missing_is_away(served: Serve, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", np.zeros((9, 4, 4, 3), np.uint8))
    stream = served(source={"kind": "npy", "path": str(tmp_path / "data")}, image={}, labels={})
    size = (tmp_path / "data" / "x.npy").stat().st_size
    assert (absence(stream), set(choose_expected_files(stream.manifest).chosen_files)) == ("", {(b"x.npy", size)})
    (tmp_path / "data" / "x.npy").unlink()
    assert absence(stream) == f"'x.npy' is not in '{tmp_path / 'data'}'"


def test_a_file_of_a_further_image_that_is_missing_is_away_wherever_it_lies(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    for name in ("x.npy", "near.npy", "m/far.npy"):
        np.save(tmp_path / name, np.zeros((9, 4, 5, 3), np.uint8))
    images = {
        "photo": {"size": [4, 5]},
        "near": {"from": str(tmp_path / "near.npy"), "size": [4, 5]},
        "far": {"from": "far.npy", "root": str(tmp_path / "m"), "size": [4, 5]},
    }
    source = {"kind": "npy", "path": str(tmp_path / "x.npy")}
    with open_records({"source": source, "labels": {}, "images": images}, tmp_path) as reader:
        expected = choose_expected_files(reader.manifest)
    assert find_absence_reason(expected) == ""
    for name, folder in (("near.npy", tmp_path), ("far.npy", tmp_path / "m")):
        (folder / name).rename(tmp_path / "away")
        assert find_absence_reason(expected) == f"'{name}' is not in '{folder.resolve()}'"
        (tmp_path / "away").rename(folder / name)
    (tmp_path / "m").rename(tmp_path / "moved")
    assert find_absence_reason(expected).endswith("cannot be opened: No such file or directory")
