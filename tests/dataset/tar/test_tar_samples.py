"""Which files of a shard make one sample, which of them is its image, and which shards are refused."""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from support.tar_shards import pack

from streamd.dataset.tar.samples import Shard, format_suffixes, list_stray_files, read_shard
from streamd.errors import ConfigError


def shard_of(path: Path) -> Shard:
    """The shard, closed."""
    with path.open("rb") as file:
        return read_shard(os.fsencode(path.name), file.fileno(), path.stat().st_size, "path", lambda _: None)


def images(tmp_path: Path, *names: str) -> list[str]:
    shard = shard_of(pack(tmp_path / "a.tar", dict.fromkeys(names, b"x")))
    return [image.name.decode() for image in shard.images.values()]


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        shard_of(path)
    return str(caught.value)


def test_images_are_in_byte_order_of_their_names_however_they_are_packed(tmp_path: Path) -> None:
    assert images(tmp_path, "b.jpg", "a/2.png", "Z.jpg", "a/10.WEBP", "a.jpg") == [
        "Z.jpg", "a.jpg", "a/10.WEBP", "a/2.png", "b.jpg",
    ]  # fmt: skip


def test_files_with_the_same_key_belong_to_its_image(tmp_path: Path) -> None:
    names = ["a/1.jpg", "a/1.cls", "a/1.Meta.JSON", "a.b/1.cls", "a.b/1.jpg", "b.cls", "README"]
    shard = shard_of(pack(tmp_path / "a.tar", dict.fromkeys(names, b"x")))
    assert {suffix: list(files) for suffix, files in shard.other_files.items()} == {
        b"cls": [b"a/1", b"a.b/1", b"b"], b"meta.json": [b"a/1"], b"": [b"README"],
    }  # fmt: skip
    assert list(shard.images) == [b"a.b/1", b"a/1"]
    assert list_stray_files(shard) == [(b"cls", b"b"), (b"", b"README")]
    assert shard.suffix_summary == "3 .cls, 2 .jpg, 1 .meta.json, 1 without one"


def test_leading_dots_and_slashes_are_removed_and_hidden_names_are_skipped(tmp_path: Path) -> None:
    hidden = [".a.jpg", "./._b.jpg", "x/.cache/c.jpg", "__MACOSX/d.jpg"]
    assert images(tmp_path, *hidden, "./e.jpg", "/f.jpg", "../../g.jpg", "h/../i.jpg") == [
        "e.jpg", "f.jpg", "g.jpg", "h/../i.jpg",
    ]  # fmt: skip


def test_the_shortest_suffix_is_the_image_of_a_sample(tmp_path: Path) -> None:
    assert images(tmp_path, "1.seg.png", "1.jpg", "2.left.jpg") == ["1.jpg", "2.left.jpg"]


def test_two_images_of_one_sample_are_refused_by_name(tmp_path: Path) -> None:
    assert refusal(pack(tmp_path / "a.tar", {"1.jpg": b"", "1.png": b""})) == (
        "path: 'a.tar' holds '1.jpg' and '1.png', which are two images of one sample, because their names are the "
        "same up to the first dot; a sample has only one image: pack the other image elsewhere, or under another name"
    )
    assert "'1.left.jpg' and '1.right.jpg', which are two images" in refusal(
        pack(tmp_path / "a.tar", {"1.left.jpg": b"", "1.right.jpg": b""})
    )


@pytest.mark.parametrize("name", ["1.jpg", "1.cls"])
def test_a_duplicate_name_is_refused(tmp_path: Path, name: str) -> None:
    path = pack(tmp_path / "a.tar", [("0.jpg", b""), (name, b"a"), (name, b"b")])
    assert refusal(path) == f"path: 'a.tar' holds '{name}' twice; pack the shard again with only one of them"


def test_links_are_refused_only_in_the_place_of_images(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
        link = tarfile.TarInfo("latest")
        link.type, link.linkname = tarfile.SYMTYPE, "a.jpg"
        tar.addfile(link)
    assert len(shard_of(tmp_path / "a.tar").images) == 1
    with tarfile.open(tmp_path / "a.tar", "a") as tar:
        link.name, link.type = "b.JPG", tarfile.LNKTYPE
        tar.addfile(link)
    assert refusal(tmp_path / "a.tar") == (
        "path: 'a.tar' holds links in place of images: 'b.JPG'; pack it again with tar --dereference --hard-dereference"
    )


def test_a_truncated_shard_is_refused_with_the_number_of_whole_images(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", {"0.jpg": b"x" * 600, "0.cls": b"1", "1.jpg": b"y" * 600, "2.jpg": b"z" * 600})
    os.truncate(path, path.read_bytes().index(b"z" * 600) + 300)
    message = refusal(path)
    assert message.startswith("path: 'a.tar': it is truncated at byte ")
    assert message.endswith("; copy it again, or keep its 2 whole images with truncate -s 4096")


def test_suffixes_are_listed_by_frequency_without_the_rarest() -> None:
    counts = Counter({b"b%d" % number: number + 1 for number in range(9)})
    assert format_suffixes(counts) == "9 .b8, 8 .b7, 7 .b6, 6 .b5, 5 .b4, 4 .b3, 3 .b2, 2 .b1"
    assert format_suffixes(Counter({b"\x1b[31m\xff": 2, b"": 1})) == r"2 .\x1b[31m\xff, 1 without one"
