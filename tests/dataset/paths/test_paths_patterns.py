"""The .npy files that a path names, and their headers; other files are refused with the remedy."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamd.dataset.paths import patterns
from streamd.dataset.paths.patterns import TAR_FILES, FileKind, MatchedFiles, find_files, read_npy_header
from streamd.errors import ConfigError

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def saved(folder: Path, *names: str, array: Any = PIXELS) -> Path:
    """The folder, with the array in files of these names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(folder / name, array)
    return folder


def found(path: Path | str, besides: Collection[Path] = ()) -> MatchedFiles:
    return find_files(str(path), "k", besides, lambda _: None)


@pytest.mark.parametrize("array", [PIXELS, PIXELS.astype(">f8"), np.array(["a", "bcd"]), np.zeros((0, 3))], ids=str)
def test_a_header_gives_shape_dtype_and_offset(tmp_path: Path, array: Any) -> None:
    header = read_npy_header(saved(tmp_path, "a.npy", array=array) / "a.npy", "k")
    assert (header.shape, header.dtype) == (array.shape, array.dtype)
    data = (tmp_path / "a.npy").read_bytes()
    assert (data[header.offset :], len(data)) == (array.tobytes(), header.end_offset)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)], ids=str)
def test_every_version_of_the_format_is_read(tmp_path: Path, version: tuple[int, int]) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, PIXELS, version)
    assert read_npy_header(tmp_path / "a.npy", "k").shape == (2, 3, 4)


def test_a_truncated_array_is_refused_with_its_bytes(tmp_path: Path) -> None:
    path = saved(tmp_path, "a.npy") / "a.npy"
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    says = rf"^k: '.*a\.npy' is truncated: it has {whole - 1} of {whole} bytes; copy or write it again$"
    with pytest.raises(ConfigError, match=says):
        read_npy_header(path, "k")


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.asfortranarray(PIXELS), "is in Fortran order"),
        (np.array([{}, []], dtype=object), "holds Python objects"),
    ],
    ids=["fortran", "objects"],
)
def test_an_array_that_cannot_be_mapped_by_rows_is_refused(tmp_path: Path, array: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_npy_header(saved(tmp_path, "a.npy", array=array) / "a.npy", "k")


@pytest.mark.parametrize(
    "data", [b"", b"\x93NUMPY", b"\x93NUMPY\x09\x00v\x00", b"\x93NUMPY\x01\x00\x02\x00{}", b"x" * 99]
)
def test_a_file_that_is_not_npy_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(ConfigError, match=r"'.*a\.npy' is not an \.npy file: .*; write it with np\.save"):
        read_npy_header(tmp_path / "a.npy", "k")


def with_header(path: Path, text: str) -> Path:
    """A file that begins with a header of our own, and has bytes after it."""
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(99))
    return path


@pytest.mark.parametrize("shape", ["(-2, 3, 4)", "(2, -3, -4)", "(-1,)"])
def test_a_header_with_a_negative_shape_is_refused_as_damaged(tmp_path: Path, shape: str) -> None:
    path = with_header(tmp_path / "a.npy", f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}")
    with pytest.raises(ConfigError, match=rf"is damaged: its header describes an array of {re.escape(shape)}; write"):
        read_npy_header(path, "k")


@pytest.mark.parametrize(
    "text", ["{" * 99, "'''x", "{[]: 1}", "-" * 9000 + "1", "{'descr': ',u1', 'shape': (1,)}", "{b'a': 1, 'b': 1}"]
)
def test_a_malformed_header_is_refused_whatever_numpy_raises(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"write it with np\.save"):
        read_npy_header(with_header(tmp_path / "a.npy", text), "k")


def test_an_npz_archive_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=PIXELS)
    with pytest.raises(ConfigError, match=r"is an archive of arrays; save each with np\.save"):
        read_npy_header(tmp_path / "a.npz", "k")


def test_a_path_of_one_file_has_its_folder_as_root(tmp_path: Path) -> None:
    files = found(saved(tmp_path, "a.npy", "b.npy") / "b.npy")
    assert (files.root, files.names) == (tmp_path, [b"b.npy"])
    stat = (tmp_path / "b.npy").stat()
    assert (files.sizes.tolist(), files.mtimes_ns.tolist()) == ([stat.st_size], [stat.st_mtime_ns])
    assert files.file_path(0) == tmp_path / "b.npy"


def test_a_link_to_a_file_has_the_folder_of_its_target_as_root(tmp_path: Path) -> None:
    saved(tmp_path / "far", "big.npy")
    (tmp_path / "a.npy").symlink_to("far/big.npy")
    files = found(tmp_path / "a.npy")
    assert (files.root, files.names) == (tmp_path / "far", [b"big.npy"])


