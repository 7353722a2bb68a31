"""Files of numbers in the form that a stream wants, whatever their format."""

from __future__ import annotations

import numpy as np
import pytest
from support.smooth_pictures import encoded, smooth
from support.stored_numbers import Numbers, build_numbers, encode_npy, encode_png, encode_tiff

from streamd.core.spec import ImageSpec
from streamd.decode.decoders import decode_image
from streamd.decode.geometry import draw_geometry
from streamd.decode.raw import RawForm, read_raw_picture, resize_numbers
from streamd.decode.resize import BadImageError

NUMBERS = build_numbers(20, 30, 4, "uint16")
SMALL = ImageSpec(14, 13, 4, "pad", mode="raw", dtype="uint16", fill=11)


@pytest.mark.parametrize("encode", [encode_png, encode_tiff, encode_npy])
def test_each_format_gives_the_same_row(encode: object) -> None:
    assert callable(encode)
    row: Numbers = np.empty(SMALL.shape, np.uint16)
    expected = np.empty(SMALL.shape, np.uint16)
    geometry = decode_image(encode(NUMBERS), row, SMALL)
    assert geometry == draw_geometry(SMALL, (20, 30))
    resize_numbers(expected, NUMBERS, geometry, 11)
    assert np.array_equal(row, expected)
    assert (row[0] == 11).all()


def test_an_image_like_another_shows_the_same_part_in_proportion() -> None:
    crop = ImageSpec(8, 8, 4, "random_crop", mode="raw", dtype="uint16")
    large = np.kron(NUMBERS, np.ones((2, 2, 1), np.uint16)).astype(np.uint16)
    geometry = draw_geometry(crop, (20, 30), np.full(40, 0.3))
    rows = np.empty((2, *crop.shape), np.uint16)
    decode_image(encode_tiff(NUMBERS), rows[0], crop, geometry)
    decode_image(encode_tiff(large), rows[1], crop, geometry)
    assert np.abs(rows[0].astype(int) - rows[1]).mean() < 10_000  # noise would differ by a third of the range


@pytest.mark.parametrize("name", ["JPEG", "BMP", "WEBP"])
def test_formats_without_plain_numbers_are_refused_by_name(name: str) -> None:
    with pytest.raises(BadImageError, match=f"a {name}, .* mode raw reads PNG, TIFF and .npy"):
        read_raw_picture(encoded(smooth(8, 8), name), RawForm(3, "uint8"))


def test_what_is_no_image_is_named() -> None:
    with pytest.raises(BadImageError, match="an empty file"):
        read_raw_picture(b"", RawForm(3, "uint8"))
