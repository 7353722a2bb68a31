"""Arrays of an HDF5 file are found by name; arrays whose data lie in other files are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support.hdf5_types import bfloat16, biased, bits

from streamd.dataset.hdf5 import arrays
from streamd.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.h5"


@pytest.fixture
def file(path: Path) -> Iterator[Any]:
    with h5py.File(path, "w") as file:
        file["train/images"] = np.zeros((2, 4, 5, 3), np.uint8)
        file["train/labels"] = np.arange(2)
        yield file


def refusal(file: Any, name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        arrays.find_array(file, name, Path(file.filename), "key")
    return str(caught.value)


@pytest.mark.parametrize("name", ["/train/labels", "train/labels", "/train/labels/"])
def test_an_array_is_found_under_every_spelling_of_its_name(file: Any, path: Path, name: str) -> None:
    found = arrays.find_array(file, name, path, "key")
    assert found.name == "/train/labels"
    assert found.read_values("key").tolist() == [0, 1]
    assert found.display_name == f"/train/labels of '{path}'"


def test_a_missing_array_is_refused_with_the_arrays_of_the_file_images_first(file: Any) -> None:
    said = refusal(file, "/train/image")
    assert said.startswith("key: there is no array '/train/image' in ")
    assert "it has /train/images (uint8 (2, 4, 5, 3)), /train/labels (int64 (2,))" in said
    assert said.endswith("did you mean '/train/images'?")
    assert "'/train' is not an array in " in refusal(file, "/train")


def test_a_file_without_arrays_says_so_and_of_many_some_are_named(file: Any) -> None:
    for number in range(20):
        file[f"more/{number}"] = np.zeros(number + 1)
    assert " and 14 more" in refusal(file, "/y")
    del file["train"], file["more"]
    assert "it holds no arrays at all" in refusal(file, "/y")


def test_arrays_in_other_files_are_refused(file: Any, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = np.zeros((2, 4, 5, 3), np.uint8)
    file["link"] = h5py.ExternalLink("other.h5", "/x")
    file["group"] = h5py.ExternalLink("other.h5", "/")
    layout = h5py.VirtualLayout((2, 4, 5, 3), np.uint8)
    layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "x", (2, 4, 5, 3))
    file.create_virtual_dataset("virtual", layout)
    file.create_dataset("raw", (2, 4, 5, 3), np.uint8, external=[(str(tmp_path / "raw"), 0, 120)])
    for name in ("/link", "/group/x", "/virtual", "/raw"):
        assert f"{name} of" in refusal(file, name)
        assert "only points to data in another file" in refusal(file, name)


def test_a_missing_decompressor_is_named_with_the_remedy(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file.create_dataset("packed", data=np.zeros((2, 4, 5, 3), np.uint8), compression="lzf")
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda _: False)
    said = refusal(file, "/packed")
    assert "/packed of" in said
    assert "is compressed by lzf, which h5py does not have" in said
    assert "; pip install hdf5plugin, or name the folder of its plugin" in said
    assert "ptrepack --complevel=0" in said


def test_labels_that_are_damaged_are_refused_by_name(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(100), compression="gzip", chunks=(100,))
        place = file["x"].id.get_chunk_info(0).byte_offset
    with path.open("r+b") as raw:
        raw.seek(place)
        raw.write(b"\0" * 8)
    with h5py.File(path) as file, pytest.raises(ConfigError, match=r"key: /x of .* is damaged"):
        arrays.find_array(file, "x", path, "key").read_values("key")


@pytest.mark.parametrize("name", ["/round", "/one", "/round/x", "/train/in", "/train/in/it"])
def test_a_link_that_leads_to_itself_is_refused_by_name(file: Any, name: str) -> None:
    links = {"/round": "/round", "/one": "/other", "/other": "/one", "/train/in": "/train/in/it"}
    for link, target in links.items():
        file[link] = h5py.SoftLink(target)
    said = refusal(file, name)
    assert said.startswith(f"key: '{name}' cannot be followed in ")
    assert said.endswith("a link must not point to itself")


def test_the_root_group_is_not_an_array(file: Any) -> None:
    assert "'/' is not an array in " in refusal(file, "/")


def test_values_without_a_numpy_type_are_refused_and_not_suggested(file: Any) -> None:
    h5py.h5d.create(file.id, b"times", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((2,)))
    assert "holds values of a type that NumPy does not have" in refusal(file, "/times")
    assert "times" not in refusal(file, "/missing")


ANGLES = np.array([0.5, -1.5, 3], np.float32)


@pytest.mark.parametrize("stored", [bfloat16(), biased(100)], ids=["bfloat16", "another bias"])
def test_labels_in_float_types_that_numpy_lacks_keep_their_values(
    file: Any, path: Path, stored: h5py.h5t.TypeFloatID
) -> None:
    angles = h5py.h5d.create(file.id, b"angles", stored, h5py.h5s.create_simple(ANGLES.shape))
    angles.write(h5py.h5s.ALL, h5py.h5s.ALL, ANGLES)
    assert arrays.find_array(file, "/angles", path, "key").read_values("key").tolist() == ANGLES.tolist()


def table_of(file: Any, stored: h5py.h5t.TypeFloatID) -> None:
    """/table with the columns angle, as stored, and class."""
    row = h5py.h5t.create(h5py.h5t.COMPOUND, stored.get_size() + 2)
    row.insert(b"angle", 0, stored)
    row.insert(b"class", stored.get_size(), bits(h5py.h5t.STD_U16LE, 8, 4))
    rows = np.array(list(zip(ANGLES, [3, 1, 2], strict=True)), [("angle", "f4"), ("class", "u2")])
    table = h5py.h5d.create(file.id, b"table", row, h5py.h5s.create_simple(rows.shape))
    table.write(h5py.h5s.ALL, h5py.h5s.ALL, rows)


def test_columns_in_types_that_numpy_lacks_keep_their_values(file: Any, path: Path) -> None:
    table_of(file, bfloat16())
    assert arrays.find_array(file, "/table/angle", path, "key").read_values("key").tolist() == ANGLES.tolist()
    assert arrays.find_array(file, "/table/class", path, "key").read_values("key").tolist() == [3, 1, 2]


def test_a_table_that_numpy_has_no_type_for_is_refused(file: Any) -> None:
    table_of(file, biased(100))
    assert "/table/class of" in refusal(file, "/table/class")
    assert "holds values of a type that NumPy does not have" in refusal(file, "/table/class")