def test_the_arrays_of_a_folder_are_in_byte_order(tmp_path: Path) -> None:
    saved(tmp_path, "b.npy", "a10.npy", "a9.npy", "B.npy", "é.npy", ".hidden.npy", "inner/c.npy")
    (tmp_path / "notes.txt").write_text("x")
    files = found(tmp_path)
    assert (files.root, files.names) == (tmp_path, [b"B.npy", b"a10.npy", b"a9.npy", b"b.npy", "é.npy".encode()])


def test_a_pattern_has_its_last_folder_without_wildcards_as_root(tmp_path: Path) -> None:
    saved(tmp_path, "day1/x-0.npy", "day2/x-1.npy", "day2/y.npy", "x-2.npy")
    files = found(tmp_path / "day[0-9]" / "x-*.npy")
    assert (files.root, files.names) == (tmp_path, [b"day1/x-0.npy", b"day2/x-1.npy"])


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    assert found(saved(tmp_path, "a[1].npy", "a1.npy") / "a[1].npy").names == [b"a[1].npy"]


def test_arrays_of_labels_in_the_same_folder_are_excluded(tmp_path: Path) -> None:
    saved(tmp_path, "x.npy", "y.npy")
    assert found(tmp_path, [tmp_path / "." / "y.npy"]).names == [b"x.npy"]


def test_more_files_than_a_worker_maps_are_refused(tmp_path: Path) -> None:
    few = FileKind(".npy", max_files=2)
    saved(tmp_path, "a.npy", "b.npy")
    assert len(find_files(str(tmp_path), "k", (), lambda _: None, few).names) == 2
    saved(tmp_path, "c.npy")
    with pytest.raises(ConfigError, match=r"matches 3 files, .* at most 2 are allowed: join some with np\.concatenate"):
        find_files(str(tmp_path), "k", (), lambda _: None, few)


def test_braces_are_refused_with_the_pattern_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"braces have no special meaning here; write '.*/a-\*\.tar'$"):
        find_files(str(tmp_path / "a-{000..012}.tar"), "k", (), lambda _: None, TAR_FILES)
    assert found(saved(tmp_path, "a-{0}.npy") / "a-{0}.npy").names == [b"a-{0}.npy"]


def test_files_of_another_kind_are_found_by_their_own_suffix(tmp_path: Path) -> None:
    saved(tmp_path, "a.npy", "b.tar.npy")
    (tmp_path / "c.tar").touch()
    assert find_files(str(tmp_path), "k", (), lambda _: None, TAR_FILES).names == [b"c.tar"]
    with pytest.raises(ConfigError, match=r"matches no \.tar file"):
        find_files(str(tmp_path / "a*"), "k", [tmp_path / "a.npy"], lambda _: None, TAR_FILES)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("none.npy", "there is no '.*none.npy'; the nearest folder that exists"),
        ("none/*.npy", "there is no '.*none'; the nearest folder that exists"),
        ("x*.npy", r"'.*x\*\.npy' matches no \.npy file; correct it, or name the folder of the files"),
        ("empty", r"'.*empty' matches no \.npy file"),
        ("*", r"'.*empty' is not a regular file"),
    ],
)
def test_a_path_that_names_nothing_is_refused(tmp_path: Path, path: str, told: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=f"^k: {told}"):
        found(tmp_path / path)


def test_a_link_out_of_the_folder_is_refused_and_one_to_nowhere_too(tmp_path: Path) -> None:
    saved(tmp_path, "far.npy", "in/a.npy")
    (tmp_path / "in/b.npy").symlink_to(tmp_path / "far.npy")
    with pytest.raises(ConfigError, match=r"points to '.*far\.npy', outside '"):
        found(tmp_path / "in")
    (tmp_path / "far.npy").unlink()
    (tmp_path / "in/b.npy").unlink()
    (tmp_path / "in/b.npy").symlink_to("nowhere.npy")
    with pytest.raises(ConfigError, match=r"the link 'b\.npy' points to a file that does not exist"):
        found(tmp_path / "in")


def test_a_file_that_is_removed_during_the_scan_is_not_reported_as_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, "a.npy", "b.npy")
    named = patterns._glob_names

    def listed(path: str, key: str, suffix: str) -> tuple[Path, list[bytes]]:
        found = named(path, key, suffix)
        (tmp_path / "b.npy").unlink()
        return found

    monkeypatch.setattr(patterns, "_glob_names", listed)
    with pytest.raises(ConfigError, match=r"^k: '.*b\.npy' was removed while the files were listed; list them again$"):
        found(tmp_path)


def test_the_files_that_a_path_names_are_found_without_reading_one(tmp_path: Path) -> None:
    for name in ("a.npy", "b.npy", "c.txt"):
        (tmp_path / name).touch()
    assert patterns.glob_files(str(tmp_path)) == [tmp_path / "a.npy", tmp_path / "b.npy"]
    assert patterns.glob_files(str(tmp_path / "b.npy")) == [tmp_path / "b.npy"]
    assert patterns.glob_files(str(tmp_path / "?.txt")) == [tmp_path / "c.txt"]
    assert patterns.glob_files(str(tmp_path / "none.npy")) == []
