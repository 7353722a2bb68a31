"""Files are read below their root, whole and unchanged, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamd.dataset.paths.open_beneath import UnfitFileError, open_unchanged_file, read_file
from streamd.limits import MAX_FILE_BYTES


def read(root: Path, name: str, *, known: os.stat_result | None = None) -> bytes:
    """Reads a file as a manifest that `known` was written into knows it; one made just now, when not given."""
    known = known or (root / name).stat()
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return read_file(descriptor, os.fsencode(name), known.st_size, known.st_mtime_ns)
    finally:
        os.close(descriptor)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a file and a folder, and a secret beside it."""
    root = tmp_path / "root"
    (root / "cat").mkdir(parents=True)
    (root / "cat/a.jpg").write_bytes(b"inside")
    (root / "empty.jpg").write_bytes(b"")
    (tmp_path / "secret").write_bytes(b"secret")
    return root


def test_a_file_is_read_whole(root: Path) -> None:
    assert read(root, "cat/a.jpg") == b"inside"
    assert read(root, "empty.jpg") == b""


def test_a_name_may_have_any_bytes(root: Path) -> None:
    name = os.fsdecode(b"\xff\n.jpg")
    (root / name).write_bytes(b"odd")
    assert read(root, name) == b"odd"


def test_links_and_dots_that_stay_inside_are_followed(root: Path) -> None:
    (root / "here").symlink_to("cat")
    assert read(root, "here/../cat/a.jpg") == b"inside"


@pytest.mark.parametrize("name", ["../secret", "cat/../../secret", "cat/../../root/cat/a.jpg", "{}/cat/a.jpg"])
def test_names_with_dots_and_absolute_names_do_not_leave_the_root(root: Path, name: str) -> None:
    with pytest.raises(UnfitFileError, match="outside the data's root"):
        read(root, name.format(root))


@pytest.mark.parametrize("target", ["../secret", "{}/secret", "{}/root/cat/a.jpg", "../root/cat/a.jpg"])
def test_links_that_leave_the_root_are_refused_even_when_they_come_back(root: Path, target: str) -> None:
    (root / "link.jpg").symlink_to(target.format(root.parent))
    with pytest.raises(UnfitFileError, match="outside the data's root"):
        read(root, "link.jpg")


def test_a_folder_that_became_a_link_to_the_outside_is_refused(root: Path) -> None:
    known = (root / "cat/a.jpg").stat()
    (root / "cat").rename(root.parent / "cat")
    (root / "cat").symlink_to("../cat")
    with pytest.raises(UnfitFileError, match="outside the data's root"):
        read(root, "cat/a.jpg", known=known)


def test_a_link_to_itself_and_a_missing_file_are_the_systems_errors(root: Path) -> None:
    known = (root / "cat/a.jpg").stat()
    (root / "loop").symlink_to("loop")
    for name, kind in (("loop", "symbolic links"), ("none.jpg", "No such file"), ("cat/a.jpg/b", "Not a directory")):
        with pytest.raises(OSError, match=kind):
            read(root, name, known=known)


@pytest.mark.parametrize("name", ["cat", "pipe.jpg"])
def test_a_folder_or_fifo_named_like_an_image_is_neither_read_nor_waited_for(root: Path, name: str) -> None:
    os.mkfifo(root / "pipe.jpg")
    with pytest.raises(UnfitFileError, match="not a regular file"):
        read(root, name)


def test_a_file_that_became_a_fifo_is_neither_read_nor_waited_for(root: Path) -> None:
    known = (root / "cat/a.jpg").stat()
    (root / "cat/a.jpg").unlink()
    os.mkfifo(root / "cat/a.jpg")
    with pytest.raises(UnfitFileError, match="not a regular file"):
        read(root, "cat/a.jpg", known=known)
    writer = os.open(root / "cat/a.jpg", os.O_RDWR)  # and one that a writer holds open has nothing to be read yet
    try:
        with pytest.raises(UnfitFileError, match="not a regular file"):
            read(root, "cat/a.jpg", known=known)
    finally:
        os.close(writer)


@pytest.mark.parametrize("name", ["zero", "null"])
def test_devices_are_not_read(name: str) -> None:
    with pytest.raises(UnfitFileError, match="not a regular file"):
        read(Path("/dev"), name)


def test_a_sparse_giant_is_refused_before_it_is_read(root: Path) -> None:
    with (root / "giant.jpg").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(
        UnfitFileError, match=f"has {MAX_FILE_BYTES + 1} bytes, and at most {MAX_FILE_BYTES} are allowed"
    ):
        read(root, "giant.jpg")


@pytest.mark.parametrize(("content", "later_ns"), [(b"inside!", 0), (b"inside", 1)], ids=["another size", "later"])
def test_a_file_of_another_size_or_mtime_is_stale(root: Path, content: bytes, later_ns: int) -> None:
    path = root / "cat/a.jpg"
    known = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(known.st_mtime_ns, known.st_mtime_ns + later_ns))
    with pytest.raises(UnfitFileError, match="stale: changed since it was listed; restart with --rescan"):
        read(root, "cat/a.jpg", known=known)


def test_short_reads_are_joined(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: whole(descriptor, min(size, 2)))
    assert read(root, "cat/a.jpg") == b"inside"


@pytest.mark.parametrize(("said", "found"), [([b"ins", b""], 3), ([b"", b""], 0)])
def test_a_file_that_changes_while_it_is_read_is_stale(
    root: Path, monkeypatch: pytest.MonkeyPatch, said: list[bytes], found: int
) -> None:
    monkeypatch.setattr(os, "read", lambda *_: said.pop(0))
    with pytest.raises(UnfitFileError, match=f"stale: it has {found} bytes, but 6 were listed"):
        read(root, "cat/a.jpg")


def test_a_file_that_is_overwritten_while_it_is_read_is_stale_even_if_its_size_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, really_read = root / "cat/a.jpg", os.read
    known = file.stat()

    def read_slowly(descriptor: int, size: int) -> bytes:
        first = really_read(descriptor, 3)
        file.write_bytes(b"INSIDE")
        os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns + 1))
        return first + really_read(descriptor, size)

    monkeypatch.setattr(os, "read", read_slowly)
    with pytest.raises(UnfitFileError, match="stale"):
        read(root, "cat/a.jpg", known=known)


def test_a_file_to_be_mapped_is_opened_only_if_unchanged_and_below_its_root(root: Path) -> None:
    folder, known = os.open(root, os.O_RDONLY | os.O_DIRECTORY), (root / "cat/a.jpg").stat()
    try:
        descriptor = open_unchanged_file(folder, b"cat/a.jpg", known.st_size, known.st_mtime_ns)
        assert os.read(descriptor, 99) == b"inside"
        os.close(descriptor)
        for name, size in ((b"cat/a.jpg", known.st_size + 1), (b"../secret", known.st_size)):
            with pytest.raises(UnfitFileError):  # what stays open fails the test afterwards
                open_unchanged_file(folder, name, size, known.st_mtime_ns)
    finally:
        os.close(folder)
