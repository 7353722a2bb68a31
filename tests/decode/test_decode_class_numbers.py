"""Masks: class numbers come as they are stored, and no other number ever does."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.masked_photos import build_mask
from support.smooth_pictures import encoded, png, smooth
from support.tiff_layouts import TiffLayout, write_tiff

from streamd.core.spec import ImageSpec, Resize
from streamd.decode.decoders import BadImageError, decode_image, decode_sample
from streamd.decode.geometry import Draw, compute_random_crop_draws, draw_geometry

SIZE = (37, 50)
WHOLE = ImageSpec(*SIZE, 1, mode="index", fill=255)


def palette(numbers: npt.NDArray[np.uint8]) -> Image.Image:
    picture = Image.frombytes("P", (numbers.shape[1], numbers.shape[0]), numbers.tobytes())
    picture.putpalette([(7 * place) % 256 for place in range(768)])
    return picture


def decoded(data: bytes, image: ImageSpec, draw: Draw | None = None) -> npt.NDArray[Any]:
    row = np.full(image.shape, 77, image.dtype)
    decode_image(data, row, image, draw)
    return row


@pytest.mark.parametrize("name", ["PNG", "TIFF", "BMP"])
def test_palette_indices_are_kept(name: str) -> None:
    numbers = build_mask(3, *SIZE)
    assert np.array_equal(decoded(encoded(palette(numbers), name), WHOLE), numbers)


@pytest.mark.parametrize("name", ["PNG", "TIFF", "BMP", "PPM"])
def test_grey_levels_are_kept(name: str) -> None:
    numbers = build_mask(100, *SIZE)
    assert np.array_equal(decoded(encoded(Image.fromarray(numbers), name), WHOLE), numbers)


@pytest.mark.parametrize("name", ["PNG", "TIFF"])
def test_sixteen_bits_are_kept_in_uint16_and_bad_in_uint8(name: str) -> None:
    numbers = build_mask(0, *SIZE).astype(np.uint16) * 900
    data = encoded(Image.fromarray(numbers), name)
    assert np.array_equal(decoded(data, replace(WHOLE, dtype="uint16")), numbers)
    with pytest.raises(BadImageError, match=r"holds the class number 56700, and uint8 holds 0 to 255; use dtype: uint"):
        decoded(data, WHOLE)


def test_palettes_of_few_bits_hold_indices() -> None:
    numbers = np.array([[0, 1, 2, 3], [3, 2, 1, 0]], np.uint8)
    data = encoded(palette(numbers), "PNG", bits=2)
    assert np.array_equal(decoded(data, ImageSpec(2, 4, 1, mode="index")), numbers)


def test_a_mask_of_one_bit_is_0_and_1() -> None:
    numbers = build_mask(0, *SIZE) > 20
    assert np.array_equal(decoded(encoded(Image.fromarray(numbers), "PNG"), WHOLE), numbers)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_grey_levels_of_few_bits_are_kept_as_stored(bits: int) -> None:
    numbers = np.random.default_rng(bits).integers(0, 1 << bits, SIZE).astype(np.uint8)
    as_png = png(bits, 0, [pack_bits(row, bits) for row in numbers], SIZE)
    as_tiff = write_tiff(numbers[:, :, None], TiffLayout(bits))
    for data in (as_png, as_tiff):
        assert np.array_equal(decoded(data, WHOLE), numbers)


@pytest.mark.parametrize("most", [1, 2, 3, 7, 15, 19, 100, 254, 255, 256, 257, 999, 4095, 40000, 65534, 65535])
@pytest.mark.parametrize("plain", [False, True])
def test_levels_of_a_pgm_are_kept_whatever_its_largest_is(most: int, plain: bool) -> None:
    numbers = np.random.default_rng(most).integers(0, most + 1, SIZE)
    numbers.flat[:2] = 0, most
    head = f"P{2 if plain else 5} {SIZE[1]} {SIZE[0]} {most}\n".encode()
    binary = numbers.astype(">u2" if most > 255 else "u1").tobytes()
    body = " ".join(map(str, numbers.ravel())).encode() if plain else binary
    assert np.array_equal(decoded(head + body, replace(WHOLE, dtype="uint16")), numbers)


def pack_bits(row: npt.NDArray[np.uint8], bits: int) -> bytes:
    return np.packbits((row[:, None] >> np.arange(bits - 1, -1, -1) & 1).ravel()).tobytes()


def bmp(numbers: npt.NDArray[np.uint8], bits: int, palette: npt.NDArray[np.uint8], *, packed: bool = False) -> bytes:
    """A BMP with a palette of (colours, 3); `packed` as runs of one pixel each."""
    height, width = numbers.shape
    if packed:
        runs = [b"".join(bytes((1, int(each) << (8 - bits) % 8)) for each in row) for row in numbers[::-1]]
        pixels = b"\0\0".join(runs) + b"\0\1"
    else:
        stride = -(-width * bits // 32) * 4
        pixels = b"".join(pack_bits(row, bits).ljust(stride, b"\0") for row in numbers[::-1])
    colours = b"".join(bytes(colour[::-1]) + b"\0" for colour in palette)
    start, kind = 54 + len(colours), {8: 1, 4: 2}[bits] if packed else 0
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, kind, len(pixels), 0, 0, len(palette), 0)
    return b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start) + head + colours + pixels


BMP_PALETTES: dict[str, Callable[[int], npt.NDArray[np.uint8]]] = {
    "a scale from 0 by 1": lambda colours: np.arange(colours, dtype=np.uint8)[:, None].repeat(3, axis=1),
    "a scale to white": lambda colours: np.linspace(0, 255, colours).astype(np.uint8)[:, None].repeat(3, axis=1),
    "a scale from white": lambda colours: np.linspace(255, 0, colours).astype(np.uint8)[:, None].repeat(3, axis=1),
    "black and white": lambda _: np.array([[0] * 3, [255] * 3], np.uint8),
    "three greys": lambda colours: np.arange(min(3, colours), dtype=np.uint8)[:, None].repeat(3, axis=1),
    "colours": lambda colours: np.random.default_rng(colours).integers(0, 256, (colours, 3)).astype(np.uint8),
}


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("name", BMP_PALETTES)
def test_a_bmp_has_the_numbers_and_colours_of_any_palette(name: str, bits: int) -> None:
    palette_of_file = BMP_PALETTES[name](1 << bits)
    numbers = np.random.default_rng(bits).integers(0, len(palette_of_file), SIZE).astype(np.uint8)
    for packed in (False, True) if bits > 1 else (False,):
        data = bmp(numbers, bits, palette_of_file, packed=packed)
        assert np.array_equal(decoded(data, WHOLE), numbers)
        assert np.array_equal(decoded(data, ImageSpec(*SIZE, 3)), palette_of_file[numbers])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encoded(smooth(*SIZE), "PNG"), "a mask of mode RGB: class numbers need one channel"),
        (encoded(smooth(*SIZE).convert("L")), "a mask in JPEG: a JPEG changes numbers"),
        (encoded(smooth(*SIZE), "AVIF"), "a mask in AVIF: AVIF has no class numbers"),
        (
            encoded(smooth(*SIZE).convert("L"), "TIFF", compression="jpeg"),
            "in a TIFF compressed as JPEG, which changes",
        ),
        (encoded(smooth(*SIZE).convert("1"), "PPM"), "a mask whose level 0 is white"),
        (write_tiff(np.zeros((*SIZE, 1), np.uint8), TiffLayout(8, 0)), "a mask whose level 0 is white"),
        (write_tiff(np.zeros((*SIZE, 2), np.uint8), TiffLayout(8, 1, extra=(0,))), "a mask of 2 channels"),
        (write_tiff(np.zeros((*SIZE, 1), np.float32), TiffLayout(32)), "a mask of mode F"),
        (write_tiff(np.full((*SIZE, 1), -3, np.int16), TiffLayout(16)), "holds the class number -3"),
    ],
)
def test_a_file_whose_numbers_would_change_is_bad(data: bytes, reason: str) -> None:
    with pytest.raises(BadImageError, match=reason):
        decoded(data, WHOLE)


@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.sampled_from(["stretch", "crop", "pad", "random_crop"]),
    st.integers(0, 20),
)
def test_no_number_appears_that_the_file_lacks_but_for_fill(
    size: tuple[int, int], target: tuple[int, int], resize: Resize, sample: int
) -> None:
    numbers = np.random.default_rng(sample).integers(0, 200, size, np.uint8)
    image = ImageSpec(*target, 1, resize, mode="index", fill=255)
    (draw,) = compute_random_crop_draws(image, 0, 0, np.array([sample]))
    found = set(np.unique(decoded(encoded(Image.fromarray(numbers), "PNG"), image, draw)).tolist())
    assert found <= {*np.unique(numbers).tolist(), *([255] if resize == "pad" else [])}


@pytest.mark.parametrize("size", [(375, 500), (60, 81), (33, 20)])
@pytest.mark.parametrize("target", [(128, 128), (224, 224), (64, 96)])
def test_resized_numbers_are_those_of_pillows_nearest(size: tuple[int, int], target: tuple[int, int]) -> None:
    numbers = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    for resize in ("stretch", "crop"):
        image = ImageSpec(*target, 1, resize, mode="index")
        box = draw_geometry(image, size).box
        expected = palette(numbers).resize((target[1], target[0]), Image.Resampling.NEAREST, box)
        assert np.array_equal(decoded(encoded(palette(numbers), "PNG"), image), np.asarray(expected))


def test_a_mask_that_follows_shows_the_part_that_its_photo_shows() -> None:
    images = {
        "mask": ImageSpec(24, 32, 1, "random_crop", mode="index", like="photo"),
        "photo": ImageSpec(24, 32, 1, "random_crop", exact=True),
    }
    ramp = np.tile(np.arange(240, dtype=np.uint8), (180, 1))
    small = np.ascontiguousarray(ramp[::2, ::2])
    for sample in range(8):
        rows = {name: np.empty(image.shape, image.dtype) for name, image in images.items()}
        (draw,) = compute_random_crop_draws(images["photo"], 0, 0, np.array([sample]))
        for mask in (ramp, small):
            files = [encoded(Image.fromarray(each), "PNG") for each in (mask, ramp)]
            landed = decode_sample(files, rows, images, {"mask": None, "photo": draw})
            assert landed["mask"].target == landed["photo"].target
            apart = np.abs(rows["mask"].astype(int) - rows["photo"][:, :, 0]).max()
            assert apart <= 240 / 32 / 2 + 2  # half a pixel of the row, and one of the smaller mask


def test_an_error_names_the_image_that_is_at_fault() -> None:
    images = {"photo": ImageSpec(8, 8, 3), "mask": replace(WHOLE, like="photo")}
    rows = {name: np.empty(image.shape, image.dtype) for name, image in images.items()}
    whole = encoded(smooth(20, 20), "PNG")
    for files, name in (([whole, whole], "mask"), ([b"", whole], "photo")):
        with pytest.raises(BadImageError, match=f"^{name}: "):
            decode_sample(files, rows, images, dict.fromkeys(images))


def test_a_mask_is_turned_upright_by_its_own_exif_data() -> None:
    numbers, exif = build_mask(0, *SIZE), Image.Exif()
    exif[0x0112] = 6
    file = BytesIO()
    Image.fromarray(np.ascontiguousarray(np.rot90(numbers))).save(file, "PNG", exif=exif)
    assert np.array_equal(decoded(file.getvalue(), WHOLE), numbers)
