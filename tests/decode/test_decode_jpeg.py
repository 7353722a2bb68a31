"""JPEG: the exact pixels of libjpeg-turbo at equal size, and a reduced decode that covers smaller targets."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from threading import Barrier
from typing import Any

import imagecodecs
import numpy as np
import pytest
import simplejpeg
from golden_files import exif, stored
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.smooth_pictures import apart, decoded, encoded, smooth

from streamd.core.spec import ImageSpec, Resize
from streamd.decode import jpeg
from streamd.decode.decoders import BadImageError, decode_into_rows
from streamd.decode.geometry import compute_random_crop_draws
from streamd.limits import MAX_PIXELS


@pytest.fixture
def least_sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shapes that libjpeg-turbo was made to decode to."""
    seen: list[tuple[int, int]] = []
    decode = simplejpeg.decode_jpeg

    def watched(*arguments: Any, **options: Any) -> Any:
        pixels = decode(*arguments, **options)
        seen.append(pixels.shape[:2])
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", watched)
    return seen


def with_size(data: bytes, height: int, width: int) -> bytes:
    """The file with another size in its frame header, which is what a bomb does."""
    start = (data.find(b"\xff\xc0") if b"\xff\xc0" in data else data.index(b"\xff\xc2")) + 5
    return data[:start] + struct.pack(">HH", height, width) + data[start + 4 :]


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"progressive": True}, {"quality": 30}])
def test_an_image_of_the_target_size_is_decoded_bit_for_bit(options: dict[str, Any]) -> None:
    for picture, channels, colour in ((smooth(37, 53), 3, "RGB"), (smooth(37, 53).convert("L"), 1, "GRAY")):
        data = encoded(picture, **({} if channels == 1 else options))
        assert np.array_equal(decoded(data, ImageSpec(37, 53, channels)), simplejpeg.decode_jpeg(data, colour))


def code_step(step: int) -> str:
    return f"{step if step > 0 else step + 7:03b}"


def build_jpeg(samplings: tuple[int, int, int] = (0x42, 0x11, 0x11), width: int = 32) -> bytes:
    """A picture of 16 rows of flat squares with the sampling of each colour as its frame says, coded by hand.

    The header is Pillow's, with the Huffman tables of ITU-T T.81, annex K.
    """
    head, _, _ = encoded(smooth(16, width), quality=20).rpartition(b"\xff\xda")
    frame = head.index(b"\xff\xc0")
    scan = bytes.fromhex("ffda000c03010002110311003f00")
    luma, blue, red = ((each >> 4) * (each & 15) for each in samplings)
    # Each square is its step of brightness from the one before, of three bits, and the end of the block.
    bits = "".join(f"100{code_step(step)}1010" for step in (5, -4, 6, -7, 4, 7, -6, -4)[:luma])
    bits += "".join(f"110{code_step(step)}00" for step in [5] * blue + [-5] * red)
    bits += "1" * (-len(bits) % 8)
    pixels = bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8)).replace(b"\xff", b"\xff\x00")
    told = bytearray(head)
    told[frame + 11 : frame + 18 : 3] = bytes(samplings)
    return bytes(told) + scan + pixels + b"\xff\xd9"


@pytest.mark.parametrize("comment", [b"", b"\xff\xfe\x00\x05any"], ids=["usual header", "other header"])
@pytest.mark.parametrize(("samplings", "width"), [((0x42, 0x11, 0x11), 32), ((0x22, 0x21, 0x11), 16)])
@pytest.mark.parametrize("channels", [1, 3])
def test_subsampling_that_turbojpeg_does_not_know_is_read_by_pillow(
    comment: bytes, samplings: tuple[int, int, int], width: int, channels: int
) -> None:
    data = build_jpeg(samplings, width)
    data = data[:2] + comment + data[2:]
    with pytest.raises(ValueError, match="subsampling"):
        simplejpeg.decode_jpeg_header(data)
    picture = Image.open(BytesIO(data))
    if channels == 1:
        picture.draft("L", picture.size)  # the luma as it is stored
    expected = np.asarray(picture).reshape(16, width, channels)

    assert len(np.unique(expected)) > 3
    assert np.array_equal(decoded(data, ImageSpec(16, width, channels)), expected)


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("size", [(30, 40), (33, 200), (200, 33), (61, 61)])
def test_a_reduced_decode_covers_the_target(
    least_sizes: list[tuple[int, int]], resize: Resize, size: tuple[int, int]
) -> None:
    decoded(encoded(smooth(400, 600)), ImageSpec(*size, 3, resize))
    scales = size[0] / 400, size[1] / 600
    scales = {"stretch": scales, "crop": 2 * (max(scales),), "pad": 2 * (min(scales),)}[resize]
    (height, width) = least_sizes[0]
    assert height >= round(400 * scales[0])
    assert width >= round(600 * scales[1])
    assert height < 400


