"""The orientation comes from EXIF data alone, in every format that can hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden_files import STORED, exif, picture, stored, turned
from support.smooth_pictures import decoded, encoded

from streamd.core.spec import ImageSpec
from streamd.decode.pillow import find_orientation, parse_orientation, turn_upright

UPRIGHT = np.asarray(picture())
IMAGE = ImageSpec(*UPRIGHT.shape)
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
LOSSLESS = [("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"})]


@pytest.mark.fault("29", "orientations 1 to 8 in PNG, WebP and TIFF")
@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize(("name", "options"), LOSSLESS, ids=["png", "webp", "tiff", "tiff-lzw"])
def test_every_orientation_is_undone(name: str, options: dict[str, Any], orientation: int) -> None:
    assert np.array_equal(decoded(turned(orientation, name, **options), IMAGE), UPRIGHT)


@pytest.mark.parametrize("orientation", STORED)
def test_turning_upright_undoes_the_stored_orientation(orientation: int) -> None:
    assert np.array_equal(np.asarray(turn_upright(stored(picture(), orientation), orientation)), UPRIGHT)


@pytest.mark.parametrize("orientation", STORED)
def test_avif_is_turned_once(orientation: int) -> None:
    data = turned(orientation, "AVIF", quality=95, subsampling="4:4:4")
    assert np.abs(decoded(data, IMAGE).astype(int) - UPRIGHT).max() < 40


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_out_of_range_is_upright(value: int) -> None:
    assert parse_orientation(exif(value).tobytes()) == 1


@pytest.mark.parametrize("prefix", [b"", b"Exif\0\0"])
def test_the_block_is_read_with_and_without_its_prefix(prefix: bytes) -> None:
    assert parse_orientation(prefix + exif(8).tobytes().removeprefix(b"Exif\0\0")) == 8


def test_an_empty_block_is_upright() -> None:
    assert parse_orientation(b"Exif\0\0") == 1


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP"])
def test_a_picture_whose_block_cannot_be_read_is_shown_as_it_is_stored(name: str) -> None:
    assert parse_orientation(b"Exif\0\0what is this") == 1
    assert find_orientation(b"Exif\0\0what is this") is None
    options = {"lossless": True} if name == "WEBP" else {}
    sound = turned(6, name, **options)
    damaged = encoded(stored(picture(), 6), name, exif=b"Exif\0\0what is this", **options)
    image = ImageSpec(IMAGE.width, IMAGE.height, 3)
    plain = decoded(encoded(stored(picture(), 6), name, **options), image)
    assert np.array_equal(decoded(damaged, image), plain)
    assert not np.array_equal(decoded(sound, image), plain)


@pytest.mark.parametrize(("name", "options"), [("JPEG", {}), *LOSSLESS[1:3]], ids=["jpeg", "webp", "tiff"])
def test_an_orientation_in_xmp_turns_nothing(name: str, options: dict[str, Any]) -> None:
    told = {"tiffinfo": {700: XMP}} if name == "TIFF" else {"xmp": XMP}
    data = encoded(picture(), name, **options, **told)
    assert XMP in data
    assert np.array_equal(decoded(data, IMAGE), decoded(encoded(picture(), name, **options), IMAGE))
