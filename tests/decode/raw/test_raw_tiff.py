"""TIFF in mode raw: every layout that satellites and microscopes write, and files that lie."""

from __future__ import annotations

import struct
import sys
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.stored_numbers import build_numbers, encode_tiff, encode_tiff_pages

from streamd.decode.pillow import turn_upright
from streamd.decode.raw import RawForm, read_raw_tiff
from streamd.decode.resize import BadImageError
from streamd.errors import MissingExtraError
from streamd.limits import MAX_TIFF_PAGES

LAYOUTS: list[dict[str, Any]] = [
    {"rowsperstrip": 5},
    {"tile": (16, 32)},
    {"tile": (16, 32), "planar": True},
    {"rowsperstrip": 5, "planar": True, "byteorder": ">"},
    {"tile": (48, 64), "bigtiff": True, "byteorder": ">"},
]
PACKINGS: list[dict[str, Any]] = [
    {},
    {"compression": "zlib"},
    {"compression": "lzw"},
    {"compression": "packbits"},
    {"compression": "zlib", "predictor": True},
    {"compression": "lzw", "predictor": True},
]
GREY = build_numbers(20, 30, 1, "uint16")


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_every_layout_and_packing_gives_the_stored_numbers(
    dtype: str, layout: dict[str, Any], packing: dict[str, Any]
) -> None:
    for channels in (1, 4, 7):
        numbers = build_numbers(37, 53, channels, dtype)
        found = read_raw_tiff(encode_tiff(numbers, **layout, **packing), RawForm(channels, dtype)).numbers
        assert found.dtype == dtype
        assert found.dtype.isnative
        assert np.array_equal(found, numbers)


def test_the_pages_of_a_file_are_channels_in_their_order() -> None:
    pages = [build_numbers(20, 30, 1, "uint16") + number for number in range(5)]
    found = read_raw_tiff(encode_tiff_pages(pages, compression="lzw"), RawForm(5, "uint16")).numbers
    assert np.array_equal(found, np.concatenate(pages, axis=2))


def test_reduced_copies_and_masks_are_no_channels() -> None:
    file = BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for levels, kind in ((GREY, 0), (GREY[:10], 1), (GREY > 7, 4)):
            writer.write(levels[:, :, 0], photometric="minisblack", metadata=None, subfiletype=kind)
    assert np.array_equal(read_raw_tiff(file.getvalue(), RawForm(1, "uint16")).numbers, GREY)


@pytest.mark.parametrize(
    ("data", "form", "reason"),
    [
        (encode_tiff(GREY), RawForm(4, "uint16"), "1 channel of uint16, but the stream expects 4 channels of uint16"),
        (encode_tiff(GREY), RawForm(1, "uint8"), "convert it, or set channels: 1 and dtype: uint16 if all"),
        (encode_tiff(GREY.astype(np.int16)), RawForm(1, "uint16"), "1 channel of int16, .*: convert it$"),
        (encode_tiff(GREY.astype(np.float64)), RawForm(1, "float32"), "1 channel of float64"),
        (encode_tiff(GREY > 9), RawForm(1, "uint8"), "1 bit per channel"),
        (encode_tiff_pages([GREY, GREY[:10]]), RawForm(2, "uint16"), "2 pages that differ in size or type"),
        (encode_tiff_pages([GREY[:1, :1]] * (MAX_TIFF_PAGES + 1)), RawForm(1, "uint16"), "more than 128 pages"),
        (encode_tiff(GREY, compression="zstd"), RawForm(1, "uint16"), "compression 50000: save it with LZW or deflate"),
        (encode_tiff(GREY)[:-9], RawForm(1, "uint16"), "truncated before its pixels end"),
        (encode_tiff(GREY)[:20], RawForm(1, "uint16"), "directory cannot be read"),
        (b"II*\0" + bytes(20), RawForm(1, "uint16"), "without a page|directory cannot be read"),
    ],
)  # fmt: skip
def test_what_is_not_as_said_is_refused_with_its_reason(data: bytes, form: RawForm, reason: str) -> None:
    with pytest.raises(BadImageError, match=reason):
        read_raw_tiff(data, form)


@pytest.mark.parametrize("packing", ["zlib", "lzw", "packbits"])
def test_a_strip_that_ends_early_is_never_filled_up(packing: str) -> None:
    short = _set_tag(encode_tiff(GREY, compression=packing, rowsperstrip=20), 279, 60)
    with pytest.raises(BadImageError, match=r"damaged TIFF|has .* of 1200 bytes"):
        read_raw_tiff(short, RawForm(1, "uint16"))


@pytest.mark.parametrize(
    ("tag", "value", "reason"),
    [
        (256, 1 << 24, "more than 100,000,000"),
        (257, 1 << 31, "more than 100,000,000"),
        (277, 60000, "60,000 channels"),
        (258, 12, "12 bits per channel"),
        (262, 3, "a palette"),
        (262, 6, "colours of kind 6"),
        (266, 2, "reverse order"),
        (278, 0, "strips of 30x0"),
        (278, 7, "1 strips or tiles, but 3 make up"),
        (279, 0, "left out"),
        (259, 7, "compression 7"),
    ],
)
def test_a_tag_that_lies_is_refused_before_anything_is_allocated(tag: int, value: int, reason: str) -> None:
    with pytest.raises(BadImageError, match=reason):
        read_raw_tiff(_set_tag(encode_tiff(GREY, rowsperstrip=20), tag, value), RawForm(1, "uint16"))


def test_huge_tiles_around_a_small_picture_are_refused() -> None:
    tiled = encode_tiff(GREY, tile=(32, 32), compression="zlib")
    with pytest.raises(BadImageError, match="use smaller tiles"):
        read_raw_tiff(_set_tag(_set_tag(tiled, 322, 32768), 323, 65520), RawForm(1, "uint16"))


def _set_tag(data: bytes, tag: int, value: int) -> bytes:
    """Returns a little-endian TIFF with another value of one tag of its first directory."""
    start = struct.unpack_from("<I", data, 4)[0]
    (count,) = struct.unpack_from("<H", data, start)
    for number in range(count):
        at = start + 2 + 12 * number
        if struct.unpack_from("<H", data, at)[0] == tag:
            return data[:at] + struct.pack("<HHII", tag, 4, 1, value) + data[at + 12 :]
    entry = struct.pack("<HHII", tag, 4, 1, value)
    moved = data + bytes(len(data) % 2)
    entries = sorted([data[start + 2 + 12 * n : start + 14 + 12 * n] for n in range(count)] + [entry])
    directory = struct.pack("<H", count + 1) + b"".join(entries) + bytes(4)
    return moved[:4] + struct.pack("<I", len(moved)) + moved[8:] + directory


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_upright_as_pillow_turns_one(orientation: int) -> None:
    levels = build_numbers(4, 6, 1, "uint8")
    picture = read_raw_tiff(_set_tag(encode_tiff(levels), 274, orientation), RawForm(1, "uint8"))
    turned = np.asarray(turn_upright(Image.fromarray(levels[:, :, 0]), orientation))
    assert np.array_equal(picture.turn_upright()[:, :, 0], turned)


@pytest.mark.parametrize("library", ["tifffile", "imagecodecs"])
def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    data = encode_tiff(GREY, compression="lzw")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"{library}.*streamd-loader\[tiff\]"):
        read_raw_tiff(data, RawForm(1, "uint16"))
