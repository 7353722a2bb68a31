"""An HDF5 file is opened by its descriptor; a file that cannot be read is refused with the reason."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from streamd.dataset.hdf5.arrays import UnfitHdf5Error, open_hdf5_file
from streamd.errors import MissingExtraError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=1024) as file:
        file["x"] = np.arange(3)
    return tmp_path / "x.h5"


@pytest.fixture
def descriptor(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_the_file_of_the_descriptor_is_read_after_it_was_renamed(path: Path, descriptor: int) -> None:
    path.rename(path.with_name("gone.h5"))
    with h5py.File(path, "w") as other:
        other["x"] = np.zeros(3)
    with open_hdf5_file(descriptor) as file:
        assert file["x"][:].tolist() == [0, 1, 2]


def test_a_file_that_a_writer_has_locked_is_refused_and_a_disk_without_locks_is_accepted(
    path: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with path.open("r+b") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        with pytest.raises(UnfitHdf5Error, match="another process has it open for writing"):
            open_hdf5_file(descriptor)

    def no_locks(_: int, __: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    open_hdf5_file(descriptor).close()


def test_an_open_file_is_not_locked(path: Path, descriptor: int) -> None:
    with open_hdf5_file(descriptor), path.open("r+b") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is not an HDF5 file"),
        (b"\x93NUMPY" + bytes(4000), "it is not an HDF5 file"),
        (b"\x89HDF\r\n\x1a\n" + bytes(4000), "it is damaged: .*; copy it again"),
    ],
    ids=["empty", "another", "damaged"],
)
def test_other_files_and_damaged_files_have_different_errors(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "y.h5").write_bytes(content)
    with (tmp_path / "y.h5").open("rb") as file, pytest.raises(UnfitHdf5Error, match=why):
        open_hdf5_file(file.fileno())


def test_a_file_that_its_writer_left_open_is_refused_with_how_to_repair_it(tmp_path: Path) -> None:
    writer = h5py.File(tmp_path / "y.h5", "w", libver="latest", locking=False)
    writer["x"] = np.arange(3)
    writer.flush()
    (tmp_path / "copy.h5").write_bytes((tmp_path / "y.h5").read_bytes())
    writer.close()
    with (tmp_path / "copy.h5").open("rb") as file, pytest.raises(UnfitHdf5Error, match="h5clear --status"):
        open_hdf5_file(file.fileno())


def test_without_the_library_the_extra_is_named(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'streamd-loader\[hdf5\]'"):
        open_hdf5_file(descriptor)


def test_an_installed_hdf5plugin_is_imported(tmp_path: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hdf5plugin.py").write_text("import os\nos.environ['PLUGINS'] = 'there'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PLUGINS", "")
    open_hdf5_file(descriptor).close()
    monkeypatch.delitem(sys.modules, "hdf5plugin")
    assert os.environ["PLUGINS"] == "there"
