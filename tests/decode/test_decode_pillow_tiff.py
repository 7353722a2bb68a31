"""TIFF: which dialects are read, and that truncated files are bad."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from golden import FILES
from golden_files import deep, picture, with_alpha
from PIL import Image
from support.smooth_pictures import apart, decoded, encoded

from streamd.core.spec import ImageSpec
from streamd.decode.decoders import BadImageError

PIXELS = np.asarray(picture())
IMAGE = ImageSpec(*PIXELS.shape)
GREY = ImageSpec(IMAGE.height, IMAGE.width, 1)


def tiff(pixels: bytes, tags: dict[int, int], height: int, width: int) -> bytes:
    """A little-endian TIFF of one strip, for kinds that Pillow does not write; one number per tag."""
    entries = {256: width, 257: height, 259: 1, 273: 8, 277: 1, 278: height, 279: len(pixels)} | tags
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(entries.items()))
    header = b"II*\0" + struct.pack("<I", 8 + len(pixels))
    return header + pixels + struct.pack("<H", len(entries)) + directory + bytes(4)


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_lossless_compressions_give_the_exact_pixels(compression: str) -> None:
    assert np.array_equal(decoded(encoded(picture(), "TIFF", compression=compression), IMAGE), PIXELS)


@pytest.mark.parametrize("compression", ["group3", "group4", "tiff_ccitt"])
def test_fax_pages_are_black_and_white(compression: str) -> None:
    page = Image.new("1", (IMAGE.width, IMAGE.height), 1)
    page.paste(0, (4, 5, 20, 11))
    pixels = decoded(encoded(page, "TIFF", compression=compression), GREY)
    assert np.array_equal(pixels[:, :, 0], np.asarray(page).astype(np.uint8) * 255)


@pytest.mark.parametrize("compression", ["lzma", "zstd"])
def test_a_rare_compression_is_refused_by_name(compression: str) -> None:
    with pytest.raises(BadImageError, match=f"compressed by {compression}: save it with LZW or deflate"):
        decoded(encoded(picture(), "TIFF", compression=compression), IMAGE)


def test_a_camera_file_is_not_mistaken_for_its_preview() -> None:
    with pytest.raises(BadImageError, match="begins with a preview"):
        decoded(encoded(picture(), "TIFF", tiffinfo={254: 1}), IMAGE)


def test_a_file_with_white_as_zero_is_inverted() -> None:
    levels = deep()
    turned = encoded(Image.fromarray(65535 - levels), "TIFF", tiffinfo={262: 0})
    straight = encoded(Image.fromarray(levels), "TIFF")
    assert np.array_equal(decoded(turned, GREY), decoded(straight, GREY))


def test_twelve_bits_reach_white() -> None:
    pairs = bytes([0xFF, 0xF0, 0x00]) * (IMAGE.width // 2 * IMAGE.height)  # 4095, 0, 4095, 0 ...
    pixels = decoded(tiff(pairs, {258: 12, 262: 1}, IMAGE.height, IMAGE.width), GREY)
    assert np.array_equal(pixels[:, :, 0], np.tile(np.array([255, 0], np.uint8), (IMAGE.height, IMAGE.width // 2)))


@pytest.mark.parametrize(("sample_format", "kind"), [(1, "<u4"), (2, "<i4")])
def test_whole_numbers_beyond_sixteen_bits_are_bad(sample_format: int, kind: str) -> None:
    levels = np.array([[0, 65535], [70000, 257]], dtype=kind)
    with pytest.raises(BadImageError, match="levels from 0 to 70000, where 0 is black and 65535 is white"):
        decoded(tiff(levels.tobytes(), {258: 32, 262: 1, 339: sample_format}, 2, 2), ImageSpec(2, 2, 1))
    levels[1, 0] = 514
    pixels = decoded(tiff(levels.tobytes(), {258: 32, 262: 1, 339: sample_format}, 2, 2), ImageSpec(2, 2, 1))
    assert pixels.ravel().tolist() == [0, 255, 2, 1]


def test_signed_bytes_are_refused() -> None:
    with pytest.raises(BadImageError, match="levels from -128 to 127"):
        decoded(tiff(bytes(4), {258: 8, 262: 1, 339: 2}, 2, 2), ImageSpec(2, 2, 1))


def test_subsampled_colours_that_are_not_compressed_are_refused() -> None:
    sound = encoded(picture().convert("YCbCr"), "TIFF")
    assert apart(decoded(sound, IMAGE), PIXELS) <= 3
    with pytest.raises(BadImageError, match="subsampled colours"):
        decoded(encoded(picture().convert("YCbCr"), "TIFF", tiffinfo={530: (2, 2)}), IMAGE)


def test_premultiplied_alpha_is_divided_out() -> None:
    multiplied = with_alpha(picture()).convert("RGBa")
    grey = with_alpha(picture().convert("L")).convert("La")
    plain = tiff(multiplied.tobytes(), {258: 8, 262: 2, 277: 4, 338: 1}, IMAGE.height, IMAGE.width)
    plain_grey = tiff(grey.tobytes(), {258: 8, 262: 1, 277: 2, 338: 1}, IMAGE.height, IMAGE.width)
    assert apart(decoded(plain, IMAGE), decoded(encoded(with_alpha(picture()), "TIFF"), IMAGE)) <= 1
    straight = encoded(with_alpha(picture().convert("L")), "TIFF")
    assert apart(decoded(plain_grey, GREY), decoded(straight, GREY)) <= 1


def test_lab_colours_are_refused_rather_than_guessed() -> None:
    with pytest.raises(BadImageError, match="CIELAB colours"):
        decoded(tiff(PIXELS.tobytes(), {258: 8, 262: 8, 277: 3}, IMAGE.height, IMAGE.width), IMAGE)


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "jpeg"])
def test_a_strip_that_runs_past_the_end_is_bad(compression: str) -> None:
    data = encoded(picture(), "TIFF", compression=compression)
    count = struct.pack("<HHI", 279, 4, 1)
    place = data.index(count) + len(count)
    longer = data[:place] + struct.pack("<I", len(data)) + data[place + 4 :]
    with pytest.raises(BadImageError, match="truncated before its pixels end"):
        decoded(longer, IMAGE)


def test_rows_that_no_strip_holds_are_bad() -> None:
    data = tiff(bytes(4 * 6), {258: 8, 262: 1, 278: 4}, 4, 6)
    taller = data.replace(struct.pack("<HHII", 257, 4, 1, 4), struct.pack("<HHII", 257, 4, 1, 40))
    with pytest.raises(BadImageError, match="do not make up its 6x40 pixels"):
        decoded(taller, ImageSpec(4, 6, 1))


def test_a_damaged_page_is_bad() -> None:
    data = (FILES / "rgb-lzw.tif").read_bytes()
    with pytest.raises(BadImageError, match="a damaged TIFF"):
        decoded(data[:8] + bytes(40) + data[48:], IMAGE)
