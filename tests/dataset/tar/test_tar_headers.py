"""The files of a tar, by its headers: in every format those that the standard library finds."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from support.tar_shards import pack

from streamd.dataset.tar.samples import BrokenTarError, TarReader

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
ABC = {"a.jpg": b"a" * 700, "b/b.jpg": b"", "c": b"c" * 512}


def walk(path: Path) -> tuple[TarReader, dict[bytes, bytes]]:
    """The tar after a walk, and its files."""
    with path.open("rb") as file:
        tar = TarReader(file.fileno(), path.stat().st_size)
        return tar, {member.name: tar.read_member(member) for member in tar.read_members()}


def refusal(path: Path) -> str:
    with pytest.raises(BrokenTarError) as caught:
        walk(path)
    return str(caught.value)


def cut(path: Path, size: int) -> Path:
    os.truncate(path, size)
    return path


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_every_format_gives_the_files_that_the_standard_library_finds(tmp_path: Path, form: int) -> None:
    files = {**ABC, "d" * 90 + "/" + "e" * 60 + ".jpg": b"long", "f" * 100: b"full", "ü.jpg": b"bytes"}
    path = pack(tmp_path / "a.tar", files, form=form)
    tar, found = walk(path)
    with tarfile.open(path) as theirs:
        assert list(found) == [os.fsencode(each.name) for each in theirs]
    assert list(found.values()) == list(files.values())
    assert (len(found), tar.has_end_mark) == (6, True)


def test_long_names_and_other_pax_records_are_read(tmp_path: Path) -> None:
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "a.tar", "w", format=form, pax_headers={"comment": "of all"}) as tar:
            member = tarfile.TarInfo("x" * 3000 + ".jpg")
            member.size, member.mtime = 3, 1.5  # a fraction stands in a header of its own
            tar.addfile(member, io.BytesIO(b"abc"))
        assert walk(tmp_path / "a.tar")[1] == {b"x" * 3000 + b".jpg": b"abc"}


def test_a_size_in_binary_is_read(tmp_path: Path) -> None:
    member = tarfile.TarInfo("a.jpg")
    member.size = 8 << 30
    header = member.tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "a.tar").write_bytes(header)
    os.truncate(tmp_path / "a.tar", 512 + (8 << 30))
    with (tmp_path / "a.tar").open("rb") as file:
        assert next(TarReader(file.fileno(), 512 + (8 << 30)).read_members()) == (b"a.jpg", 512, 8 << 30)


@pytest.mark.parametrize("size", [b"00000000008\0", b"-0000000001\0", b"0x000000010\0"])
def test_a_size_that_is_no_octal_number_is_damage(tmp_path: Path, size: bytes) -> None:
    path = pack(tmp_path / "a.tar", ABC)
    header = bytearray(path.read_bytes()[:512])
    header[124:136], header[148:156] = size, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path.write_bytes(bytes(header) + path.read_bytes()[512:])
    assert refusal(path) == "it is not a tar; name only tars, such as shards/*.tar"


def test_folders_and_devices_are_skipped_and_links_are_listed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for kind, name in [(tarfile.DIRTYPE, "d"), (tarfile.CHRTYPE, "c"), (tarfile.FIFOTYPE, "f")]:
            member = tarfile.TarInfo(name)
            member.type = kind
            tar.addfile(member)
        for kind, name in [(tarfile.LNKTYPE, "hard.jpg"), (tarfile.SYMTYPE, "soft.jpg")]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "a.jpg"
            tar.addfile(member)
        tar.addfile(tarfile.TarInfo("a.jpg"))
    tar_after, found = walk(tmp_path / "a.tar")
    assert (found, tar_after.links) == ({b"a.jpg": b""}, [b"hard.jpg", b"soft.jpg"])


@pytest.mark.parametrize(
    ("size", "told"),
    [
        (300, "it is truncated at byte 300, in 'a.jpg', which should end at byte 1,212"),
        (1100, "it is truncated at byte 1,100, in 'a.jpg', which should end at byte 1,212"),
        (1600, "it is truncated at byte 1,600, in a header, which should end at byte 2,048"),
        (2600, "it is truncated at byte 2,600, in 'c', which should end at byte 3,072"),
    ],
)
def test_a_truncated_tar_is_refused_with_the_place(tmp_path: Path, size: int, told: str) -> None:
    assert told in refusal(cut(pack(tmp_path / "a.tar", ABC), size))


def test_a_tar_truncated_between_two_files_only_lacks_its_end_mark(tmp_path: Path) -> None:
    tar, found = walk(cut(pack(tmp_path / "a.tar", ABC), 2048))
    assert (list(found), tar.has_end_mark) == ([b"a.jpg", b"b/b.jpg"], False)


@pytest.mark.parametrize("place", [0, 100, 124, 148, 156, 300])
def test_a_header_with_one_wrong_byte_is_detected(tmp_path: Path, place: int) -> None:
    path = pack(tmp_path / "a.tar", ABC)
    data = bytearray(path.read_bytes())
    data[1536 + place] ^= 0x11
    path.write_bytes(data)
    assert refusal(path) == "it is damaged: there is no header at byte 1,536; copy it again"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            gzip.compress(b"x" * 5000),
            "it is compressed, so its files cannot be read one by one: unpack it with gunzip",
        ),
        (bz2.compress(b"x" * 5000), "bunzip2"),
        (lzma.compress(b"x" * 5000), "unxz"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 600, "unzstd"),
        (b"\xff\xd8\xff" + b"x" * 5000, "it is not a tar; name only tars, such as shards/*.tar"),
        (b"short", "it is not a tar"),
    ],
    ids=["gzip", "bzip2", "xz", "zstd", "picture", "short"],
)
def test_compressed_tars_and_other_files_are_refused_with_the_remedy(tmp_path: Path, data: bytes, told: str) -> None:
    (tmp_path / "a.tar").write_bytes(data)
    assert told in refusal(tmp_path / "a.tar")


def test_concatenated_tars_are_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", ABC)
    path.write_bytes(path.read_bytes() * 2)
    assert refusal(path).startswith(
        "there is more after its end at byte 3,072, as happens when tars are joined with cat"
    )


def test_a_long_run_of_zeros_at_the_end_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", ABC)
    os.truncate(path, 1 << 21)
    assert refusal(path).startswith("from byte 3,072 on, it holds only zeros, as happens when a download stops")


def test_sparse_files_of_both_formats_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member = tarfile.TarInfo("a.jpg")
        member.type = b"S"
        tar.addfile(member)
    with tarfile.open(tmp_path / "b.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("b.jpg")
        member.pax_headers = {"GNU.sparse.name": "c.jpg"}
        tar.addfile(member)
    assert (
        refusal(tmp_path / "a.tar") == "'a.jpg' in it is stored as a sparse file: pack the tar again without --sparse"
    )
    assert refusal(tmp_path / "b.tar").startswith("'c.jpg' in it")


@pytest.mark.parametrize(
    "records", [b"0 path=x\n", b"99 path=x\n", b"9 path:x\n", b"x path=x\n", b"-9 path=x\n", b"\0" * 9]
)
def test_a_malformed_pax_header_is_damage(tmp_path: Path, records: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member = tarfile.TarInfo("pax")
        member.type, member.size = b"x", len(records)
        tar.fileobj.write(member.tobuf() + records.ljust(512, b"\0"))
    assert "it is damaged: there is no header at byte 512" in refusal(tmp_path / "a.tar")


def test_damage_anywhere_ends_a_walk_with_files_or_the_reason(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    whole = np.frombuffer(
        pack(tmp_path / "a.tar", {**ABC, "x" * 200: b"y"}, form=tarfile.PAX_FORMAT).read_bytes(), np.uint8
    )
    refused = 0
    for _ in range(100):
        data = whole[: int(rng.integers(1, whole.size))].copy()
        data[rng.integers(0, data.size, 3)] = rng.integers(0, 256, 3)
        (tmp_path / "b.tar").write_bytes(data.tobytes())
        try:
            walk(tmp_path / "b.tar")
        except BrokenTarError:
            refused += 1
    assert 50 < refused < 100