@pytest.mark.parametrize("size", [(400, 600), (230, 310), (150, 151), (100, 150), (99, 150), (24, 32)])
def test_a_reduced_decode_is_a_half_a_quarter_or_an_eighth(
    least_sizes: list[tuple[int, int]], size: tuple[int, int]
) -> None:
    decoded(encoded(smooth(403, 607)), ImageSpec(*size, 3))
    halvings = [(-(-403 // by), -(-607 // by)) for by in (8, 4, 2, 1)]
    assert least_sizes == [next(each for each in halvings if each[0] >= size[0] and each[1] >= size[1])]


@pytest.mark.parametrize(("channels", "colour"), [(3, "RGB"), (1, "GRAY")])
def test_a_reduced_decode_of_the_target_size_is_not_resized(channels: int, colour: str) -> None:
    data = encoded(smooth(101, 160))
    expected = simplejpeg.decode_jpeg(data, colour, min_height=51, min_width=80)
    assert np.array_equal(decoded(data, ImageSpec(51, 80, channels)), expected)


@pytest.mark.parametrize("size", [(64, 64), (209, 209), (210, 210), (300, 400)])
def test_rows_that_fit_the_buffer_and_larger_ones_hold_the_pixels_of_the_decoder(size: tuple[int, int]) -> None:
    assert 209 * 209 * 3 <= jpeg._BUFFER_BYTES < 210 * 210 * 3
    data = encoded(smooth(*size))
    assert np.array_equal(decoded(data, ImageSpec(*size, 3)), simplejpeg.decode_jpeg(data))


def test_the_decode_buffer_begins_at_an_odd_multiple_of_sixteen_bytes() -> None:
    assert jpeg._decode_buffer.memory.ctypes.data % 32 == 16


def test_threads_decode_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [encoded(smooth(64, 48).rotate(turn)) for turn in (0, 180)]
    image = ImageSpec(64, 48, 3)
    expected = [decoded(data, image) for data in files]
    decode, both = simplejpeg.decode_jpeg, Barrier(2)

    def together(*arguments: Any, **options: Any) -> Any:
        pixels = decode(*arguments, **options)
        both.wait(timeout=20)
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", together)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda data: decoded(data, image), files))
    assert [np.array_equal(*pair) for pair in zip(found, expected, strict=True)] == [True, True]


def with_comment(data: bytes) -> bytes:
    """The file with a comment where most have none, so that its header is read by the library."""
    return data[:20] + b"\xff\xfe\x00\x06note" + data[20:]


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"optimize": True}])
@pytest.mark.parametrize("image", [ImageSpec(64, 48, 3), ImageSpec(40, 20, 3, "crop"), ImageSpec(20, 40, 1, "pad")])
def test_the_fast_path_for_common_headers_gives_the_same_pixels(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], image: ImageSpec
) -> None:
    data = encoded(smooth(64, 48), **options)
    expected = decoded(with_comment(data), image)
    monkeypatch.setattr(simplejpeg, "decode_jpeg_header", None)
    assert np.array_equal(decoded(data, image), expected)


@pytest.mark.parametrize("cut", range(0, 700, 13))
def test_a_file_that_ends_anywhere_in_its_header_is_bad(cut: int) -> None:
    with pytest.raises(BadImageError):
        decoded(encoded(smooth(64, 48))[:cut], ImageSpec(64, 48, 3))


def test_exact_decodes_at_full_size(least_sizes: list[tuple[int, int]]) -> None:
    data = encoded(smooth(400, 600))
    exact = decoded(data, ImageSpec(40, 60, 3, "stretch", exact=True))
    full = Image.fromarray(simplejpeg.decode_jpeg(data)).resize((60, 40), Image.Resampling.BILINEAR)
    assert least_sizes[0] == (400, 600)
    assert np.array_equal(exact, np.asarray(full))


