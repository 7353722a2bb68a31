"""Whether all pictures have one size."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.daemon_process import write_images
from support.tar_shards import pack_folder

from streamd.daemon.starter.picture_sizes import PictureHead, SizeFindings, find_common_size, read_picture_head
from streamd.dataset.files import FolderSource
from streamd.dataset.manifest.types import ScannedSamples
from streamd.dataset.scan import scan_source
from streamd.dataset.sources import DataSource, ListingRequest
from streamd.dataset.tar import TarSource


def scan(source: DataSource) -> ScannedSamples:
    return scan_source(ListingRequest("train", source), lambda _: None)


def encode(size: tuple[int, int], form: str = "JPEG", mode: str = "RGB", orientation: int = 1) -> bytes:
    picture, file = Image.new(mode, size), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture.save(file, form, **({"exif": exif} if orientation > 1 else {}))
    return file.getvalue()


def test_all_pictures_are_read_when_all_sizes_are_equal(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 30, "dog": 20})
    seen: list[int] = []
    found = find_common_size([scan(FolderSource(tmp_path))], seen.append)
    assert found == SizeFindings((40, 50), 50, is_grey=False)
    assert seen == [16, 34]


def test_two_different_sizes_end_the_search(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 40})
    (tmp_path / "cat" / "0001.jpg").write_bytes(encode((9, 8)))
    found = find_common_size([scan(FolderSource(tmp_path))], lambda _: None)
    assert (found.size, found.seen) == (None, 16)


def test_pictures_in_shards_are_read_in_place(tmp_path: Path) -> None:
    pack_folder(tmp_path / "s" / "0.tar", write_images(tmp_path / "a", {"cat": 3}))
    pack_folder(tmp_path / "s" / "1.tar", write_images(tmp_path / "b", {"cat": 2}))
    found = find_common_size([scan(TarSource(str(tmp_path / "s")))], lambda _: None)
    assert (found.size, found.seen) == ((40, 50), 5)


def test_unreadable_pictures_do_not_affect_the_common_size(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 2})
    (tmp_path / "cat" / "bad.jpg").write_text("<html>")
    found = find_common_size([scan(FolderSource(tmp_path))], lambda _: None)
    assert (found.size, found.seen, found.unreadable) == ((40, 50), 3, 1)


def test_pictures_are_grey_only_if_all_of_them_are(tmp_path: Path) -> None:
    for number in range(2):
        Image.fromarray(np.zeros((7, 5), np.uint8)).save(tmp_path / f"{number}.png")
    assert find_common_size([scan(FolderSource(tmp_path))], lambda _: None) == SizeFindings((7, 5), 2, is_grey=True)


@pytest.mark.parametrize(
    ("data", "head"),
    [
        (encode((30, 20)), PictureHead(20, 30, is_grey=False)),
        (encode((30, 20), orientation=6), PictureHead(30, 20, is_grey=False)),
        (encode((30, 20), "PNG", "L"), PictureHead(20, 30, is_grey=True)),
        (encode((30, 20), "WEBP", orientation=8), PictureHead(30, 20, is_grey=False)),
        (encode((30, 20))[:40], None),
        (b"", None),
        (b"text", None),
    ],
)
def test_a_head_is_read_as_the_picture_is_shown(data: bytes, head: PictureHead | None) -> None:
    assert read_picture_head(io.BytesIO(data)) == head
