"""`npy`, read back by NumPy and Arrow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.pack_streams import HEIGHT, WIDTH, pixels_of, read_back, write_all

from streamd.cli.pack.batches import PackJob
from streamd.cli.pack.write_npy import NpyWriter
from streamd.errors import PackError

ROW = HEIGHT * WIDTH * 3


@pytest.mark.parametrize("shard_bytes", [1, 2 * ROW, 10 * ROW])
def test_numpy_reads_all_images_in_their_order(shuffled_pack_job: PackJob, tmp_path: Path, shard_bytes: int) -> None:
    writer = NpyWriter(shuffled_pack_job, shard_bytes)
    sums = write_all(writer, shuffled_pack_job.stream)
    parts = [np.load(path) for path in sorted((tmp_path / "pack").glob("*.npy"))]
    order = np.concatenate([shuffled_pack_job.stream.compute_planned_ids(0, index) for index in range(3)])
    assert max(map(len, parts)) == max(1, min(5, shard_bytes // ROW))
    assert np.array_equal(np.concatenate(parts), pixels_of(shuffled_pack_job.stream)[order])
    assert read_back(writer).tolist() == sums.tolist()
    writer.close()


def test_arrow_reads_the_labels_a_row_an_image(pack_job: PackJob, tmp_path: Path) -> None:
    writer = NpyWriter(pack_job, 1 << 20)
    bad = np.array([1])
    write_all(writer, pack_job.stream, bad=bad)
    assert read_back(writer, bad).size == 4
    table = pq.read_table(tmp_path / "pack" / "labels.parquet")
    assert table.to_pydict() == {
        "name": ["a.png", "c.png", "d.png", "e.png"],
        "label": ["cat", "cat", "cat", "dog"],
        "angle": [0.5, 3, 0, 7.5],
        "tags": [["big", "red"], ["big"], ["red"], ["big", "red"]],
        "text": ["", "two words", "x", "y"],
        "where": [[1, 2], [5, 6], [7, 8], [9, 10]],
    }
    assert np.load(tmp_path / "pack" / "images-00000.npy", mmap_mode="r").shape == (4, HEIGHT, WIDTH, 3)


def spoil(path: Path, place: int) -> None:
    """Changes a byte of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def test_a_damaged_pixel_is_found(pack_job: PackJob, tmp_path: Path) -> None:
    writer = NpyWriter(pack_job, 1 << 20)
    sums = write_all(writer, pack_job.stream)
    spoil(tmp_path / "pack" / "images-00000.npy", 128 + ROW)
    assert (read_back(writer) != sums).tolist() == [False, True, False, False, False]
    writer.close()


def test_a_damaged_label_is_found(pack_job: PackJob, tmp_path: Path) -> None:
    writer = NpyWriter(pack_job, 1 << 20)
    write_all(writer, pack_job.stream)
    path = tmp_path / "pack" / "labels.parquet"
    spoil(path, path.read_bytes().index(b"cat"))
    with pytest.raises(PackError, match=r"labels\.parquet does not read back from the disk as it was written"):
        read_back(writer)
    writer.close()
