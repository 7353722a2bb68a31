"""PNG in mode raw: all depths, and nothing that alters a level."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image
from support.smooth_pictures import encoded, png
from support.stored_numbers import build_numbers, build_png_chunk, encode_png

from streamd.decode.raw import RawForm, read_raw_png
from streamd.decode.resize import BadImageError

CHUNKS = {
    "plain": b"",
    "gamma": build_png_chunk(b"gAMA", struct.pack(">I", 45455)),
    "significant bits": build_png_chunk(b"sBIT", bytes([5])),
    "colour space": build_png_chunk(b"cICP", bytes([9, 16, 0, 1])),
    "transparent": build_png_chunk(b"tRNS", struct.pack(">H", 7)),
}
DEEP = build_numbers(21, 13, 4, "uint16")


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("extra", CHUNKS)
def test_levels_are_those_in_the_file(dtype: str, channels: int, extra: str) -> None:
    numbers = build_numbers(21, 13, channels, dtype)
    chunk = CHUNKS[extra]
    if extra == "significant bits":
        chunk = build_png_chunk(b"sBIT", bytes([5]) * channels)
    if extra == "transparent":
        if channels in {2, 4}:
            return
        chunk = build_png_chunk(b"tRNS", numbers[0, 0].astype(">u2").tobytes())
    found = read_raw_png(encode_png(numbers, chunk), RawForm(channels, dtype)).numbers
    assert found.dtype == dtype
    assert np.array_equal(found, numbers)


@pytest.mark.parametrize(("depth", "packed", "levels"), [(1, 0b01100000, [0, 1, 1]), (2, 0b00011000, [0, 1, 2]),
                                                         (4, 0x0F, [0, 15])])  # fmt: skip
def test_levels_of_few_bits_are_not_scaled(depth: int, packed: int, levels: list[int]) -> None:
    data = png(depth, 0, [bytes([packed])], (1, len(levels)))
    assert read_raw_png(data, RawForm(1, "uint8")).numbers[0, :, 0].tolist() == levels


def test_an_interlaced_file_of_16_bits_gives_its_levels() -> None:
    deep = Image.fromarray(DEEP[:, :, 0])
    assert np.array_equal(read_raw_png(encoded(deep, "PNG"), RawForm(1, "uint16")).numbers[:, :, 0], DEEP[:, :, 0])


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_exif_turns_a_picture_of_any_depth(dtype: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    chunk = build_png_chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0"))
    numbers = build_numbers(21, 13, 3, dtype)
    picture = read_raw_png(encode_png(numbers, chunk), RawForm(3, dtype))
    assert np.array_equal(picture.turn_upright(), np.rot90(numbers, -1))


@pytest.mark.parametrize(
    ("data", "form", "reason"),
    [
        (encode_png(DEEP), RawForm(3, "uint16"), "4 channels of uint16, but the stream expects 3 channels of uint16"),
        (encode_png(DEEP[:, :, :1]), RawForm(1, "float32"), "set channels: 1 and dtype: uint16"),
        (encoded(Image.new("P", (3, 3)), "PNG"), RawForm(1, "uint8"), "with a palette.*mode: index"),
        (encode_png(DEEP)[:-300], RawForm(4, "uint16"), "a damaged PNG: its pixels cannot be decoded"),
        (encode_png(DEEP, build_png_chunk(b"acTL", bytes(8))), RawForm(4, "uint16"), "an animation"),
        (encode_png(DEEP)[:25], RawForm(4, "uint16"), "a damaged PNG"),
    ],
)
def test_what_is_not_as_said_is_refused(data: bytes, form: RawForm, reason: str) -> None:
    with pytest.raises(BadImageError, match=reason):
        read_raw_png(data, form)


def test_a_flipped_bit_of_a_deep_file_is_damage() -> None:
    data = bytearray(encode_png(DEEP))
    data[len(data) // 2] ^= 16
    with pytest.raises(BadImageError, match="damaged PNG"):
        read_raw_png(bytes(data), RawForm(4, "uint16"))