def clouds(height: int, width: int) -> Image.Image:
    """A picture with the spectrum of a photograph: each octave half as wide, and nearly half as strong."""
    rng = np.random.default_rng(0)
    total = np.zeros((height, width, 3))
    for octave in (2**power for power in range(1, 7)):
        noise = rng.normal(size=(octave + 1, octave * width // height + 2, 3)).astype(np.float32)
        planes = [
            Image.fromarray(noise[:, :, each]).resize((width, height), Image.Resampling.BICUBIC) for each in range(3)
        ]
        total += np.stack([np.asarray(plane) for plane in planes], axis=2) / octave**0.9
    scaled = (total - total.min()) / np.ptp(total) * 255
    return Image.fromarray(scaled.astype(np.uint8))


def from_exact(data: bytes, image: ImageSpec) -> tuple[float, int]:
    """The mean and the largest difference, in grey levels, between the usual decode and the exact one."""
    usual, exact = decoded(data, image).astype(int), decoded(data, replace(image, exact=True)).astype(int)
    return float(np.abs(usual - exact).mean()), int(np.abs(usual - exact).max())


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("size", [(240, 320), (200, 310), (128, 128), (61, 33)])
def test_a_reduced_decode_of_a_photograph_differs_by_less_than_a_level_on_average(
    size: tuple[int, int], resize: Resize, orientation: int
) -> None:
    data = encoded(clouds(480, 640), quality=90, exif=exif(orientation))
    mean, most = from_exact(data, ImageSpec(*size, 3, resize))
    assert mean < 1.0
    assert most <= 8


def test_a_reduced_decode_of_a_very_fine_pattern_may_differ_much() -> None:
    down, across = np.mgrid[0:480, 0:640]
    squares = Image.fromarray(((down // 3 + across // 4) % 2 * 180 + 40).astype(np.uint8))
    mean, most = from_exact(encoded(squares, quality=90), ImageSpec(240, 320, 1))
    assert 10 < mean < 35
    assert 40 < most < 128


@pytest.mark.parametrize("size", [(48, 64), (24, 32), (20, 50)])
@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_all_eight_orientations_show_the_same_upright_picture(
    orientation: int, resize: Resize, size: tuple[int, int]
) -> None:
    upright, image = smooth(48, 64), ImageSpec(*size, 3, resize)
    data = encoded(stored(upright, orientation), exif=exif(orientation), quality=98, subsampling=0)
    assert apart(decoded(data, image), decoded(encoded(upright, "PNG"), image)) <= 10


def test_damaged_exif_data_cause_no_warning() -> None:
    data = encoded(smooth(20, 30), exif=exif(6))
    place = data.index(b"Exif\x00\x00") + 6
    cut = data[: place + 8] + b"\xff\xff" + data[place + 10 :]
    assert decoded(cut, ImageSpec(20, 30, 3)).shape == (20, 30, 3)


def test_grey_files_fill_three_channels_and_colour_files_one() -> None:
    picture = smooth(40, 30)
    grey = picture.convert("L")
    from_grey = decoded(encoded(grey), ImageSpec(40, 30, 3))
    assert apart(from_grey, np.asarray(grey)[:, :, None].repeat(3, axis=2)) <= 6
    from_colour = decoded(encoded(picture), ImageSpec(40, 30, 1))
    assert apart(from_colour[:, :, 0], grey) <= 6
    assert apart(decoded(encoded(picture), ImageSpec(20, 15, 1))[:, :, 0], grey.resize((15, 20))) <= 8


def test_four_colours_become_three() -> None:
    picture = smooth(40, 30)
    data = encoded(picture.convert("CMYK"))
    assert simplejpeg.decode_jpeg_header(data)[2] in {"CMYK", "YCCK"}
    for image in (ImageSpec(40, 30, 3), ImageSpec(20, 15, 3)):
        expected = picture.resize((image.width, image.height), Image.Resampling.BILINEAR)
        assert apart(decoded(data, image), expected) <= 12


def test_a_bomb_is_refused_before_it_is_decoded(least_sizes: list[tuple[int, int]]) -> None:
    bomb = with_size(encoded(smooth(16, 16)), 65000, 65000)
    with pytest.raises(BadImageError, match=f"65000x65000 pixels are more than {MAX_PIXELS:,}"):
        decoded(bomb, ImageSpec(16, 16, 3))
    # A header that libjpeg complains of is read in another way.
    for progressive in (False, True):
        bomb = with_size(encoded(smooth(16, 16), progressive=progressive), 65000, 65000).replace(
            b"\xff\xdb", b"abc\xff\xdb", 1
        )
        with pytest.raises(BadImageError, match=f"65000x65000 pixels are more than {MAX_PIXELS:,}"):
            decoded(bomb, ImageSpec(16, 16, 3))
    assert least_sizes == []


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"progressive": True}], ids=str)
def test_a_truncated_scan_is_bad_at_full_and_at_reduced_size(kept: float, options: dict[str, Any]) -> None:
    data = encoded(smooth(200, 300), **options)
    cut = data[: int(len(data) * kept)]
    for image in (ImageSpec(200, 300, 3), ImageSpec(25, 25, 3)):
        for filled in (cut, cut + bytes(len(data)), cut + bytes(len(data) - len(cut)), cut + bytes(99) + END):
            with pytest.raises(BadImageError, match="a damaged JPEG"):
                decoded(filled, image)


END = b"\xff\xd9"
NOISE = np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8)
KINDS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "full colour": {"subsampling": 0},
    "optimized": {"optimize": True},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 3},
}
PADDED: dict[str, Callable[[bytes], bytes]] = {
    "zeros behind the pixels": lambda data: data[:-2] + bytes(4096) + END,
    "other bytes behind the pixels": lambda data: data[:-2] + bytes(range(1, 60)) + END,
    "a text behind the pixels": lambda data: data[:-2] + b"firmware 01.02 " * 40 + END,
    "a marker that nobody knows behind the pixels": lambda data: data[:-2] + b"abc\xff\x5a\x00\x04defgh" + END,
    "fill bytes behind the pixels": lambda data: data[:-2] + b"\xff" * 50 + END,
    "zeros in place of the end marker": lambda data: data[:-2] + bytes(4096),
    "no end marker": lambda data: data[:-2],
    "half an end marker": lambda data: data[:-1],
    "bytes behind the end marker": lambda data: data + b"\x00junk" * 99,
    "a second picture": lambda data: data + data,
    "bytes between segments": lambda data: data.replace(b"\xff\xda", b"abc\xff\xda", 1),
    "a scan that names no coefficients": lambda data: data.replace(b"\x03\x11\x00\x3f\x00", b"\x03\x11\x00\x00\x00"),
    "a later version of JFIF": lambda data: data.replace(b"JFIF\x00\x01", b"JFIF\x00\x02"),
    "damaged metadata": lambda data: data[:2] + b"\xff\xe1\x00\x10Exif\x00\x00garbage!" + data[2:],
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", PADDED)
def test_padding_and_metadata_decide_on_no_pixel(padding: str, kind: str, channels: int) -> None:
    data = encoded(Image.fromarray(NOISE), **KINDS[kind])
    padded = PADDED[padding](data)
    assert padded != data or (padding, kind) == ("a scan that names no coefficients", "progressive")
    for image in (ImageSpec(40, 56, channels), ImageSpec(9, 11, channels)):
        assert np.array_equal(decoded(padded, image), decoded(data, image))


def test_padding_decides_on_no_pixel_of_any_view() -> None:
    data = encoded(Image.fromarray(NOISE))
    image = ImageSpec(20, 20, 3, "random_crop")
    draws = list(compute_random_crop_draws(image, 0, 0, np.arange(3)))
    sound, padded = (np.zeros((3, *image.shape), np.uint8) for _ in range(2))
    decode_into_rows(data, [*sound], image, draws)
    decode_into_rows(data[:-2] + bytes(99), [*padded], image, draws)
    assert np.array_equal(padded, sound)


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 1 << 20), st.integers(0, 3000), st.booleans())
def test_a_scan_that_is_cut_anywhere_and_filled_with_zeros_is_bad(kind: str, at: int, zeros: int, ends: bool) -> None:
    data = encoded(Image.fromarray(NOISE), **KINDS[kind])
    start = data.rindex(b"\xff\xda") + 10
    cut = start + at % (len(data) - 8 - start)
    with pytest.raises(BadImageError, match="a damaged JPEG"):
        decoded(data[:cut] + bytes(zeros) + (END if ends else b""), ImageSpec(40, 56, 3))


def test_a_progressive_file_that_ends_between_two_scans_is_bad() -> None:
    data = encoded(Image.fromarray(NOISE), progressive=True)
    scans = [found.start() for found in re.finditer(rb"\xff[\xc4\xda]", data)]
    for end in scans[3:]:
        with pytest.raises(BadImageError, match="a damaged JPEG"):
            decoded(data[:end], ImageSpec(40, 56, 3))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            imagecodecs.jpeg_encode(NOISE.astype(np.uint16) * 16, bitspersample=12),
            "a JPEG of 12 bits per channel: convert it to 8 bits, or to a PNG of 16 bits",
        ),
        (imagecodecs.ljpeg_encode(NOISE[..., 0].astype(np.uint16)), "a JPEG of 16 bits per channel"),
        (imagecodecs.jpegls_encode(NOISE), "a JPEG-LS image: convert it to JPEG or PNG"),
        (encoded(smooth(9, 9)).replace(b"\xff\xc0", b"\xff\xc5"), "a hierarchical JPEG"),
    ],
)
def test_a_jpeg_of_a_kind_that_is_not_read_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(BadImageError, match=f"^{reason}"):
        decoded(data, ImageSpec(40, 56, 3))
