"""`hdf5`, read back by h5py and PyTables."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import tables
from support.daemon_process import write_images
from support.pack_streams import pixels_of, read_back, subject_of, write_all
from support.served_folder import serve

from streamd.cli.pack.batches import PackJob, build_packing_stream
from streamd.cli.pack.write_hdf5 import Hdf5Writer
from streamd.errors import PackError


def test_pytables_reads_images_and_labels(shuffled_pack_job: PackJob, tmp_path: Path) -> None:
    writer = Hdf5Writer(shuffled_pack_job)
    sums = write_all(writer, shuffled_pack_job.stream)
    assert read_back(writer).tolist() == sums.tolist()
    order = np.concatenate([shuffled_pack_job.stream.compute_planned_ids(0, index) for index in range(3)])
    with tables.open_file(tmp_path / "pack") as file:
        assert np.array_equal(file.root.images[:], pixels_of(shuffled_pack_job.stream)[order])
        assert np.array_equal(file.root.images[1:3], pixels_of(shuffled_pack_job.stream)[order[1:3]])
        assert file.root.labels.label[:].tolist() == [[b"cat", b"dog", b"cat", b"cat", b"dog"][i] for i in order]
        assert file.root.numbers.label[:].tolist() == [[0, 1, 0, 0, 1][i] for i in order]
        assert file.root.classes.label[:].tolist() == [b"cat", b"dog"]
        assert file.root.labels.tags[:].tolist() == [[[1, 1], [0, 0], [1, 0], [0, 1], [1, 1]][i] for i in order]
        assert file.root.labels.where[:].shape == (5, 2)
        assert file.root.names[:].tolist() == [b"%c.png" % b"abcde"[i] for i in order]


def test_h5py_reads_the_samples_left_when_some_are_bad(pack_job: PackJob, tmp_path: Path) -> None:
    writer = Hdf5Writer(pack_job)
    write_all(writer, pack_job.stream, bad=np.array([0, 4]))
    with h5py.File(tmp_path / "pack") as file:
        assert np.array_equal(file["images"][:], pixels_of(pack_job.stream)[1:4])
        assert [text.decode() for text in file["labels/text"][:]] == ["naïve", "two words", "x"]
        assert file["labels/angle"][:].tolist() == [-1.25, 3, 0]


def test_large_images_are_contiguous_and_can_be_mapped(tmp_path: Path) -> None:
    served = serve(write_images(tmp_path / "data", {"a": 9}), tmp_path)
    stream = build_packing_stream(served, shuffled=False, batch_rows=4)
    writer = Hdf5Writer(subject_of(stream, tmp_path))
    sums = write_all(writer, stream)
    assert read_back(writer).tolist() == sums.tolist()
    with h5py.File(tmp_path / "pack") as file:
        images = file["images"]
        assert images.chunks is None
        mapped = np.memmap(tmp_path / "pack", np.uint8, "r", images.id.get_offset(), images.shape)
        assert np.array_equal(mapped, pixels_of(stream))
        assert np.array_equal(images[:], pixels_of(stream))
    stream.manifest.close()


def test_a_damaged_label_is_found(pack_job: PackJob, tmp_path: Path) -> None:
    writer = Hdf5Writer(pack_job)
    write_all(writer, pack_job.stream)
    with h5py.File(tmp_path / "pack", "r+") as file:
        file["labels/angle"][2] = 4
    with pytest.raises(PackError, match="does not read back from the disk as it was written"):
        read_back(writer)
